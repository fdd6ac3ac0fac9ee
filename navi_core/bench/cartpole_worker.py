"""Worker process of `cartpole.py` for one measurement: `python -m navi_core.bench.cartpole_worker KIND JSON`."""

import json
import math
import resource
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any


def main(kind: str, ask: dict[str, Any]) -> dict[str, Any] | None:
    """Run one measurement and return its row; None in all distributed processes but the first.

    Args:
        kind: `throughput` or `solve`.
        ask: Case of `cartpole.py`, as plain data.
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


def _timed(run: Callable[[], object], samples: int, network: str) -> dict[str, Any]:
    cpu, wall = time.process_time(), time.perf_counter()
    run()
    return {
        "samples": samples,
        "network": network,
        "cpu_seconds": time.process_time() - cpu,
        "seconds": time.perf_counter() - wall,
        "peak_mb": _peak_mb(),
    }


def _peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _navi(ask: dict[str, Any]) -> dict[str, Any] | None:
    """Measure the throughput of `navi train ppo` after its first update, which compiles."""
    from navi_core.bench.task_runs import run_task, task_config
    from navi_core.learn.parallel import joined_workers

    ppo = {name: ask[name] for name in ("rollout", "epochs", "minibatch")}
    steps = ask["samples"] + ask["rows"] * ask["rollout"]
    ppo["minibatch"] //= task_config("ppo", ask["task"]).ppo.bptt
    changes = {"actors": ask["rows"], "total_steps": steps, "ppo": ppo, "policy": {"width": ask["width"]}}
    with joined_workers() as workers:
        run = run_task(task_config("ppo", ask["task"], 0, changes), workers=workers, episodes=1)
        found = workers.gather((*run.timed, _peak_mb()))
    if not found:
        return None
    samples, cpu, seconds, peaks = zip(*found)
    return {
        "samples": samples[0],
        "network": run.network,
        "cpu_seconds": sum(cpu),
        "seconds": max(seconds),
        "peak_mb": max(peaks),
    }


def _environment(ask: dict[str, Any]) -> dict[str, Any]:
    import torch

    from navi_core.tasks import CartPole
    from navi_core.tasks.classic_control import NativeStep

    step = NativeStep(CartPole(ask["rows"], masked=False))
    actions = torch.randint(0, 2, (64, ask["rows"], 1), generator=torch.Generator().manual_seed(0)).float()
    step(actions[0])
    return _stepped(step, list(actions), ask)


def _stepped(step: Callable[[Any], object], actions: Sequence[Any], ask: dict[str, Any]) -> dict[str, Any]:
    """Measure the throughput of an environment without a trainer, cycling through 64 random actions."""
    steps = ask["samples"] // ask["rows"]

    def run() -> None:
        for t in range(steps):
            step(actions[t % 64])

    return _timed(run, steps * ask["rows"], "none")


def _gymnasium(ask: dict[str, Any]) -> dict[str, Any]:
    import gymnasium

    envs: Any = gymnasium.make_vec("CartPole-v1", ask["rows"], vectorization_mode="vector_entry_point")
    envs.reset(seed=0)
    envs.action_space.seed(0)
    return _stepped(envs.step, [envs.action_space.sample() for _ in range(64)], ask)


def _sb3(ask: dict[str, Any]) -> dict[str, Any]:
    model = _sb3_model((64, 64), ask["rows"], ask["rollout"], ask["minibatch"], ask["epochs"], seed=0)
    batch = ask["rows"] * ask["rollout"]
    model.learn(batch)
    samples = math.ceil(ask["samples"] / batch) * batch
    return _timed(lambda: model.learn(samples), samples, _sb3_name(model))


def _sb3_model(
    hidden: tuple[int, ...],
    rows: int,
    rollout: int,
    minibatch: int,
    epochs: int,
    seed: int,
    **more: Any,  # noqa: ANN401 (keywords of stable-baselines3)
) -> Any:  # noqa: ANN401 (stable-baselines3 is optional)
    import torch
    from stable_baselines3 import PPO
    from stable_baselines3.common.env_util import make_vec_env

    torch.set_num_threads(1)
    net = {"pi": list(hidden), "vf": list(hidden)}
    return PPO(
        "MlpPolicy", make_vec_env("CartPole-v1", rows, seed=seed), n_steps=rollout, batch_size=minibatch,
        n_epochs=epochs, policy_kwargs={"net_arch": net}, device="cpu", seed=seed, **more,
    )  # fmt: skip


def _sb3_name(model: Any) -> str:  # noqa: ANN401 (stable-baselines3 is optional)
    count = sum(p.numel() for p in model.policy.parameters())
    return f"{'x'.join(map(str, model.policy.net_arch['pi']))} tanh, two nets, {count:,} weights"


def _solve(ask: dict[str, Any]) -> dict[str, Any]:
    from navi_core.bench.cartpole import solve
    from navi_core.bench.task_runs import task_config

    return solve(task_config("ppo", ask["task"], ask["seed"], ask["changes"]), "navi", ask["target"])


def _solve_sb3(ask: dict[str, Any]) -> dict[str, Any]:
    """Train Stable-Baselines3's PPO on cart-pole with the hyperparameters of rl-baselines3-zoo."""
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.evaluation import evaluate_policy

    seed, start = ask["seed"], time.process_time()
    solved: dict[str, Any] = {"steps": None, "seconds": None, "mean": math.nan}

    class Watch(BaseCallback):  # type: ignore[misc, unused-ignore] # the package is optional
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
    measured = main(sys.argv[1], json.loads(sys.argv[2]))
    if measured is not None:
        sys.stdout.write(json.dumps(measured) + "\n")
