"""The fast path of PPO: gradients against autograd and loops over numbers, rows against the tasks, processes."""

import math
import multiprocessing
import os
import queue
import signal
import threading
from multiprocessing.shared_memory import SharedMemory

import numpy as np
import pytest
import torch

from navi_core.config import parse_config
from navi_core.config.fast import FastPPOConfig
from navi_core.errors import ConfigError, NaviError, NonFiniteError
from navi_core.learn.fast import ActorCritic, FastPPO, NativeRows, TaskRows, open_rows, processes
from navi_core.learn.fast.loops import STATISTICS, adam, choose, ppo_gradient
from navi_core.learn.fast.processes import train_together
from navi_core.tasks import reference_task
from navi_core.world.counter_random import Purpose, stream_key, uniform

SMALL = {"rows": 8, "rollout": 16, "minibatch": 32, "epochs": 2, "hidden": [16, 8], "total_steps": 256}


def small(**changes) -> FastPPOConfig:
    return parse_config(FastPPOConfig, SMALL | changes)


def batch(n: int = 40, actions: int = 3):
    rng = np.random.default_rng(3)
    logits, values, old = rng.normal(size=(n, actions)), rng.normal(size=n), -1 + 0.2 * rng.normal(size=n)
    advantages, returns = rng.normal(size=(2, n))
    chosen = rng.integers(0, actions, n)
    return [x.astype(np.float32) for x in (logits, values)], chosen, [
        x.astype(np.float32) for x in (old, advantages, returns)
    ]  # fmt: skip


def test_the_loss_and_its_gradient_agree_with_loops_and_autograd_in_float64():
    (logits, values), chosen, (old, advantages, returns) = batch()
    n = len(logits)
    d_logits, d_values, sums = np.empty_like(logits), np.empty_like(values), np.zeros(len(STATISTICS))
    ppo_gradient(logits, values, chosen, old, advantages, returns, 0.2, 0.03, 0.5, d_logits, d_values, sums)
    expected = dict.fromkeys(STATISTICS, 0.0)
    for i in range(n):
        p = [math.exp(float(x)) for x in logits[i]]
        p = [x / sum(p) for x in p]
        ratio = p[chosen[i]] / math.exp(float(old[i]))
        a = float(advantages[i])
        expected["policy_loss"] -= min(ratio * a, min(max(ratio, 0.8), 1.2) * a)
        expected["value_loss"] += (float(values[i]) - float(returns[i])) ** 2
        expected["entropy"] -= sum(x * math.log(x) for x in p)
        expected["approx_kl"] += ratio - 1 - math.log(ratio)
        expected["clip_fraction"] += abs(ratio - 1) > 0.2
    assert 0 < expected["clip_fraction"] < n
    assert sums.tolist() == pytest.approx(list(expected.values()), rel=1e-6)
    x, v = (torch.from_numpy(y).double().requires_grad_() for y in (logits, values))
    log_p = x.log_softmax(1)
    ratio = (log_p[torch.arange(n), torch.from_numpy(chosen)] - torch.from_numpy(old).double()).exp()
    a = torch.from_numpy(advantages).double()
    loss = -(ratio * a).minimum(ratio.clamp(0.8, 1.2) * a).mean()
    loss = loss + 0.5 * (v - torch.from_numpy(returns).double()).square().mean()
    (loss + 0.03 * (log_p.exp() * log_p).sum(1).mean()).backward()
    for ours, theirs in ((d_logits, x.grad), (d_values, v.grad)):
        assert np.abs(ours - theirs.numpy()).max() <= 1e-6 * float(theirs.abs().max())


@pytest.mark.parametrize("shared", [False, True])
def test_the_network_and_its_gradient_are_those_of_autograd(shared):
    net = ActorCritic(5, 3, (16, 8), shared=shared, rows=40, seed=1)
    net.params += np.random.default_rng(0).normal(size=net.params.shape).astype(np.float32) * 0.1
    obs = np.random.default_rng(2).normal(size=(40, 5)).astype(np.float32)
    upstream = np.random.default_rng(4).normal(size=(40, 4)).astype(np.float32)
    logits, values = (x.copy() for x in net.both(obs))
    d_logits, d_values = net.gradient(40)
    d_logits[:], d_values[:] = upstream[:, :3], upstream[:, 3]
    net.backward(40)
    gradients = []
    outputs = []
    for part in net.parts:
        layers = [torch.from_numpy(x.copy()).requires_grad_() for pair in zip(part.weights, part.biases) for x in pair]
        x = torch.from_numpy(obs)
        for i in range(0, len(layers), 2):
            x = x @ layers[i] + layers[i + 1]
            x = x.tanh() if i < len(layers) - 2 else x
        gradients += layers
        outputs.append(x)
    whole = torch.cat(outputs, dim=1)
    (whole * torch.from_numpy(upstream)).sum().backward()
    assert np.abs(np.c_[logits, values] - whole.detach().numpy()).max() < 1e-5
    expected = torch.cat([g.grad.reshape(-1) for g in gradients]).numpy()
    assert np.abs(net.grads - expected).max() <= 1e-5 * np.abs(expected).max()


