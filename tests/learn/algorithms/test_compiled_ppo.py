"""The compiled path of small memoryless networks beside its slow twin in torch."""

import json
import logging
import math

import numpy as np
import pytest
import torch

from navi_core.config import TrainConfig, parse_config
from navi_core.learn import Collector, PPOLearner, train
from navi_core.learn.algorithms.compiled_ppo import (
    CompiledCollector,
    CompiledPPOLearner,
    draw_actions,
    ppo_gradient,
    runs_compiled,
)
from navi_core.learn.estimators.losses import policy_loss, value_loss
from navi_core.models import load_checkpoint
from navi_core.policy import RewardShaper, build_policy
from navi_core.policy.distributions import Categorical
from navi_core.record import RunDirectory
from navi_core.tasks import reference_task
from navi_core.tasks.classic_control import NativeStep
from tests.learn.builders import filled, weights
from tests.learn.run.test_train_loop import rows_in, same_weights, stopper, untimed

CPU = torch.device("cpu")


def make(**changes) -> TrainConfig:
    data = {
        "task": "cart_pole",
        "task_options": {"masked": False},
        "actors": 8,
        "device": "cpu",
        "threads": 1,
        "total_steps": 8 * 32 * 4,
        "checkpoint_every": 8 * 32 * 2,
        "policy": {"core": "none", "aux": "off", "width": 16},
        "shaper": {"rnd_start": 0.0, "rnd_end": 0.0, "loop_coefficient": 0.0},
        "ppo": {"rollout": 32, "bptt": 4, "minibatch": 16, "learning_rate": 1e-3},
    }
    for key, value in changes.items():
        data[key] = data.get(key, {}) | value if isinstance(value, dict) and key != "task_options" else value
    return parse_config(TrainConfig, data)


def parts(config: TrainConfig, compiled: bool):
    env = reference_task(config.task, config.actors, config.seed, **config.task_options)
    policy = build_policy(config.policy, 3, env.spaces)
    shaper = RewardShaper(config.shaper, config.actors, config.policy.width, 0)
    collector, learner = (CompiledCollector, CompiledPPOLearner) if compiled else (Collector, PPOLearner)
    return collector(env, policy, shaper, config, device=CPU), learner(policy, shaper, config, CPU)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"task_options": {}, "ppo": {"value_clip": 0.1, "clip": 0.02, "microbatch": 5, "bptt": 1}},
        {"task": "acrobot", "task_options": {}, "ppo": {"order": "advantage", "rho_clip": 1.0, "c_clip": 1.0}},
        {"shaper": {"rnd_start": 1.0, "rnd_end": 0.1, "loop_coefficient": 0.5, "memory_exclusion": 2}},
        {"policy": {"core": "mingru"}, "task_options": {}},
        {"policy": {"core": "mingru"}, "task": "acrobot", "task_options": {}, "ppo": {"bptt": 16, "microbatch": 3}},
        {"policy": {"core": "mingru"}, "task": "repeat_previous", "task_options": {}},
    ],
)
def test_compiled_and_torch_paths_agree(changes):
    config = make(**changes)
    (slow, torch_learner), (fast, compiled_learner) = parts(config, False), parts(config, True)
    for update in range(2):
        rollouts = filled(slow), filled(fast)
        assert torch.equal(*(r.actions for r in rollouts))
        assert all(torch.equal(*(getattr(r, name) for r in rollouts)) for name in ("terminated", "truncated"))
        for name in ("log_probs", "values", "rewards", "bootstrap_values", "episode_return", "episode_length"):
            torch.testing.assert_close(*(getattr(r, name) for r in rollouts), rtol=1e-4, atol=1e-5)
        one, other = (
            learner.update(rollout, index=update, steps=0).metrics
            for learner, rollout in zip((torch_learner, compiled_learner), rollouts)
        )
        assert one.keys() == other.keys()
        for name, value in one.items():
            assert other[name] == pytest.approx(value, rel=2e-3, abs=1e-5), name
        for a, b in zip(weights(torch_learner), weights(compiled_learner)):
            torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-5)
    assert other["parity_ratio"] < 1e-4 and other["parity_value"] < 1e-4


