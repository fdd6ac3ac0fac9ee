"""The C++ step against the tensor program where bins, places and floors are none of the usual ones."""

from __future__ import annotations

import pytest
import torch

from navi_core.config import EnvConfig
from navi_core.kernels.rays.tracer import LANES, NativeTracer
from navi_core.scenes import load_gmdag
from navi_core.world import Field, NavigationEnv
from tests.evaluate.conftest import boxes_scene
from tests.world.conftest import native_field
from tests.world.spawning.test_spawning import open_air
from tests.world.test_native_step import assert_same, assert_same_state

ROWS = 12
FEW = {"grid": (3, 3, 3), "probe": (16, 6)}


@pytest.fixture(scope="module")
def scenes(box_scene, tmp_path_factory) -> list:
    """A house of two storeys, and a closed box from files of both versions."""
    house = boxes_scene("house", ((0, 0, 0), (8, 5, 4)), ((-0.1, 2.4, -0.1), (6, 2.6, 4.1)))
    path = tmp_path_factory.mktemp("v1") / "box.gmdag"
    box_scene.save(path, version=1)
    return [house, box_scene, load_gmdag(path)]


@pytest.fixture(scope="module")
def field(scenes) -> Field:
    return native_field(scenes)


def put(envs: list[NavigationEnv], **state: torch.Tensor) -> None:
    for env in envs:
        reported = env.state_dict()
        for name, value in state.items():
            reported[name].copy_(value.reshape(reported[name].shape))
        env.load_state_dict(reported)


@pytest.mark.parametrize("lanes", LANES[1:])
@pytest.mark.parametrize("bins", [(8, 5), (16, 6), (19, 7)])
def test_native_step_with_bins_that_no_tile_divides(field: Field, lanes: int, bins: tuple[int, int]) -> None:
    narrow = Field(field.scenes)
    narrow._tracer = NativeTracer(narrow.packed, 1, lanes)
    config = EnvConfig(azimuth_bins=bins[0], elevation_bins=bins[1], max_steps=5, spawn=FEW)
    envs = [NavigationEnv(narrow, ROWS, config, seed=3, tensor_only=t) for t in (False, True)]
    for env in envs:
        env.reset(episode=2**27 - 2)  # soon the stamps of visits begin anew
    generator = torch.Generator().manual_seed(0)
    for _ in range(8):
        action = torch.rand(ROWS, 4, generator=generator) * 2.4 - 1.2
        assert_same(*(env.step(action) for env in envs), 3e-7)
    assert_same_state(*envs)


@pytest.mark.parametrize("outside", [0.3, 40.0, 1e5])
def test_native_step_at_the_floor_border_matches_tensors(field: Field, outside: float) -> None:
    config = EnvConfig(azimuth_bins=24, elevation_bins=6, reward={"preset": "navi9", "view_cell": 0.06}, spawn=FEW)
    envs = [NavigationEnv(field, ROWS, config, seed=1, tensor_only=t) for t in (False, True)]
    for env in envs:
        env.view._reachable[:, :-1] = True  # but the cell that belongs to no grid
    generator = torch.Generator().manual_seed(2)
    gained = 0.0
    for _ in range(8):
        edges = [field.bounds(int(scene)) for scene in envs[0].poses()["scene_index"]]
        low, high = (torch.stack([torch.from_numpy(edge[i]).float() for edge in edges]) for i in (0, 1))
        share = torch.rand(ROWS, 3, generator=generator)
        beyond = (torch.rand(ROWS, 3, generator=generator) - 0.5) * 2 * outside * (share < 0.5)
        put(
            envs,
            position=low + (high - low) * share.round() + beyond,
            yaw=torch.rand(ROWS, generator=generator) * 6.28,
            velocity=torch.rand(ROWS, 4, generator=generator) * 8 - 4,
            clearance=torch.rand(ROWS, generator=generator) * 8,
            seen=torch.rand(ROWS, 4, generator=generator).round(),
        )
        a, b = (env.step(torch.zeros(ROWS, 4)) for env in envs)
        assert_same(a, b, 3e-7)
        gained += float(a.info["reward_terms"]["view_gain"].sum())
    assert_same_state(*envs)
    assert gained > 0


@pytest.mark.parametrize("tensor_only", [False, True])
@pytest.mark.parametrize("max_distance", [7.3, 100.0])
def test_missing_rays_have_a_normalised_depth_of_exactly_one(tensor_only: bool, max_distance: float) -> None:
    """Void is a share of misses that reaches the threshold."""
    config = EnvConfig(
        azimuth_bins=9, elevation_bins=4, max_distance=max_distance, void_starvation=0.5, void_grace=1, spawn=FEW
    )
    env = NavigationEnv(open_air(20.0, top=1.5), 2, config, seed=0, tensor_only=tensor_only)
    voids = []
    for _ in range(2):
        state = env.state_dict()
        state["position"].copy_(torch.tensor([[1.0, 0.8, 1.0], [-1.0, 0.6, 2.0]]))
        env.load_state_dict(state)
        step = env.step(torch.zeros(2, 4))
        depth, _, valid = step.final_obs[:, :, :, :2].unbind(dim=1)
        assert not valid.any()
        assert (depth == 1.0).all()
        assert step.final_obs[:, 2, :, 2:].all()
        voids.append(step.info["void"].tolist())
    assert voids == [[False, False], [True, True]]
