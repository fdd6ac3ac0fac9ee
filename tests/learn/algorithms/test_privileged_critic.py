"""Privileged critic: its inputs are true, the actor has none of them, acting equals updating."""

import pytest
import torch

from navi_core.config import PolicyConfig, TrainConfig, parse_config
from navi_core.config.policy import Spaces
from navi_core.errors import ConfigError
from navi_core.policy import build_policy
from navi_core.presets import resolve_config
from navi_core.world import Field, NavigationEnv
from tests.learn.builders import filled, small_config, small_parts

ROWS, AUX = 3, 3
TOLD = dict(encoder="ring_cnn", core="gru", azimuth_bins=16, elevation_bins=8, privileged_critic=True)


@pytest.fixture(scope="module")
def flown(apartments):
    """A collector, its learner and a rollout of short episodes in two scenes."""
    config = small_config(rows=ROWS, env={"max_steps": 12, "episodes_per_scene": 1}, policy=TOLD)
    env = NavigationEnv(Field(apartments), ROWS, config.env, 0)
    collector, learner = small_parts(config, env)
    heard = [collector.aux[:, AUX:].clone()]
    counted, gains, step = [env.progress()], [], env.step

    def listening(actions):
        batch = step(actions)
        gains.append(batch.info["reward_terms"]["view_gain"].clone())
        counted.append(env.progress())
        return batch

    collector._fly = listening
    rollout = filled(collector)
    heard += [*rollout.aux[1:, :, AUX:], collector.aux[:, AUX:]]
    return collector, learner, rollout, heard, counted, gains


def test_privileged_inputs_equal_environment_counts(flown):
    _, _, rollout, heard, counted, _ = flown
    assert rollout.truncated.sum() >= ROWS and rollout.aux.shape[-1] == 6
    for reported, truth in zip(heard, counted, strict=True):
        torch.testing.assert_close(reported, truth, rtol=0, atol=1e-4)


def test_remaining_floor_shrinks_by_view_gain(flown):
    _, _, rollout, _, counted, gains = flown
    for before, gain, after, done in zip(counted, gains, counted[1:], rollout.truncated, strict=False):
        torch.testing.assert_close((before[:, 0] - gain)[~done], after[~done, 0], rtol=0, atol=1e-4)
        assert (after[done, 2] == 0).all() and (after[~done, 2] == before[~done, 2] + 1).all()


def test_privileged_inputs_hold_remaining_goal_path(apartments):
    env_config = {"max_steps": 12, "episodes_per_scene": 1, "task": "point_goal", "reward": {"preset": "point_goal"}}
    config = small_config(rows=ROWS, env=env_config, policy=TOLD)
    env = NavigationEnv(Field(apartments), ROWS, config.env, 0)
    collector, learner = small_parts(config, env)
    public = config.policy.aux_inputs
    heard, counted, step = [collector.aux[:, public:].clone()], [env.progress()], env.step

    def listening(actions):
        batch = step(actions)
        counted.append(env.progress())
        return batch

    collector._fly = listening
    rollout = filled(collector)
    heard += [*rollout.aux[1:, :, public:], collector.aux[:, public:]]
    for reported, truth in zip(heard, counted, strict=True):
        torch.testing.assert_close(reported, truth, rtol=0, atol=1e-4)
    begun = rollout.reset
    assert begun.any() and (rollout.aux[begun][:, public] >= config.env.goal.min_distance).all()
    state = env.state_dict()
    state["position"] = env.goals.of(env.counters["scene"])
    env.load_state_dict(state)
    assert env.progress()[:, 1].tolist() == [1.0] * ROWS
    metrics = learner.update(rollout, index=0, steps=0).metrics
    assert metrics["parity_ratio"] < 1e-4 and metrics["parity_value"] < 1e-4


def test_acting_and_updating_have_the_same_privileged_inputs(flown):
    _, learner, rollout, *_ = flown
    metrics = learner.update(rollout, index=0, steps=0).metrics
    assert metrics["parity_ratio"] < 1e-4 and metrics["parity_value"] < 1e-4


def test_privileged_inputs_reach_the_critic_alone():
    policy = build_policy(parse_config(PolicyConfig, TOLD))
    obs, reset = torch.rand(2, 3, 16, 8), torch.zeros(2, dtype=torch.bool)
    state = policy.initial_state(2)

    def act(*reported):
        columns = [torch.zeros(2, AUX)] + [torch.tensor(reported).expand(2, -1)] * bool(reported)
        return policy.act(obs, torch.cat(columns, dim=1), state, reset, None)

    alone, nothing_left, much_left = act(), act(0.0, 0.0, 0.0), act(80.0, 0.9, 5.0)
    assert torch.equal(alone.action, much_left.action) and torch.equal(alone.embedding, much_left.embedding)
    assert torch.equal(alone.value, nothing_left.value) and (alone.value != much_left.value).all()


def test_privileged_critic_needs_floor_and_critic_head():
    task = build_policy(parse_config(PolicyConfig, TOLD), spaces=Spaces(observation=2))
    assert task.heads.critic[0].in_features == task.config.width
    with pytest.raises(ConfigError, match="privileged_critic"):
        parse_config(PolicyConfig, {"distribution": "q", "privileged_critic": True})


@pytest.mark.parametrize("setting", ["privileged_critic", "separate_value", "stop_value_gradient"])
def test_critic_settings_are_refused_for_dqn(setting):
    with pytest.raises(ConfigError, match=setting):
        parse_config(TrainConfig, {"algorithm": "dqn", "policy": {setting: True}})
    assert parse_config(TrainConfig, {"algorithm": "dqn", "policy": {"patch": 16}}).policy.distribution == "q"


def test_dqn_ignores_privileged_critic_of_a_preset(tmp_path):
    for preset in ("rooms", "rooms_standard"):
        assert resolve_config(preset=preset, environ={}).policy.privileged_critic
        made = resolve_config(preset=preset, environ={}, flags={"algorithm": "dqn"})
        assert not made.policy.privileged_critic and made.policy.place_memory
    own = tmp_path / "own.yaml"
    own.write_text("policy: {privileged_critic: true}\n")
    for asked in ({"preset": str(own)}, {"preset": "rooms", "assignments": ["policy.privileged_critic=true"]}):
        with pytest.raises(ConfigError, match=r"no critic; leave out policy\.privileged_critic"):
            resolve_config(environ={}, flags={"algorithm": "dqn"}, **asked)