def test_compiled_loss_and_gradient_equal_autograd():
    random = torch.Generator().manual_seed(3)
    logits, old_values, returns = (torch.randn(40, n, generator=random) for n in (3, 1, 1))
    values, advantages = old_values + 0.3 * torch.randn(40, 1, generator=random), torch.randn(40, generator=random)
    actions = torch.randint(0, 3, (40,), generator=random)
    old = -1.0 + 0.2 * torch.randn(40, generator=random)
    d_logits, d_values, ratios = torch.empty(40, 3), torch.empty(40, 1), torch.empty(40)
    statistics, peaks = np.zeros(5), np.zeros(2)
    seen = (logits, values, actions.float(), old, old_values[:, 0], advantages, returns[:, 0])
    ppo_gradient(
        *(x.numpy() for x in seen), 0.2, 0.03, 0.5, 0.1, 0.25,
        d_logits.numpy(), d_values.numpy(), ratios.numpy(), statistics, peaks,
    )  # fmt: skip
    x, v = (y.double().requires_grad_() for y in (logits, values))
    log_p = x.log_softmax(1)
    log_ratio = log_p[torch.arange(40), actions] - old.double()
    actor, critic = policy_loss(log_ratio, advantages.double(), 0.2), value_loss(v, returns, old_values, 0.1)
    entropy = -(log_p.exp() * log_p).sum(1).mean()
    ((actor + 0.5 * critic - 0.03 * entropy) * 0.25).backward()
    torch.testing.assert_close(d_logits.double(), x.grad, rtol=1e-5, atol=1e-8)
    torch.testing.assert_close(d_values.double(), v.grad, rtol=1e-5, atol=1e-8)
    ratio = log_ratio.exp().detach()
    expected = (actor, critic, entropy, (ratio - 1 - log_ratio).mean(), ((ratio - 1).abs() > 0.2).double().mean())
    assert (statistics / 40).tolist() == pytest.approx([y.item() for y in expected], rel=1e-5)
    assert peaks.tolist() == pytest.approx([float((ratio - 1).abs().max()), float((values - old_values).abs().max())])
    torch.testing.assert_close(ratios.double(), ratio, rtol=1e-5, atol=0)


def test_compiled_action_draws_equal_the_distribution():
    logits, noise = torch.log(torch.tensor([[0.2, 0.5, 0.3]])).expand(20_000, 3).contiguous(), torch.randn(20_000, 1)
    actions, log_probs = torch.empty(20_000), torch.empty(20_000)
    draw_actions(logits.numpy(), noise[:, 0].numpy(), actions.numpy(), log_probs.numpy())
    twin = Categorical(logits, torch.arange(3.0)[:, None])
    assert torch.equal(actions, twin.sample(noise)[:, 0])
    torch.testing.assert_close(log_probs, twin.log_prob(actions[:, None]))


@pytest.mark.parametrize(("task", "options"), [("cart_pole", {}), ("cart_pole", {"masked": False}), ("acrobot", {})])
def test_native_task_step_equals_the_reference_task(task, options):
    fast, slow = (reference_task(task, 5, 3, first_row=2, **options) for _ in range(2))
    step, random, ends = NativeStep(fast), torch.Generator().manual_seed(0), 0
    for decision in range(520):
        actions = torch.randint(0, len(slow.spaces.choices), (5, 1), generator=random).float()
        one, other = step(actions), slow.step(actions)
        done = other.terminated | other.truncated
        for name in ("reward", "terminated", "truncated"):
            assert torch.equal(getattr(one, name), getattr(other, name))
        assert torch.equal(one.info["episode_return"], other.info["episode_return"])
        assert torch.equal(one.info["episode_length"], other.info["episode_length"])
        torch.testing.assert_close(one.obs, other.obs, rtol=0, atol=1e-6)
        torch.testing.assert_close(one.final_obs, other.final_obs, rtol=0, atol=1e-6)
        ends += int(done.sum())
        if decision == 100:
            fast.load_state_dict(fast.state_dict())
    assert ends > 4


