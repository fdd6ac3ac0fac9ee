"""The C++ step of the environment against its twins: the tensor program, and the numba kernels to the bit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from navi_core.config import EnvConfig
from navi_core.errors import ConfigError
from navi_core.kernels.native.library import data_pointer
from navi_core.kernels.rays.tracer import NativeTracer
from navi_core.scenes import load_gmdag
from navi_core.world import Field, NavigationEnv, StepBatch
from navi_core.world.rewards import HEADING_SECTORS, MOST_VISITS
from tests.world.conftest import native_field

SMALL = EnvConfig(azimuth_bins=32, elevation_bins=8, max_steps=12, episodes_per_scene=2, reward={"preset": "navi9"})
INFO = ("collision", "void", "position", "yaw", "speed", "scene_index", "episode_return", "episode_length")

pytestmark = pytest.mark.usefixtures("compiler")


@pytest.fixture(scope="module")
def compiler(apartments) -> None:
    native_field(apartments[:1])


@pytest.fixture(scope="module")
def field(apartments) -> Field:
    return Field(apartments)


def actions(step: int, rows: int) -> torch.Tensor:
    return torch.rand(64, 4, generator=torch.Generator().manual_seed(step))[:rows] * 2.4 - 1.2


def assert_same(a: StepBatch, b: StepBatch, tolerance: float = 0.0) -> None:
    """Everything to the bit; the observations to a tolerance."""
    assert torch.equal(a.reward, b.reward)
    assert torch.equal(a.truncated, b.truncated)
    for name in INFO:
        assert torch.equal(a.info[name], b.info[name]), name
    for name, term in a.info["reward_terms"].items():
        assert torch.equal(term, b.info["reward_terms"][name]), name
    for seen, twin in ((a.obs, b.obs), (a.final_obs, b.final_obs)):
        assert torch.allclose(seen, twin, rtol=0.0, atol=tolerance)


def assert_same_state(a: NavigationEnv, b: NavigationEnv) -> None:
    for name, value in a.state_dict().items():
        assert torch.equal(value, b.state_dict()[name]), name


def test_native_steps_match_tensors(field: Field) -> None:
    fast, slow = (NavigationEnv(field, 9, SMALL, seed=4, tensor_only=t) for t in (False, True))
    assert torch.allclose(fast.reset(), slow.reset(), atol=1e-7)
    collided = ended = 0
    for step in range(60):
        a, b = fast.step(actions(step, 9)), slow.step(actions(step, 9))
        assert_same(a, b, 1e-7)
        collided, ended = collided + int(a.info["collision"].sum()), ended + int(a.truncated.sum())
    assert_same_state(fast, slow)
    assert collided > 10
    assert ended > 40


def test_native_step_of_four_lanes_matches_the_numba_tracer(apartments, box_scene, tmp_path: Path) -> None:
    """Among them a version 1 scene."""
    box_scene.save(tmp_path / "box.gmdag", version=1)
    scenes = [*apartments, load_gmdag(tmp_path / "box.gmdag")]
    narrow, twin = Field(scenes, tracer="native"), Field(scenes, tracer="numba")
    narrow._tracer = NativeTracer(narrow.packed, 1, 4)
    a, b = NavigationEnv(narrow, 6, SMALL, seed=1), NavigationEnv(twin, 6, SMALL, seed=1)
    assert torch.allclose(a.reset(), b.reset(), atol=1e-7)
    for step in range(30):
        assert_same(a.step(actions(step, 6)), b.step(actions(step, 6)), 1e-7)
    assert_same_state(a, b)


@pytest.mark.parametrize("sensor", [{"depth_relative": 0.02, "dropout": 0.1}, {"delayed": True}])
def test_native_faults_and_delay_match_tensors(field: Field, sensor: dict) -> None:
    config = SMALL.model_copy(update={"sensor": EnvConfig(sensor=sensor).sensor, "max_steps": 4})
    fast, slow = (NavigationEnv(field, 5, config, seed=2, tensor_only=t) for t in (False, True))
    for step in range(12):
        assert_same(fast.step(actions(step, 5)), slow.step(actions(step, 5)), 1e-6)
    assert_same_state_but_late(fast, slow)


def assert_same_state_but_late(a: NavigationEnv, b: NavigationEnv) -> None:
    states = [{name: x for name, x in env.state_dict().items() if name != "late"} for env in (a, b)]
    assert all(torch.equal(value, states[1][name]) for name, value in states[0].items())


@pytest.mark.parametrize("rows", [1, 7, 8])
def test_threads_blocks_and_neighbours_change_no_bit(apartments, rows: int) -> None:
    """Few rows are cut into blocks of tiles, many are not."""
    # Two threads take at least 16,384 rays; the tiles are no whole number of blocks.
    large = SMALL.model_copy(update={"azimuth_bins": 260, "elevation_bins": 64})
    one, two = (NavigationEnv(Field(apartments, threads=n), n_rows, large, 3) for n, n_rows in ((1, 8), (2, rows)))
    for step in range(14):
        a, b = one.step(actions(step, 8)), two.step(actions(step, rows))
        assert torch.equal(a.obs[:rows], b.obs)
        assert torch.equal(a.reward[:rows], b.reward)


def test_row_is_independent_of_the_batch_that_steps_it(field: Field) -> None:
    whole, part = NavigationEnv(field, 5, SMALL, seed=8), NavigationEnv(field, 2, SMALL, seed=8, first_row=3)
    for step in range(30):
        a, b = whole.step(actions(step, 5)), part.step(actions(step, 5)[3:])
        assert torch.equal(a.obs[3:], b.obs)
        assert torch.equal(a.info["scene_index"][3:], b.info["scene_index"])


@pytest.mark.parametrize("seed", [0, 2**62, -5])
def test_native_spawn_draws_match_tensors(field: Field, seed: int) -> None:
    config = SMALL.model_copy(update={"azimuth_bins": 8, "elevation_bins": 4, "max_steps": 1, "stagger": False})
    fast, slow = (NavigationEnv(field, 60, config, seed=seed, tensor_only=t) for t in (False, True))
    for env in (fast, slow):
        env.reset(episode=100_000)
    for _ in range(6):
        a, b = fast.step(torch.zeros(60, 4)), slow.step(torch.zeros(60, 4))
        assert bool(a.truncated.all())
        assert_same(a, b, 1e-7)


def test_visits_stay_at_the_largest_count(field: Field) -> None:
    envs = [NavigationEnv(field, 3, SMALL, seed=0, tensor_only=t) for t in (False, True)]
    for env in envs:
        env.step(torch.zeros(3, 4))
        env.rewards.visits |= (MOST_VISITS << HEADING_SECTORS) * (env.rewards.visits > 0)
    assert_same(*(env.step(torch.zeros(3, 4)) for env in envs), 1e-7)
    assert_same_state(*envs)


def test_the_floor_is_marked_on_grid_lines_and_along_axes(field: Field) -> None:
    envs = [NavigationEnv(field, 16, SMALL, seed=0, tensor_only=t) for t in (False, True)]
    generator = torch.Generator().manual_seed(1)
    for _ in range(12):
        low, high = (torch.from_numpy(edge).float() for edge in field.bounds(0))
        position = low + (high - low) * (torch.rand(16, 3, generator=generator) * 1.2 - 0.1)
        position = torch.from_numpy(envs[0].floors[0].origin[[0, 0, 1]]).float() + (position * 5).round() * 0.2
        yaw = (torch.rand(16, generator=generator) * 8).round() * np.pi / 4
        for env in envs:
            state = env.state_dict()
            state["position"].copy_(position)
            state["yaw"].copy_(yaw[:, None])
            env.load_state_dict(state)
        assert_same(*(env.step(torch.zeros(16, 4)) for env in envs), 1e-7)
    assert_same_state(*envs)


def test_tensors_unreadable_by_kernels_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"contiguous torch\.float32"):
        data_pointer(torch.zeros(4, 2).T, torch.float32)
    with pytest.raises(ConfigError, match=r"not torch\.int64"):
        data_pointer(torch.zeros(4, dtype=torch.int64), torch.float32)
