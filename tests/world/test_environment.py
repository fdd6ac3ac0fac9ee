"""`NavigationEnv`: episodes, autoreset, independence of the batch, resume, coverage reward."""

from __future__ import annotations

import pytest
import torch

from navi_core.config import REWARD_TERMS, EnvConfig
from navi_core.errors import ConfigError, NonFiniteError
from navi_core.world import Field, FloorMap, NavigationEnv

SMALL = EnvConfig(azimuth_bins=32, elevation_bins=8, max_steps=12, stagger=False)


@pytest.fixture(scope="module")
def field(apartments) -> Field:
    return Field(apartments)


def actions(step: int, rows: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(step)
    return torch.rand(64, 4, generator=generator)[:rows] * 2 - 1


def test_shapes_and_names(field: Field) -> None:
    env = NavigationEnv(field, 3, SMALL, seed=1)
    assert env.reset().shape == (3, 3, 32, 8)
    batch = env.step(actions(0, 3))
    assert batch.obs.shape == batch.final_obs.shape == (3, 3, 32, 8)
    assert tuple(batch.info["reward_terms"]) == REWARD_TERMS
    assert batch.obs.dtype == batch.reward.dtype == torch.float32
    assert batch.terminated.dtype == batch.truncated.dtype == torch.bool
    ids = batch.obs[:, 1].unique().to(torch.int64).tolist()
    assert set(ids) <= {0, *field.semantic_names}


def test_row_is_independent_of_batch_size(field: Field) -> None:
    alone, many = NavigationEnv(field, 1, SMALL, seed=5), NavigationEnv(field, 9, SMALL, seed=5)
    assert torch.equal(alone.reset(), many.reset()[:1])
    for step in range(30):
        a, b = alone.step(actions(step, 1)), many.step(actions(step, 9))
        assert torch.equal(a.obs, b.obs[:1])
        assert torch.equal(a.reward, b.reward[:1])
        assert torch.equal(a.truncated, b.truncated[:1])


def test_rewards_depend_on_the_seed(field: Field) -> None:
    def life(seed: int) -> torch.Tensor:
        env = NavigationEnv(field, 4, SMALL, seed=seed)
        return torch.stack([env.step(actions(s, 4)).reward for s in range(20)])

    assert torch.equal(life(3), life(3))
    assert not torch.equal(life(3), life(4))


def test_truncation_keeps_final_obs_and_resets_in_the_same_step(field: Field) -> None:
    env = NavigationEnv(field, 2, SMALL, seed=2)
    for step in range(11):
        batch = env.step(actions(step, 2))
        assert not batch.truncated.any()
        assert torch.equal(batch.obs, batch.final_obs)
    batch = env.step(actions(11, 2))
    assert batch.truncated.all()
    assert not batch.terminated.any()
    assert batch.info["episode_length"].tolist() == [12, 12]
    assert not torch.equal(batch.obs, batch.final_obs)
    assert torch.equal(batch.obs, env.observe())  # the pool's observation is what the new pose sees
    assert env.step(actions(12, 2)).info["episode_length"].tolist() == [1, 1]


def test_ages_are_staggered_by_default(field: Field) -> None:
    env = NavigationEnv(field, 16, EnvConfig(azimuth_bins=32, elevation_bins=8, max_steps=40), seed=0)
    ends = torch.stack([env.step(torch.zeros(16, 4)).truncated for _ in range(40)])
    assert ends.any(dim=0).all()
    assert len(ends.int().argmax(dim=0).unique()) > 5


def test_episode_return_is_the_sum_of_rewards(field: Field) -> None:
    env = NavigationEnv(field, 2, SMALL, seed=7)
    total = torch.zeros(2)
    for step in range(12):
        batch = env.step(actions(step, 2))
        total += batch.reward
    assert torch.allclose(batch.info["episode_return"], total)


def test_a_restored_environment_goes_on_bit_for_bit(field: Field) -> None:
    env = NavigationEnv(field, 3, SMALL, seed=9)
    for step in range(8):
        env.step(actions(step, 3))
    saved = env.state_dict()
    expected = [env.step(actions(s, 3)) for s in range(8, 24)]
    other = NavigationEnv(field, 3, SMALL, seed=9)
    other.load_state_dict(saved)
    for step, want in zip(range(8, 24), expected):
        got = other.step(actions(step, 3))
        assert torch.equal(got.obs, want.obs)
        assert torch.equal(got.reward, want.reward)


def test_state_of_another_batch_is_refused(field: Field) -> None:
    state = NavigationEnv(field, 2, SMALL).state_dict()
    with pytest.raises(ConfigError, match="expected"):
        NavigationEnv(field, 3, SMALL).load_state_dict(state)


@pytest.mark.parametrize(
    ("name", "value"), [("scene", 2), ("scene", -1), ("episode", -4), ("position", 1e30), ("velocity", float("nan"))]
)
def test_unreachable_state_is_refused(field: Field, name: str, value: float) -> None:
    env = NavigationEnv(field, 2, SMALL)
    state, before = env.state_dict(), env.state_dict()
    state[name].view(2, -1)[1, 0] = value
    with pytest.raises(ConfigError, match="no flight could have led to"):
        env.load_state_dict(state)
    assert all(torch.equal(kept, before[name]) for name, kept in env.state_dict().items())


def test_rows_rotate_through_the_scenes(field: Field) -> None:
    config = SMALL.model_copy(update={"max_steps": 2, "episodes_per_scene": 2})
    env = NavigationEnv(field, 2, config)
    scenes = [env.step(torch.zeros(2, 4)).info["scene_index"].tolist() for _ in range(10)]
    assert scenes[:4] == [[0, 1]] * 4
    assert scenes[4:8] == [[1, 0]] * 4
    assert scenes[8] == [0, 1]


def test_view_gain_sums_to_seen_floor_area(box_scene) -> None:
    field = Field([box_scene])
    env = NavigationEnv(field, 1, EnvConfig(azimuth_bins=64, elevation_bins=16, max_steps=500, stagger=False), seed=1)
    start = float(env.view.fraction(torch.zeros(1, dtype=torch.int64)))
    gain = sum(float(env.step(actions(s, 1)).info["reward_terms"]["view_gain"]) for s in range(150))
    area = FloorMap(field, 0, 0.2, 0.2).area
    end = float(env.view.fraction(torch.zeros(1, dtype=torch.int64)))
    assert area == pytest.approx(3.6 * 3.6, abs=1.5)
    assert gain == pytest.approx((end - start) * area, abs=1e-3)
    assert end > 0.9  # a small room is soon seen whole
    still = env.step(torch.zeros(1, 4)).info["reward_terms"]["view_gain"]
    again = env.step(torch.zeros(1, 4)).info["reward_terms"]["view_gain"]
    assert float(again) <= float(still) <= 0.2


def test_void_truncates_after_the_grace(box_scene) -> None:
    config = SMALL.model_copy(update={"max_distance": 0.05, "void_grace": 3, "max_steps": 100})
    env = NavigationEnv(Field([box_scene]), 1, config)
    ends = [env.step(torch.zeros(1, 4)) for _ in range(4)]
    assert [bool(b.truncated) for b in ends] == [False, False, False, True]
    assert bool(ends[-1].info["void"])


@pytest.mark.parametrize("tensor_only", [False, True])
def test_void_ends_terminated_setting_terminates(box_scene, tensor_only) -> None:
    void = SMALL.model_copy(update={"max_distance": 0.05, "void_grace": 3, "void_ends": "terminated", "max_steps": 100})
    env = NavigationEnv(Field([box_scene]), 1, void, tensor_only=tensor_only)
    ends = [env.step(torch.zeros(1, 4)) for _ in range(4)]
    assert [bool(b.terminated) for b in ends] == [False, False, False, True]
    assert not any(bool(b.truncated) for b in ends)
    assert bool(ends[-1].info["void"])
    assert int(env.counters["episode"]) == 1
    assert int(env.counters["length"]) == 0
    # The time limit truncates as ever.
    env = NavigationEnv(Field([box_scene]), 1, void.model_copy(update={"max_steps": 2}), tensor_only=tensor_only)
    ends = [env.step(torch.zeros(1, 4)) for _ in range(2)]
    assert [(bool(b.terminated), bool(b.truncated)) for b in ends] == [(False, False), (False, True)]


def test_impossible_batches_are_refused(field: Field) -> None:
    with pytest.raises(ConfigError, match="whole numbers from 1"):
        NavigationEnv(field, 0, SMALL)
    with pytest.raises(ConfigError, match="expected \\(2, 4\\)"):
        NavigationEnv(field, 2, SMALL).step(torch.zeros(2, 3))


@pytest.mark.parametrize(("bad", "axis"), [(float("nan"), 0), (float("inf"), 2), (float("nan"), 3)])
def test_non_finite_actions_leave_state_unchanged(field: Field, bad: float, axis: int) -> None:
    env = NavigationEnv(field, 3, SMALL, seed=1)
    before = env.state_dict()
    wrong = torch.zeros(3, 4)
    wrong[1, axis] = bad
    with pytest.raises(NonFiniteError, match=r"action of row 1 is .*not finite"):
        env.step(wrong)
    assert all(torch.equal(value, before[name]) for name, value in env.state_dict().items())
