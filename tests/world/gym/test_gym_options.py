"""Gymnasium environments: start and goal options, autoreset modes, and copies."""

from __future__ import annotations

import copy
import pickle
import warnings

import numpy as np
import pytest
import torch

gymnasium = pytest.importorskip("gymnasium")

from gymnasium.utils.env_checker import check_env  # noqa: E402
from gymnasium.vector import AutoresetMode  # noqa: E402

import navi_core.world.gym_adapter as adapter  # noqa: E402
from navi_core.config import EnvConfig  # noqa: E402
from navi_core.errors import ConfigError, NaviError  # noqa: E402
from navi_core.world import Field, NavigationEnv  # noqa: E402

SMALL = {"azimuth_bins": 16, "elevation_bins": 6, "max_steps": 5, "stagger": False}
GOALS = SMALL | {"goal": {"per_scene": 3}}


@pytest.fixture(scope="module")
def one(apartments):
    return gymnasium.make(adapter.ENV_ID, scenes=apartments, config=SMALL | {"max_steps": 50})


@pytest.fixture(scope="module")
def goal_env(apartments):
    return gymnasium.make(adapter.GOAL_ENV_ID, scenes=apartments, config=GOALS | {"max_steps": 400})


def batch(apartments, rows: int = 3, name: str = adapter.ENV_ID, config=SMALL, **arguments):
    return gymnasium.make_vec(name, num_envs=rows, scenes=apartments, config=config, **arguments)


def test_reset_options_set_start_pose_of_one_episode(one, apartments) -> None:
    drawn, info = one.reset(seed=4)
    with pytest.raises(ConfigError, match="is not in the reachable space of scene 0, 'apartment_0000'"):
        one.reset(options={"position": info["position"] + [0.0, 50.0, 0.0]})
    _, second = one.reset(seed=4, options={"scene": 1})
    assert second["scene_index"] == 1
    place = second["position"] + np.float32([0.0, 0.05, 0.0])
    there = {"scene": apartments[1].name, "position": place, "yaw": 1.0}
    obs, info = one.reset(seed=4, options=there)
    assert info["scene_index"] == 1
    assert np.array_equal(info["position"], there["position"])
    assert info["yaw"] == pytest.approx(1.0)
    again, _ = one.reset(options=there)
    assert np.array_equal(obs, again)
    env = one.unwrapped.env
    assert np.array_equal(obs, env.observe().numpy()[0])
    assert float(env._drone_state["velocity"].abs().sum()) == 0.0
    assert not np.array_equal(one.reset()[1]["position"], there["position"])
    assert np.array_equal(one.reset(seed=4)[0], drawn)


def test_explicit_start_pose_flies_like_the_drawn_spawn(one) -> None:
    """A drawn and an explicit start pose give the same state."""
    _, info = one.reset(seed=9)
    flown = [one.step(np.float32([0.4, 0, 0, 0.2])) for _ in range(6)]
    one.reset(seed=9, options={name: info[name] for name in ("position", "yaw")} | {"scene": info["scene_index"]})
    for obs, reward, *_, reported in flown:
        got = one.step(np.float32([0.4, 0, 0, 0.2]))
        assert np.array_equal(got[0], obs)
        assert got[1] == reward
        assert got[4]["reward_terms"] == reported["reward_terms"]


@pytest.mark.parametrize(
    "options",
    [
        {"pose": 1},
        {"scene": 2},
        {"scene": -1},
        {"scene": 2**63},
        {"scene": "castle"},
        {"scene": 0.5},
        {"scene": True},
        {"position": (0, 1)},
        {"position": "here"},
        {"position": (np.nan, 0, 0)},
        {"yaw": np.inf},
        {"yaw": None, "goal": (0, 0, 0)},
        {"reset_mask": np.ones(1, bool)},
        5,
    ],
)
def test_refused_reset_options_begin_no_episode(one, options) -> None:
    _, before = one.reset(seed=2)
    with pytest.raises(NaviError):
        one.reset(options=options)
    one.step(np.zeros(4, np.float32))
    plain = one.unwrapped.env.poses()["position"][0].numpy()
    assert np.allclose(plain, before["position"], atol=0.2)


def test_refused_goal_leaves_state_unchanged(goal_env) -> None:
    goal_env.reset(seed=1)
    goal_env.step(np.float32([1, 0, 0, 0]))
    env = goal_env.unwrapped.env
    before = env.state_dict()
    for seed in (None, 7):
        with pytest.raises(ConfigError, match=r"goal .* reachable space of scene 0, 'apartment_0000'"):
            goal_env.reset(seed=seed, options={"goal": (1e3, 0, 0)})
        assert all(np.array_equal(before[name], value) for name, value in env.state_dict().items())


