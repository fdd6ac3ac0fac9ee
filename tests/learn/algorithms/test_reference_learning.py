"""Learning on reference tasks with the parts of a run: shapes, parity, and the effect of lost state."""

from types import SimpleNamespace

import pytest
import torch

from navi_core.bench.learning.memory import (
    MEMORY_CASES,
    MemoryCase,
    case_config,
    exact_ratio,
    final_returns,
    run_memory,
)
from navi_core.config import EvalConfig
from navi_core.errors import CheckpointError
from navi_core.evaluate.flight.subjects import resolve_subject
from navi_core.learn import Collector, PPOLearner, train
from navi_core.policy import NavigationPolicy, RewardShaper, build_policy
from navi_core.record import RunDirectory
from navi_core.record.events import EventBus, UpdateMade
from navi_core.tasks import reference_task
from tests.learn.builders import filled, small_config, weights


@pytest.mark.parametrize("core", ["gru", "mamba2"])
@pytest.mark.parametrize("name", ["repeat_previous", "cart_pole", "pendulum"])
def test_reference_tasks_run_through_collector_and_update(name, core):
    case = MemoryCase(name, core, 10_000, 1.0)
    config = case_config(case, 0)
    env = reference_task(name, config.actors, 0)
    policy = build_policy(config.policy, 0, env.spaces)
    shaper = RewardShaper(config.shaper, config.actors, config.policy.width, 0)
    collector = Collector(env, policy, shaper, config, device=torch.device("cpu"))
    learner = PPOLearner(policy, shaper, config, torch.device("cpu"))
    before = weights(learner)
    rollout = filled(collector)
    if env.spaces.choices:
        assert set(rollout.actions.unique().tolist()) <= {choice[0] for choice in env.spaces.choices}
    metrics = learner.update(rollout, index=0, steps=0).metrics
    assert metrics["parity_ratio"] < 1e-4 and metrics["parity_value"] < 1e-4
    assert any(not torch.equal(a, b) for a, b in zip(before, weights(learner)))


@pytest.mark.slow
def test_sharp_policy_rounding_differs_from_a_lost_state(monkeypatch):
    """Sharp logits show single precision; in double precision only a fault of the state is left."""
    case = MemoryCase("repeat_previous", "mamba2", 10_000, 1.0, policy=(("core_layers", 2),))
    config = case_config(case, 0)
    env = reference_task("repeat_previous", config.actors, 0)
    policy = build_policy(config.policy, 0, env.spaces)
    with torch.no_grad():
        policy.heads.actor[-1].weight.mul_(3e4)
    shaper = RewardShaper(config.shaper, config.actors, config.policy.width, 0)
    collector = Collector(env, policy, shaper, config, device=torch.device("cpu"))
    rollout = filled(collector)
    assert rollout.reset[1:].any() and exact_ratio(policy, rollout) < 1e-9
    forgets = lambda self, obs, aux, state, reset: sequence(self, obs, aux, state, torch.zeros_like(reset))  # noqa: E731
    with monkeypatch.context() as patch:
        sequence = NavigationPolicy.sequence
        patch.setattr(NavigationPolicy, "sequence", forgets)
        assert exact_ratio(policy, rollout) > 1e-3
    learner = PPOLearner(policy, shaper, config, torch.device("cpu"))
    assert learner.update(rollout, index=0, steps=0).metrics["parity_ratio"] > 1e-5


def test_reference_task_trains_and_resumes_in_the_run_loop(tmp_path):
    config = small_config(rows=4, total_steps=4 * 32 * 3, checkpoint_every=4 * 32, task="repeat_previous")
    made = []
    for stop_after in (1, 99):
        seen = []
        with RunDirectory.open(tmp_path / "runs", asset="task", partition="p", config=config) as run:
            log = run.metric_log(tmp_path / "outbox")
            env = reference_task("repeat_previous", 4, 0)
            stop = lambda: len(seen) >= stop_after  # noqa: E731, B023
            made.append(train(config, run, env=env, log=log, events=EventBus({UpdateMade: seen.append}), stop=stop))
    assert made[1].resumed_from == 128 and made[1].steps == 384
    with pytest.raises(CheckpointError, match="learned the task repeat_previous and has no sight of scenes"):
        resolve_subject(made[1].checkpoint, EvalConfig())


def test_sequence_length_is_at_least_twice_the_lag():
    for group, lag in (("lag_7", 7), ("lag_15", 15), ("repeat_previous", 3)):
        for case in MEMORY_CASES[group]:
            assert dict(case.options).get("k", 4) - 1 == lag
            assert case_config(case, 0).ppo.bptt >= 2 * lag
    assert all(case_config(case, 0).ppo.bptt == 51 for case in MEMORY_CASES["repeat_first"])


class FirstSuit:
    """Remembers the first card of an episode, and is wrong without the reset flag."""

    def initial_state(self, rows):
        return (torch.full((rows,), -1.0),)

    def act(self, obs, aux, state, reset, noise):
        assert noise is None
        kept = torch.where(reset, obs.argmax(1).float(), state[0])
        return SimpleNamespace(action=kept[:, None], state=(kept,))


def test_final_returns_cover_one_episode_a_row():
    returns = final_returns(FirstSuit(), MemoryCase("repeat_first", "gru", 0, 1.0), 0)
    assert returns.shape == (128,) and torch.allclose(returns, torch.ones(128), atol=1e-5)
    pushes = final_returns(FirstSuit(), MemoryCase("cart_pole", "gru", 0, 1.0), 0)
    assert pushes.min() >= 8 and pushes.max() <= 12, "a cart pushed one way falls, and what comes after does not count"


def test_a_run_ends_at_its_target_or_goes_on_as_asked():
    # Ten updates decide; whatever is earned in them reaches this target.
    easy = MemoryCase("cart_pole", "gru", 16 * 16 * 14, 5.0, ppo=(("rollout", 16), ("epochs", 1)), rows=16)
    ended, gone_on = (next(run_memory([easy], [0], until_solved=until)) for until in (True, False))
    assert ended["solved_at"] == gone_on["solved_at"] == ended["steps"] < gone_on["steps"] == easy.steps
    assert ended["kept"] != gone_on["kept"]


@pytest.mark.slow
def test_carried_state_learns_and_memoryless_does_not():
    cases = {c.handling: c for c in MEMORY_CASES["repeat_previous"] if c.core == "mamba2"}
    carried = next(run_memory([cases["carried"]], [0]))
    assert carried["solved_at"] is not None and carried["solved_at"] <= 150_000 and carried["first_ratio"] < 1e-4
    short = MemoryCase("repeat_previous", "mamba2", 60_000, 0.9, "memoryless")
    assert next(run_memory([short], [0]))["best"] <= -0.3
    zero = next(run_memory([MemoryCase("repeat_previous", "mamba2", 20_000, 0.9, "zero_state")], [0]))
    assert zero["first_ratio"] > 1e-2