def fly(root, config: TrainConfig, **options):
    with RunDirectory.open(root / "runs", asset="toy", partition="p", config=config) as run:
        env = reference_task(config.task, config.actors, config.seed, **config.task_options)
        result = train(config, run, env=env, log=run.metric_log(root / "outbox"), **options)
    return result, rows_in(root / "outbox")


def test_a_stopped_run_resumes_to_the_same_bits(tmp_path, caplog):
    caplog.set_level(logging.INFO, "navi.learn")
    config = make(early_stopping={"enabled": True, "eval_interval": 256}, ppo={"normalise_rewards": True})
    straight, rows = fly(tmp_path / "straight", config)
    assert "compiled path" in caplog.text
    stopped, _ = fly(tmp_path / "parts", config, **stopper(3))
    assert stopped.steps == 768
    resumed, parts_rows = fly(tmp_path / "parts", config)
    assert (resumed.resumed_from, resumed.steps) == (768, 1024)
    assert same_weights(straight.checkpoint, resumed.checkpoint)
    assert json.dumps(sorted(untimed(rows).items())) == json.dumps(sorted(untimed(parts_rows).items()))


def test_killed_run_resumes_to_the_same_bits(tmp_path):
    config = make()
    straight, rows = fly(tmp_path / "straight", config)
    stopped, _ = fly(tmp_path / "parts", config, **stopper(3))
    stopped.checkpoint.unlink()  # SIGKILL leaves the checkpoint of step 512 alone, and the rows until 768
    resumed, parts_rows = fly(tmp_path / "parts", config)
    assert (resumed.resumed_from, resumed.steps) == (512, 1024)
    assert same_weights(straight.checkpoint, resumed.checkpoint) and untimed(rows) == untimed(parts_rows)


def test_torch_run_resumes_a_compiled_checkpoint(tmp_path, monkeypatch):
    config = make()
    stopped, _ = fly(tmp_path, config, **stopper(2))
    moments = load_checkpoint(stopped.checkpoint).optimizer_state["state"]
    assert len(moments) == 12 and all(math.isfinite(float(m["exp_avg"].sum())) for m in moments.values())
    monkeypatch.setattr("navi_core.learn.run.loop.runs_compiled", lambda *_: False)
    resumed, rows = fly(tmp_path, config)
    assert resumed.resumed_from == 512 and resumed.steps == 1024
    assert rows[768, "parity_ratio"] < 1e-4


@pytest.mark.parametrize(
    ("changes", "compiled"),
    [
        ({}, True),
        ({"task_options": {}}, True),
        ({"task": "acrobot", "task_options": {}}, True),
        ({"task": "repeat_previous", "task_options": {}, "policy": {"core": "mingru"}}, True),
        ({"task": "pendulum", "task_options": {}}, False),
        ({"policy": {"core": "gru"}}, False),
        ({"policy": {"aux": "full"}}, False),
        ({"policy": {"separate_value": True}}, False),
        ({"policy": {"width": 512}}, False),
        ({"precision": "bf16"}, False),
        ({"execution": "compile"}, False),
        ({"algorithm": "grpo"}, False),
    ],
)
def test_configuration_selects_the_compiled_path(changes, compiled):
    config = make(**changes)
    env = reference_task(config.task, 2, 0, **config.task_options)
    assert runs_compiled(config, build_policy(config.policy, 0, env.spaces), env, CPU) is compiled


@pytest.mark.slow
def test_cart_pole_is_learned(tmp_path):
    config = make(
        actors=64, total_steps=120_000, checkpoint_every=50_000, policy={"width": 64},
        ppo={"bptt": 1, "minibatch": 256, "epochs": 10, "gamma": 0.98, "gae_lambda": 0.8, "target_kl": None},
    )  # fmt: skip
    result, _ = fly(tmp_path, config)
    assert result.metrics["episode_return"] > 400