def test_custom_goal_ends_the_episode_when_reached(goal_env) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", message=".*(infinity|Box observation space).*")
        check_env(goal_env.unwrapped)
    obs, info = goal_env.reset(seed=3)
    assert goal_env.observation_space.contains(obs)
    assert set(obs) == {"view", "goal"}
    start = info["position"]
    obs, _ = goal_env.reset(seed=3, options={"position": start, "goal": start + np.float32([0, 0, 0.05])})
    assert obs["goal"][0] == pytest.approx(np.log1p(0.05), abs=1e-3)
    obs, reward, terminated, truncated, info = goal_env.step(np.zeros(4, np.float32))
    assert terminated
    assert not truncated
    assert info["success"]
    assert reward > 5
    assert info["reward_terms"]["goal_success"] == 10.0
    assert goal_env.observation_space.contains(obs)
    with pytest.raises(ConfigError, match="has ended; call reset"):
        goal_env.step(np.zeros(4, np.float32))
    _, info = goal_env.reset()
    assert not goal_env.step(np.zeros(4, np.float32))[4]["success"]


def test_drawn_goal_keeps_min_distance_from_start(goal_env) -> None:
    env, drawn = goal_env.unwrapped.env, set()
    place = env.goals._place[0].numpy()
    for seed in range(12):
        obs, _ = goal_env.reset(seed=seed, options={"scene": 0, "position": place})
        drawn.add(int(env.goals.index[0]))
        assert float(env.goals.way[0]) >= env.config.goal.min_distance
        assert obs["goal"][0] > 0
    assert 0 not in drawn
    assert len(drawn) == 2


def test_reset_options_apply_per_row(apartments) -> None:
    envs = batch(apartments, name=adapter.GOAL_ENV_ID, config=GOALS)
    obs, info = envs.reset(seed=1, options={"scene": [1, 0, 1], "yaw": 0.5})
    assert info["scene_index"].tolist() == [1, 0, 1]
    assert np.allclose(info["yaw"], 0.5)
    goals = info["position"] + np.float32([0, 0.1, 0])
    obs, _ = envs.reset(options={"position": info["position"], "scene": [1, 0, 1], "goal": goals})
    assert envs.observation_space.contains(obs)
    assert np.allclose(obs["goal"], [[0, 0, 0, 0.1]] * 3, atol=1e-5)
    obs, reward, terminated, _, info = envs.step(np.zeros((3, 4)))
    assert terminated.all()
    assert info["final_info"]["success"].all()
    assert (reward > 5).all()
    assert np.allclose(info["final_obs"][1]["goal"], [0, 0, 0, 0.1], atol=1e-5)
    assert envs.observation_space.contains(obs)
    assert (obs["goal"][:, 0] > 0.5).all()


def test_reset_seed_overrides_constructor_seed(apartments) -> None:
    flights = []
    for arguments in ({}, {}, {"seed": 9}):
        env = gymnasium.make(adapter.GOAL_ENV_ID, scenes=apartments[:1], config=GOALS, **arguments)
        flights.append(env.reset(seed=11)[0]["goal"])
    assert np.array_equal(flights[0], flights[1])
    assert np.array_equal(flights[0], flights[2])


def test_next_step_autoreset_delays_rows_by_one_step(apartments) -> None:
    """An ended row returns its last observation, and the next episode's first one step later, for any action."""
    mine = batch(apartments, autoreset_mode=AutoresetMode.NEXT_STEP, config=SMALL | {"stagger": True})
    same = batch(apartments, config=SMALL | {"stagger": True})
    assert mine.metadata["autoreset_mode"] is AutoresetMode.NEXT_STEP
    assert same.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP
    mine.reset(seed=6)
    same.reset(seed=6)
    rng, waits, ends = np.random.default_rng(0), np.zeros(3, bool), 0
    first = np.zeros((3, *mine.single_observation_space.shape), np.float32)
    queue: list[list] = [[], [], []]
    for _ in range(25):
        action = rng.uniform(-1, 1, (3, 4)).astype(np.float32)
        obs, reward, _, truncated, info = mine.step(action)
        for row in range(3):
            if waits[row]:
                assert reward[row] == 0
                assert not truncated[row]
                assert not info["_speed"][row]
                assert np.array_equal(obs[row], first[row])
            else:
                queue[row].append((action[row], obs[row], reward[row], truncated[row]))
        # Each row alone is the row that resets in the same step, less the steps in which it waits.
        while all(queue):
            heads = [pending.pop(0) for pending in queue]
            after, paid, _, over, reported = same.step(np.stack([head[0] for head in heads]))
            for row in range(3):
                shown = reported["final_obs"][row] if over[row] else after[row]
                assert np.array_equal(shown, heads[row][1])
                assert paid[row] == heads[row][2]
                assert over[row] == heads[row][3]
        first[truncated] = mine.unwrapped._next["view"][truncated]
        waits, ends = truncated.copy(), ends + int(truncated.sum())
    assert ends > 6
    gymnasium.wrappers.vector.NormalizeObservation(mine).reset()