def test_initial_weights_are_orthogonal_with_the_published_gains():
    net = ActorCritic(4, 2, (64, 64), shared=False, rows=4, seed=0)
    w = net.parts[0].weights
    assert np.abs(w[1].T @ w[1] - 2 * np.eye(64)).max() < 1e-5
    assert np.linalg.norm(w[2], axis=0) == pytest.approx([0.01, 0.01], rel=1e-5)
    assert np.linalg.norm(net.parts[1].weights[2]) == pytest.approx(1.0, rel=1e-5)
    assert all((b == 0).all() for part in net.parts for b in part.biases)


def test_adam_takes_the_steps_of_torch():
    rng = np.random.default_rng(0)
    ours = rng.normal(size=50).astype(np.float32)
    theirs = torch.nn.Parameter(torch.from_numpy(ours.copy()))
    optimizer = torch.optim.Adam([theirs], lr=0.01, eps=1e-5)
    first, second = np.zeros((2, 50), dtype=np.float32)
    for step in range(1, 20):
        gradient = (rng.normal(size=50) * (0.01 if step % 2 else 3.0)).astype(np.float32)
        theirs.grad = torch.from_numpy(gradient.copy())
        norm = torch.nn.utils.clip_grad_norm_([theirs], 0.5)
        optimizer.step()
        assert adam(ours, gradient, first, second, step, 0.01, 0.5, 1e-5) == pytest.approx(float(norm), rel=1e-5)
        assert np.abs(ours - theirs.detach().numpy()).max() < 1e-5


def test_actions_are_drawn_as_their_probabilities_say():
    logits = np.tile(np.log(np.array([0.2, 0.5, 0.3], dtype=np.float32)), (20_000, 1))
    actions, log_probs = np.empty(20_000, np.int64), np.empty(20_000, np.float32)
    key = stream_key(1, Purpose.ACTION)
    choose(logits, key, 0, 5, actions, log_probs, False)
    assert np.bincount(actions) / 20_000 == pytest.approx([0.2, 0.5, 0.3], abs=0.02)
    assert log_probs == pytest.approx(logits[0, actions], abs=1e-6)
    quantile = uniform(1, Purpose.ACTION, torch.arange(20_000), 0, 5).numpy()
    assert np.array_equal(actions, (quantile >= 0.2).astype(int) + (quantile >= 0.7))
    shifted = np.empty_like(actions)
    choose(logits[:100], key, 7, 5, shifted[:100], log_probs[:100], False)
    assert np.array_equal(shifted[:100], actions[7:107]), "a row draws the same alone and among others"
    choose(logits, key, 0, 5, actions, log_probs, True)
    assert (actions == 1).all()


@pytest.mark.parametrize(("task", "options"), [("cart_pole", {"masked": False}), ("acrobot", {})])
def test_compiled_rows_live_the_life_of_the_reference_task(task, options):
    fast, slow = NativeRows(task, 5, 3, first_row=2), TaskRows(reference_task(task, 5, 3, first_row=2, **options))
    rng, ends = np.random.default_rng(0), 0
    for _ in range(520):
        assert np.abs(fast.obs - slow.obs).max() < 1e-6
        actions = rng.integers(0, fast.actions, 5)
        fast.step(actions)
        slow.step(actions)
        assert np.array_equal(fast.terminated, slow.terminated) and np.array_equal(fast.truncated, slow.truncated)
        assert np.array_equal(fast.reward, slow.reward)
        np.testing.assert_array_equal(fast.ended, slow.ended)
        cut = fast.truncated
        assert not cut.any() or np.abs(fast.final_obs[cut] - slow.final_obs[cut]).max() < 1e-6
        ends += int((fast.terminated | cut).sum())
    assert ends > 4


