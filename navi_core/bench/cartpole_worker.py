"""One measurement of `cartpole.py`, in a process of its own: `python -m navi_core.bench.cartpole_worker KIND JSON`."""

from __future__ import annotations

import json
import math
import resource
import sys
import time
from typing import Any

from navi_core.config import parse_config
from navi_core.config.fast import FastPPOConfig

__all__ = ["main"]


def main(kind: str, ask: dict[str, Any]) -> dict[str, Any]:
    """Return what was measured.

    Args:
        kind: `throughput` or `solve`.
        ask: What to measure, as `cartpole.py` says it.
    """
    if kind == "solve":
        return (_solve_sb3 if ask["trainer"] == "sb3" else _solve)(ask)
    measure = {
        "navi": _navi,
        "sb3": _sb3,
        "navi environment": _environment,
        "gymnasium": _gymnasium,
    }
    return measure[ask["trainer"]](ask)


def _timed(run: Any, samples: int, network: str) -> dict[str, Any]:
    cpu, wall = time.process_time(), time.perf_counter()
    run()
    return {
        "samples": samples,
        "network": network,
        "cpu_seconds": time.process_time() - cpu,
        "seconds": time.perf_counter() - wall,
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def _navi(ask: dict[str, Any]) -> dict[str, Any]:
    from navi_core.learn.fast import FastPPO
    from navi_core.learn.fast.processes import train_together

    per_update = ask["rows"] * ask["rollout"]
    samples = math.ceil(ask["samples"] / per_update) * per_update
    names = ("rows", "rollout", "epochs", "minibatch", "hidden", "shared")
    settings = {name: ask[name] for name in names} | {"total_steps": samples}
    config = parse_config(FastPPOConfig, settings)
    trainer = FastPPO(config)
    if ask["processes"] > 1:
        # Each process warms up by itself; what it then takes is its own CPU time.
        results = train_together(config, ask["processes"])
        return {
            "samples": samples,
            "network": trainer.network.name,
            "cpu_seconds": sum(r.cpu_seconds for r in results),
            "seconds": max(r.seconds for r in results),
            "peak_mb": max(r.peak_mb for r in results),
        }
    trainer.collect()  # compiled, or read from the cache, before the clock runs
    trainer.update()
    trainer = FastPPO(config)
    return _timed(trainer.train, samples, trainer.network.name)


def _environment(ask: dict[str, Any]) -> dict[str, Any]:
    import numpy as np

    from navi_core.learn.fast import open_rows

    rows = open_rows("cart_pole", ask["rows"], 0, {})
    actions = np.random.default_rng(0).integers(0, 2, (64, ask["rows"]))
    rows.step(actions[0])
    steps = ask["samples"] // ask["rows"]

    def run() -> None:
        for t in range(steps):
            rows.step(actions[t % 64])

    return _timed(run, steps * ask["rows"], "none")


def _gymnasium(ask: dict[str, Any]) -> dict[str, Any]:
    import gymnasium

    envs: Any = gymnasium.make_vec("CartPole-v1", ask["rows"], vectorization_mode="vector_entry_point")
    envs.reset(seed=0)
    envs.action_space.seed(0)
    actions = [envs.action_space.sample() for _ in range(64)]
    steps = ask["samples"] // ask["rows"]

    def run() -> None:
        for t in range(steps):
            envs.step(actions[t % 64])

    return _timed(run, steps * ask["rows"], "none")


def _sb3(ask: dict[str, Any]) -> dict[str, Any]:
    model = _sb3_model(ask["hidden"], ask["rows"], ask["rollout"], ask["minibatch"], ask["epochs"], seed=0)
    batch = ask["rows"] * ask["rollout"]
    model.learn(batch)
    samples = math.ceil(ask["samples"] / batch) * batch
    return _timed(lambda: model.learn(samples), samples, _sb3_name(model))


def _sb3_model(hidden: Any, rows: int, rollout: int, minibatch: int, epochs: int, seed: int, **more: Any) -> Any:
    import torch
    from stable_baselines3 import PPO
    from stable_baselines3.common.env_util import make_vec_env

    torch.set_num_threads(1)
    net = {"pi": list(hidden), "vf": list(hidden)}
    return PPO(
        "MlpPolicy", make_vec_env("CartPole-v1", rows, seed=seed), n_steps=rollout, batch_size=minibatch,
        n_epochs=epochs, policy_kwargs={"net_arch": net}, device="cpu", seed=seed, **more,
    )  # fmt: skip


def _sb3_name(model: Any) -> str:
    count = sum(p.numel() for p in model.policy.parameters())
    return f"{'x'.join(map(str, model.policy.net_arch['pi']))} tanh, two nets, {count:,} weights"


def _solve(ask: dict[str, Any]) -> dict[str, Any]:
    from navi_core.learn.fast import FastPPO

    config = parse_config(FastPPOConfig, ask["settings"])
    warm = FastPPO(config)
    warm.collect()
    warm.update()
    trainer = FastPPO(config)
    result = trainer.train(target=ask["target"])
    return {
        "trainer": "navi",
        "task": config.task,
        "network": trainer.network.name,
        "epochs": config.epochs,
        "batch": config.rows * config.rollout,
        "minibatch": config.minibatch,
        "seed": config.seed,
        "solved_at": result.solved_at,
        "cpu_seconds_to_solve": result.solved_cpu_seconds,
        "steps": result.steps,
        "cpu_seconds": result.cpu_seconds,
        "training_return": result.mean_return,
        "final_return": float(trainer.evaluate().mean()),
    }


def _solve_sb3(ask: dict[str, Any]) -> dict[str, Any]:
    """Learn cart-pole with the settings that rl-baselines3-zoo publishes for it."""
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.evaluation import evaluate_policy

    seed, start = ask["settings"]["seed"], time.process_time()
    solved: dict[str, Any] = {"steps": None, "seconds": None, "mean": math.nan}

    class Watch(BaseCallback):
        def _on_step(self) -> bool:
            recent = [episode["r"] for episode in self.model.ep_info_buffer or ()]
            if len(recent) == 100:
                solved["mean"] = sum(recent) / 100
                if solved["steps"] is None and solved["mean"] >= ask["target"]:
                    solved.update(steps=self.num_timesteps, seconds=time.process_time() - start)
            return True

    model = _sb3_model(
        (64, 64), 8, 32, 256, 20, seed, gae_lambda=0.8, gamma=0.98, ent_coef=0.0,
        learning_rate=lambda left: 1e-3 * left, clip_range=lambda left: 0.2 * left,
    )  # fmt: skip
    model.learn(100_000, callback=Watch())
    seconds = time.process_time() - start
    final: Any = evaluate_policy(model, model.get_env(), n_eval_episodes=100)[0]
    return {
        "trainer": "sb3",
        "task": "cart_pole",
        "network": _sb3_name(model),
        "epochs": 20,
        "batch": 256,
        "minibatch": 256,
        "seed": seed,
        "solved_at": solved["steps"],
        "cpu_seconds_to_solve": solved["seconds"],
        "steps": int(model.num_timesteps),
        "cpu_seconds": seconds,
        "training_return": solved["mean"],
        "final_return": float(final),
    }


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main(sys.argv[1], json.loads(sys.argv[2]))) + "\n")