def test_disabled_autoreset_waits_for_row_reset(apartments) -> None:
    envs = batch(apartments, autoreset_mode="Disabled", config=SMALL | {"stagger": True})
    envs.reset(seed=6)
    twin = batch(apartments, config=SMALL | {"stagger": True})
    twin.reset(seed=6)
    for _ in range(12):
        obs, _, _, truncated, _ = envs.step(np.zeros((3, 4)))
        after, _, _, over, info = twin.step(np.zeros((3, 4)))
        assert np.array_equal(truncated, over)
        if not truncated.any():
            continue
        assert all(np.array_equal(obs[row], info["final_obs"][row]) for row in np.flatnonzero(over))
        with pytest.raises(ConfigError, match="ended in rows"):
            envs.step(np.zeros((3, 4)))
        obs, info = envs.reset(options={"reset_mask": truncated})
        assert np.array_equal(obs, after)
        assert np.array_equal(info["_position"], truncated)
    with pytest.raises(ConfigError, match="reset_mask"):
        envs.reset(options={"reset_mask": np.zeros(3, bool)})
    with pytest.raises(ConfigError, match="reset_mask"):
        envs.reset(seed=1, options={"reset_mask": np.ones(3, bool)})
    with pytest.raises(ConfigError, match="autoreset_mode 'never'; allowed: 'NextStep', 'SameStep', 'Disabled'"):
        batch(apartments, autoreset_mode="never")


@pytest.mark.parametrize("name", [adapter.ENV_ID, adapter.GOAL_ENV_ID])
@pytest.mark.parametrize("copied", [copy.deepcopy, lambda env: pickle.loads(pickle.dumps(env))])
def test_copy_continues_like_the_original_independently(apartments, name, copied) -> None:
    sensor = {"dropout": 0.1, "delayed": True}
    envs = batch(apartments[:1], name=name, config=GOALS | {"sensor": sensor}, autoreset_mode="NextStep")
    wrapped = gymnasium.wrappers.vector.RecordEpisodeStatistics(envs)
    info = wrapped.reset(seed=3)[1]
    if name == adapter.GOAL_ENV_ID:
        wrapped.reset(seed=3, options={"goal": info["position"] + np.float32([0, 0.1, 0])})
    wrapped.step(np.full((3, 4), 0.3))
    twin = copied(wrapped)
    state = envs.unwrapped.env.state_dict()
    reported = [twin.step(np.full((3, 4), 0.3)) for _ in range(9)]
    if name == adapter.GOAL_ENV_ID:
        twin.reset(options={"goal": info["position"]})
    assert all(np.array_equal(value, state[key]) for key, value in envs.unwrapped.env.state_dict().items())
    for expected in reported:
        got = wrapped.step(np.full((3, 4), 0.3))
        for a, b in zip(got[:4], expected[:4]):
            for key in a if isinstance(a, dict) else [...]:
                assert np.array_equal(a[key], b[key])


def test_copy_keeps_added_attributes(apartments) -> None:
    env = NavigationEnv(Field(apartments[:1]), 2, EnvConfig(**SMALL), seed=1)
    env.mine = [1, 2]
    for twin in (copy.deepcopy(env), pickle.loads(pickle.dumps(env))):
        assert twin.mine == [1, 2]
        assert twin.mine is not env.mine
        assert twin.seed == 1


class Counted(NavigationEnv):
    """Sets state before the base class, and again where episodes begin."""

    def __init__(self, *arguments) -> None:
        self.unit = [2]
        super().__init__(*arguments)

    def reset(self, seed=None, *, episode=0):
        self.flown = torch.full((self.num_envs,), self.unit[0])
        return super().reset(seed, episode=episode)

    def step(self, actions):
        self.flown += self.unit[0]
        return super().step(actions)


def test_copy_keeps_state_set_by_custom_reset(apartments) -> None:
    env = Counted(Field(apartments[:1]), 2, EnvConfig(**SMALL), 1)
    env.step(torch.zeros(2, 4))
    for twin in (copy.deepcopy(env), pickle.loads(pickle.dumps(env))):
        twin.step(torch.zeros(2, 4))
        assert twin.flown.tolist() == [6, 6]
        assert env.flown.tolist() == [4, 4]
        assert twin.unit == [2]
        assert twin.unit is not env.unit


def test_batch_time_limit_is_max_episode_steps(apartments) -> None:
    envs = batch(apartments, max_episode_steps=2)
    envs.reset(seed=0)
    assert [bool(envs.step(np.zeros((3, 4)))[3].all()) for _ in range(4)] == [False, True, False, True]
    with pytest.raises(ConfigError, match="num_envs is of a batch"):
        adapter.ExploreEnv(scenes=apartments, num_envs=2)
    with pytest.raises(ConfigError, match="Navi/PointGoal-v0 flies, and not Navi/Explore-v0"):
        adapter.ExploreEnv(scenes=apartments, config={"task": "point_goal"})
