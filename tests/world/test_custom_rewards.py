"""Custom reward terms: added to the reward by every way of stepping, and named in errors."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path

import pytest
import torch

from navi_core.config import EnvConfig, EvalConfig, RewardConfig, parse_config
from navi_core.config.world import REWARD_NAMES
from navi_core.errors import ConfigError, NonFiniteError
from navi_core.evaluate import evaluate
from navi_core.learn import train
from navi_core.models import load_checkpoint
from navi_core.presets import load_preset
from navi_core.record import RunDirectory
from navi_core.world import Field, NavigationEnv, register_reward
from navi_core.world.rewards import REWARDS
from tests.own_parts import forgotten

OWN = "\n".join((Path(__file__).parents[2] / f"examples/{name}.py").read_text() for name in ("reward", "metric"))
SMALL = {"azimuth_bins": 32, "elevation_bins": 8}


@pytest.fixture(autouse=True)
def _forgotten(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    yield from forgotten(monkeypatch, REWARDS)


def env_of(scene, weights, rows=4, **options):
    settings = {key: options.pop(key) for key in ("task", "max_steps") if key in options}
    preset = "point_goal" if settings.get("task") == "point_goal" else "explore"
    config = EnvConfig(**SMALL, **settings, reward=RewardConfig(preset=preset, weights=weights), stagger=False)
    return NavigationEnv(Field([scene]), rows, config, seed=5, **options)


def actions(step, rows=4):
    return torch.rand(rows, 4, generator=torch.Generator().manual_seed(step)) * 3 - 1


@pytest.fixture
def terms():
    register_reward("haste", lambda config: lambda batch, action: batch.info["speed"] / config.dynamics.max_speed[0])
    register_reward("ahead", lambda config: lambda batch, action: action[:, 0])


@pytest.mark.parametrize("task", ["explore", "point_goal"])
@pytest.mark.parametrize("tensor_only", [False, True])
def test_custom_rewards_add_to_reward_and_episode_return(box_scene, terms, task, tensor_only):
    options = {"task": task, "max_steps": 6, "tensor_only": tensor_only}
    plain, env = env_of(box_scene, {}, **options), env_of(box_scene, {"haste": -0.5, "ahead": 0.25}, **options)
    summed = torch.zeros(4)
    for step in range(14):
        action = actions(step)
        without, batch = plain.step(action), env.step(action)
        own = -0.5 * without.info["speed"] / 5.0 + 0.25 * action[:, 0].clamp(-1, 1)
        assert torch.allclose(batch.reward, without.reward + own, atol=1e-6)
        assert torch.equal(batch.obs, without.obs)
        assert torch.equal(batch.truncated, without.truncated)
        assert torch.equal(batch.info["reward_terms"]["ahead"], action[:, 0].clamp(-1, 1))
        summed += batch.reward
        assert torch.allclose(batch.info["episode_return"], summed, atol=1e-5)
        summed[batch.truncated | batch.terminated] = 0.0


def test_custom_rewards_match_in_partial_steps_and_copies(box_scene, terms):
    weights = {"haste": -0.5, "ahead": 0.25}
    whole, parts = env_of(box_scene, weights, max_steps=5), env_of(box_scene, weights, max_steps=5)
    for step in range(7):
        action = actions(step)
        twin, other = copy.deepcopy(whole), pickle.loads(pickle.dumps(whole)) if step == 3 else None
        batch = whole.step(action)
        for rows in ([2, 0], [3], [1]):
            some = parts.step_rows(torch.tensor(rows), action[rows])
            assert torch.equal(some.reward, batch.reward[rows])
            assert torch.equal(some.info["episode_return"], batch.info["episode_return"][rows])
        for env in (twin, other):
            if env is not None:
                assert torch.equal(env.step(action).info["episode_return"], batch.info["episode_return"])
    assert all(torch.equal(a, b) for a, b in zip(whole.state_dict().values(), parts.state_dict().values()))


def test_zero_weight_term_is_recorded_without_reward(box_scene, terms):
    plain, env = env_of(box_scene, {}), env_of(box_scene, {"haste": 0.0})
    without, batch = plain.step(actions(1)), env.step(actions(1))
    assert torch.equal(batch.reward, without.reward)
    assert batch.info["reward_terms"]["haste"].any()


@pytest.mark.parametrize(
    ("made", "error", "message"),
    [
        (lambda batch, action: 1.0, ConfigError, r"'odd' returned float, expected \(4,\): one a drone"),
        (lambda batch, action: action, ConfigError, r"'odd' returned a tensor \(4, 4\), expected \(4,\)"),
        (lambda batch, action: batch.reward.new_tensor([0, 1, torch.nan, 0]), NonFiniteError, "'odd' is nan in row 2"),
        (7, ConfigError, "built as int, which cannot be called"),
    ],
)
def test_invalid_reward_term_error_names_it(box_scene, made, error, message):
    register_reward("odd", lambda config: made)
    with pytest.raises(error, match=message):
        env_of(box_scene, {"odd": 1.0}).step(actions(0))


def test_reward_names_are_checked(terms):
    with pytest.raises(ConfigError, match=r"no reward term 'hast'; did you mean 'haste'\? allowed: .*NAVI_PLUGINS"):
        parse_config(EnvConfig, {"reward": {"weights": {"hast": 1.0}}})
    with pytest.raises(ConfigError, match="reward term 'collision' is taken"):
        register_reward("collision", lambda config: None)
    with pytest.raises(ConfigError, match="reward term 'haste' is taken"):
        register_reward("haste", dict)


@pytest.mark.parametrize("name", ["reward_mean", "sps", "entropy", "loop_penalty", "goal_success"])
def test_reward_term_named_like_a_metric_is_refused(box_scene, tmp_path, name):
    register_reward(name, lambda config: lambda batch, action: action[:, 0])
    small = {"policy": {"encoder": "ring_cnn", "core": "gru", **SMALL}, "total_steps": 8, "actors": 2}
    ppo = {"rollout": 4, "bptt": 4, "minibatch": 2, "epochs": 1}
    config = load_preset("quick", small | {"env": SMALL | {"reward": {"weights": {name: 0.1}}}, "ppo": ppo})
    env = NavigationEnv(Field([box_scene]), 2, config.env, config.seed)
    with (
        RunDirectory.open(tmp_path / "run", asset="own", partition="a", config=config) as directory,
        pytest.raises(ConfigError, match=f"reward term '{name}' has the name of another metric; register it under"),
    ):
        train(config, directory, env=env)


def test_guide_reward_trains_and_evaluates_without_its_module(box_scene, tmp_path, monkeypatch):
    (tmp_path / "my_rewards.py").write_text(OWN)
    monkeypatch.setenv("NAVI_PLUGINS", "my_rewards")
    config = load_preset(
        "quick",
        {
            "total_steps": 64, "actors": 2, "policy": {"encoder": "ring_cnn", "core": "gru", **SMALL},
            "env": SMALL | {"reward": {"weights": {"haste": -0.1, "turning": 0.0}}},
            "ppo": {"rollout": 32, "bptt": 16, "minibatch": 16, "epochs": 1},
        },
    )  # fmt: skip
    env = NavigationEnv(Field([box_scene]), config.actors, config.env, config.seed)
    with RunDirectory.open(tmp_path / "run", asset="own", partition="a", config=config) as directory:
        result = train(config, directory, env=env)
    reported = result.metrics
    paid = reported["view_gain"] + reported["collision"] - 0.1 * reported["haste"] + config.shaper.existential_tax
    assert 0 < reported["haste"] < 1 and 0 < reported["turning"] <= 1
    assert reported["reward_mean"] == pytest.approx(paid, abs=1e-5)
    monkeypatch.delenv("NAVI_PLUGINS")
    REWARD_NAMES._custom.clear()
    for name in ("haste", "turning"):
        del REWARDS._builders[name]
    evaluate(result.checkpoint, [box_scene], EvalConfig(starts=1, max_steps=5))
    kept = load_checkpoint(result.checkpoint).train_config().env
    with pytest.raises(ConfigError, match=r"no reward term 'haste'; .*NAVI_PLUGINS"):
        NavigationEnv(Field([box_scene]), 1, kept)