def test_equal_seeds_give_equal_runs_and_the_values_are_those_of_what_was_seen():
    made = [
        FastPPO(small(shared=shared, seed=seed)) for shared, seed in ((False, 0), (False, 0), (True, 0), (False, 1))
    ]
    for trainer in made:
        trainer.train()
    assert np.array_equal(made[0].network.params, made[1].network.params)
    assert not np.array_equal(made[0].network.params, made[3].network.params)
    for trainer in (made[0], made[2]):
        trainer.collect()
        logits, values = trainer.network.both(trainer._obs.reshape(-1, 4)[:32])
        assert np.abs(values - trainer._values.reshape(-1)[:32]).max() < 1e-5
        chosen = torch.from_numpy(logits.copy()).log_softmax(1)[torch.arange(32), trainer._actions.reshape(-1)[:32]]
        assert np.abs(chosen.numpy() - trainer._log_probs.reshape(-1)[:32]).max() < 1e-5


def heads(trainer: FastPPO, flat: torch.Tensor, obs: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits and values by weights in float64."""
    outputs, at = [], 0
    for part in trainer.network.parts:
        x = torch.from_numpy(obs).double()
        for i, weight in enumerate(part.weights):
            a, b = weight.shape
            x = x @ flat[at : at + a * b].view(a, b) + flat[at + a * b : at + (a + 1) * b]
            x, at = (x.tanh() if i < len(part.weights) - 1 else x), at + (a + 1) * b
        outputs.append(x)
    return outputs[0][:, : trainer.env.actions], outputs[-1][:, -1]


@pytest.mark.parametrize("shared", [False, True])
def test_updates_are_those_of_float64_whatever_ends_an_episode(shared):
    """From what was flown: GAE by its definition, one normalisation, uneven minibatches, Adam over several updates."""
    settings = {"rows": 6, "rollout": 20, "minibatch": 18, "reward_scale": 0.5, "max_grad_norm": 0.1, "clip": 0.1}
    settings |= {"entropy_coefficient": 0.02, "gamma": 0.95, "gae_lambda": 0.7, "total_steps": 2000}
    trainer = FastPPO(small(shared=shared, **settings))
    trainer.env._limit = 13
    c, seen, fly = trainer.config, [], trainer.env.step
    flat = torch.tensor(trainer.network.params, dtype=torch.float64, requires_grad=True)
    adam, rng = torch.optim.Adam([flat], eps=1e-5), np.random.default_rng((c.seed, 1, 0))

    def step(actions):
        fly(actions)
        seen.append((trainer.env.final_obs * trainer._scale, trainer.env.obs * trainer._scale))

    trainer.env.step = step
    endings = np.zeros(2, int)
    for _ in range(3):
        seen.clear()
        trainer.collect()
        obs, actions = trainer._obs.reshape(120, 4).copy(), torch.from_numpy(trainer._actions.reshape(120).copy())
        with torch.no_grad():
            logits, values = heads(trainer, flat, obs)
            old, values = logits.log_softmax(1)[torch.arange(120), actions], values.view(20, 6)
            final, after = (np.stack(x) for x in zip(*seen))
            final, after = (heads(trainer, flat, x.reshape(120, 4))[1].view(20, 6) for x in (final, after))
        advantages = torch.zeros(20, 6, dtype=torch.float64)
        for t, row in np.ndindex(20, 6):
            weight = 1.0
            for later in range(t, 20):
                over, cut = trainer._terminated[later, row], trainer._truncated[later, row]
                following = 0.0 if over else final[later, row] if cut else after[later, row]
                difference = 0.5 * 1.0 + c.gamma * following - values[later, row]
                advantages[t, row] += weight * difference
                weight *= c.gamma * c.gae_lambda
                if over or cut:
                    break
        returns, advantages = (advantages + values).flatten(), advantages.flatten()
        advantages = (advantages - advantages.mean()) / (advantages.std(correction=0) + 1e-8)
        for group in adam.param_groups:
            group["lr"] = 1e-3 + (1e-4 - 1e-3) * trainer.steps / 2000
        for _ in range(c.epochs):
            for index in np.array_split(rng.permutation(120), 7):
                logits, value = heads(trainer, flat, obs[index])
                log_p = logits.log_softmax(1)
                ratio = (log_p[torch.arange(len(index)), actions[index]] - old[index]).exp()
                gain = (ratio * advantages[index]).minimum(ratio.clamp(0.9, 1.1) * advantages[index]).mean()
                entropy = -(log_p.exp() * log_p).sum(1).mean()
                adam.zero_grad()
                (0.5 * (value - returns[index]).square().mean() - gain - 0.02 * entropy).backward()
                torch.nn.utils.clip_grad_norm_([flat], 0.1)
                adam.step()
        trainer.update()
        endings += trainer._terminated.sum(), trainer._truncated.sum()
        np.testing.assert_allclose(trainer.network.params, flat.detach().numpy(), rtol=0, atol=2e-6)
    assert (endings > 2).all()


def test_a_truncated_episode_is_worth_what_was_seen_last():
    trainer = FastPPO(small(task="acrobot", rollout=512, rows=2, total_steps=1024))
    trainer.collect()
    cut = np.argwhere(trainer._truncated)
    assert len(cut), "acrobot is not solved by chance in 500 decisions"
    for t, row in cut:
        assert trainer._ended[t, row] == -500 and np.isfinite(trainer._boot[t, row])


def test_cart_pole_is_learned_in_seconds():
    trainer = FastPPO(parse_config(FastPPOConfig, {"total_steps": 30_000, "epochs": 10}))
    result = trainer.train(target=100.0, until_solved=True)
    assert result.solved_at is not None and trainer.evaluate(20).mean() > 100


@pytest.mark.slow
def test_processes_take_the_same_step(monkeypatch):
    monkeypatch.setattr(processes, "_LOOK", 0.05)
    results = train_together(small(rows=8, total_steps=512), 2)
    assert np.array_equal(results[0].params, results[1].params)
    assert results[0].steps == 512 and all(r.cpu_seconds > 0 for r in results)
    with pytest.raises(ConfigError, match="rows 8 cannot be shared by 3"):
        train_together(small(), 3)


def test_processes_are_waited_for_as_long_as_they_live(monkeypatch):
    """Silence is no end: a beginning takes many looks."""
    monkeypatch.setattr(processes, "_LOOK", 0.02)
    spawn = multiprocessing.get_context("spawn")
    said = spawn.Queue()
    members = [spawn.Process(target=said.put, args=((rank, rank * 10.0),), daemon=True) for rank in range(2)]
    for member in members:
        member.start()
    assert sorted(processes._gather(members, said)) == [(0, 0.0), (1, 10.0)]


def test_a_killed_process_is_told_and_the_others_end(monkeypatch):
    gather, ended = processes._gather, []

    def kill_one(members, queue):
        ended.extend(members)
        os.kill(members[1].pid, signal.SIGKILL)
        return gather(members, queue)

    monkeypatch.setattr(processes, "_LOOK", 0.05)
    monkeypatch.setattr(processes, "_gather", kill_one)
    with pytest.raises(NaviError, match=r"process 1: it ended with exit code -9"):
        train_together(small(rows=8, total_steps=10**9), 2)
    assert len(ended) == 2 and not any(member.is_alive() for member in ended)


def test_the_cause_of_a_failure_is_told_and_not_its_consequence():
    """Two members in threads; the second cannot begin, and the first waits for it."""
    barrier, said, shape = threading.Barrier(2), queue.Queue(), (2, FastPPO(small()).network.params.size)
    memory = SharedMemory(create=True, size=4 * math.prod(shape))
    try:
        configs = small(), small().model_copy(update={"task": "cart_poles"})
        members = [
            threading.Thread(target=processes._member, args=(config, rank, shape, memory.name, barrier, said))
            for rank, config in enumerate(configs)
        ]
        for member in members:
            member.start()
        for member in members:
            member.join()
    finally:
        memory.close()
        memory.unlink()
    found = [said.get(), said.get()]
    for order in (found, found[::-1]):
        assert processes._failure(order).startswith("process 1: ConfigError")
    assert processes._failure([(0, processes._LEFT)]) == "process 0: left alone"
    assert processes._failure([(0, object()), (1, object())]) is None


def test_what_the_fast_path_cannot_do_is_refused():
    with pytest.raises(ConfigError, match="continuous"):
        open_rows("pendulum", 2, 0, {})
    with pytest.raises(ConfigError, match="allowed"):
        open_rows("cart_poles", 2, 0, {})
    with pytest.raises(ConfigError, match=r"normalise_observations.*navi train"):
        open_rows("acrobot", 2, 0, {"normalise_observations": True})
    for changes in ({"minibatch": 0}, {"hidden": (8, 0)}):
        with pytest.raises(ConfigError, match=next(iter(changes))):
            small(**changes)
    trainer = FastPPO(small())
    trainer.network.params[0] = np.nan
    trainer.collect()
    with pytest.raises(NonFiniteError, match="learning_rate"):
        trainer.update()
