"""The environment's kernels and their twins as tensor programs of fixed shapes, which devices run."""

from __future__ import annotations

import math

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from navi_core.config import EnvConfig
from navi_core.errors import SceneError
from navi_core.kernels.rays.tracer import NativeTracer
from navi_core.world import Field, FloorMap, NavigationEnv, RayHits
from navi_core.world.floor.reachable import FloorView
from navi_core.world.sensor.panorama import PanoramaReader, Recycler, denormalise_depth, spherical_directions
from tests.world.conftest import native_field
from tests.world.fan_oracle import fan_gain
from tests.world.host_sync import HostSyncs

CPU = torch.device("cpu")
SMALL = EnvConfig(azimuth_bins=32, elevation_bins=8, max_steps=12)


@pytest.fixture(scope="module")
def field(apartments) -> Field:
    return Field(apartments)


@pytest.fixture(scope="module")
def native(apartments) -> NativeTracer:
    tracer = native_field(apartments).native
    assert tracer is not None
    return tracer


def actions(step: int, rows: int) -> torch.Tensor:
    return torch.rand(rows, 4, generator=torch.Generator().manual_seed(step)) * 2 - 1


@pytest.mark.parametrize(("azimuths", "elevations", "reach"), [(24, 9, 100.0), (8, 4, 5.0), (256, 48, 0.05)])
def test_panorama_kernel_matches_tensors(native: NativeTracer, azimuths: int, elevations: int, reach: float) -> None:
    config = EnvConfig(azimuth_bins=azimuths, elevation_bins=elevations, max_distance=reach)
    generator = torch.Generator().manual_seed(0)
    valid = torch.rand(3, azimuths * elevations, generator=generator) < 0.7
    valid[2] = False
    depth = torch.where(valid, reach * torch.rand(valid.shape, generator=generator) ** 2, reach)
    hits = RayHits(depth, torch.randint(0, 300, valid.shape, generator=generator, dtype=torch.int32) * valid, valid)
    band = torch.tensor([2.5, 0.04, 4.0])
    fast, slow = (PanoramaReader(config, CPU, tracer=t).read(hits, band) for t in (native, None))
    assert torch.equal(fast.fractions, slow.fractions)
    assert torch.equal(fast.front, slow.front)
    assert torch.equal(fast.reach, slow.reach)
    assert torch.equal(fast.obs[:, 1:], slow.obs[:, 1:])
    assert float((fast.obs[:, 0] - slow.obs[:, 0]).abs().max()) <= 2e-7 * (1 + 1 / math.log1p(reach))
    assert float(fast.obs[:, 0].max()) == 1.0
    assert bool((fast.obs[:, 0][~valid.view_as(fast.obs[:, 0])] == 1.0).all())


@pytest.mark.parametrize("kernels", [True, False])
def test_floor_view_range_follows_rays_nearest_the_horizon(native: NativeTracer, kernels: bool) -> None:
    """Of eight elevations two lie 90/7 degrees off the horizon; the longer one counts, up to the view radius."""
    reader = PanoramaReader(SMALL, CPU, tracer=native if kernels else None)
    depth = torch.full((1, 32, 8), 30.0)
    depth[0, :, 3:5] = torch.tensor([2.0, 1.0])
    depth[0, 7, 3:5] = torch.tensor([1.5, 3.0])
    depth[0, 9, 4] = 9.0
    valid = torch.ones(1, 256, dtype=torch.bool)
    hits = RayHits(depth.flatten(1), torch.ones(1, 256, dtype=torch.int32), valid)
    reach = reader.read(hits, torch.tensor([5.0])).reach[0]
    level = math.cos(math.radians(90 / 7))
    wanted = [2.0 * level] * 32
    wanted[7], wanted[9] = 3.0 * level, 3.2
    assert reach.tolist() == pytest.approx(wanted, rel=1e-6)


def test_normalised_depth_of_the_kernel_is_close_over_the_whole_range(native: NativeTracer) -> None:
    config = EnvConfig(azimuth_bins=4096, elevation_bins=4, max_distance=1e5)
    depth = torch.cat([torch.zeros(1), torch.logspace(-6, 5, 4 * 4096 - 1)])[None]
    hits = RayHits(depth, torch.ones_like(depth, dtype=torch.int32), torch.ones_like(depth, dtype=torch.bool))
    value = PanoramaReader(config, CPU, tracer=native).read(hits, torch.ones(1)).obs[0, 0].flatten()
    assert float(value[0]) == 0.0
    assert float(value[-1]) == pytest.approx(1.0, abs=1e-6)
    exact = torch.log1p(depth[0].double()) / math.log1p(1e5)
    assert float((value - exact).abs().max()) <= 2e-7 * (1 + 1 / math.log1p(1e5))
    near = depth[0] < 100
    assert torch.allclose(denormalise_depth(value, 1e5)[near], depth[0][near], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("azimuths", [8, 64])
def test_floor_marking_kernel_matches_tensors(field: Field, azimuths: int) -> None:
    """From any pose, on grid lines and corners, along the axes, and from outside the grid."""
    maps = [FloorMap(field, i, 0.2, 0.2) for i in range(2)]
    fan = PanoramaReader(EnvConfig(azimuth_bins=azimuths, elevation_bins=4), CPU).fan
    generator = torch.Generator().manual_seed(1)
    rows = 24
    view = FloorView(maps, rows, fan, 3.2, CPU)
    seen = view.seen.clone()
    scene = torch.arange(rows) % 2
    gained = torch.zeros(rows)
    for step in range(20):
        low, high = (torch.from_numpy(field.bounds(0)[k]).float() for k in (0, 1))
        position = low + (high - low) * (torch.rand(rows, 3, generator=generator) * 1.1 - 0.05)
        yaw = torch.rand(rows, generator=generator) * 6.28
        if step % 2:
            position = torch.from_numpy(maps[0].origin[[0, 0, 1]]).float() + (position * 5).round() * 0.2
            yaw = (yaw * 4 / math.pi).round() * math.pi / 4
        reach = torch.rand(rows, azimuths, generator=generator) * 3.2
        reach[:4] = 3.2
        gain = view.mark(position, yaw, reach, scene)
        assert torch.equal(gain, fan_gain(view, position, yaw, reach, scene, seen))
        assert torch.equal(view.seen, seen)
        gained += gain
    pool = view.footprint(position, yaw, reach, scene).view(2, -1, seen.shape[1] // 8)
    begins = torch.arange(rows) % 3 == 0
    view.begin(begins, pool[scene, torch.arange(rows) % pool.shape[1]])
    assert torch.equal(view.seen[~begins], seen[~begins])
    assert float(gained.max()) > 5.0


@pytest.mark.parametrize("tracer", ["native", "numba"])
def test_tracer_rotates_shared_directions_by_formula(apartments, tracer: str) -> None:
    field = Field(apartments, tracer=tracer)
    directions = spherical_directions(32, 8)
    yaw, scene = torch.linspace(0, 6.28, 6), torch.arange(6) % 2
    position = torch.tensor([[0.0, 1.2, 0.0]]).repeat(6, 1)
    c, s = (turn(yaw.double()).float()[:, None] for turn in (torch.cos, torch.sin))
    x, y, z = directions.unbind(-1)
    turned = torch.stack([x * c + z * s, y.expand(6, -1), z * c - x * s], dim=-1)
    written, shared = field.cast_rays(position, turned, scene), field.cast_rays(position, directions, scene, yaw=yaw)
    for name in ("depth", "semantic", "valid"):
        assert torch.equal(getattr(written, name), getattr(shared, name))
    with pytest.raises(SceneError, match="NaN"):
        field.cast_rays(position, directions, scene, yaw=yaw * float("nan"))


@pytest.mark.parametrize("sensor", [{}, {"depth_relative": 0.02, "dropout": 0.1, "delayed": True}])
def test_the_host_never_waits_in_fifty_steps_with_resets(apartments, sensor: dict) -> None:
    config = EnvConfig(azimuth_bins=16, elevation_bins=6, max_steps=9, episodes_per_scene=2, sensor=sensor)
    env = NavigationEnv(Field(apartments, tracer="cuda"), 6, config, seed=1, tensor_only=True)
    flown = [actions(step, 6) for step in range(50)]
    ends = torch.zeros(6, dtype=torch.int64)
    with HostSyncs() as syncs:
        for action in flown:
            ends += env.step(action).truncated
    assert syncs.found == []
    assert int(ends.min()) >= 5


def test_step_keeps_state_addresses(field: Field) -> None:
    env = NavigationEnv(field, 4, SMALL, seed=0, tensor_only=True)
    places = {name: value.data_ptr() for name, value in env._state().items()}
    for step in range(15):
        env.step(actions(step, 4))
    assert places == {name: value.data_ptr() for name, value in env._state().items()}


def test_non_finite_action_is_replaced_by_zero_and_flagged(field: Field) -> None:
    env, calm = (NavigationEnv(field, 3, SMALL, seed=1, tensor_only=True) for _ in range(2))
    wrong = torch.zeros(3, 4)
    wrong[1, 2] = float("nan")
    batch, expected = env.step(wrong), calm.step(torch.zeros(3, 4))
    assert batch.info["action_fault"].tolist() == [False, True, False]
    assert not expected.info["action_fault"].any()
    assert torch.equal(batch.obs, expected.obs)
    assert torch.equal(batch.reward, expected.reward)


def test_returned_tensors_are_never_overwritten(field: Field) -> None:
    env = NavigationEnv(field, 3, SMALL, seed=2)
    first = env.reset()
    kept, batches = first.clone(), []
    for step in range(14):
        batch = env.step(actions(step, 3))
        batches.append((batch, batch.obs.clone(), batch.info["position"].clone(), batch.info["scene_index"].clone()))
    assert torch.equal(first, kept)
    for batch, obs, position, scene in batches:
        assert torch.equal(batch.obs, obs)
        assert torch.equal(batch.info["position"], position)
        assert torch.equal(batch.info["scene_index"], scene)


def test_thousands_of_drones_step_in_one_batch(field: Field) -> None:
    config = EnvConfig(azimuth_bins=16, elevation_bins=4, max_steps=20, reward={"view_cell": 0.5})
    many, few = NavigationEnv(field, 4096, config, seed=3), NavigationEnv(field, 3, config, seed=3)
    for step in range(5):
        action = actions(step, 4096)
        a, b = many.step(action), few.step(action[:3])
        assert torch.equal(a.obs[:3], b.obs)
        assert torch.equal(a.reward[:3], b.reward)
    assert set(a.info["scene_index"].tolist()) == {0, 1}
    assert bool(torch.isfinite(a.reward).all())


def test_recycler_reuses_unreferenced_memory() -> None:
    memory = Recycler(2, 3)
    first = memory.take()
    place = first.data_ptr()
    row = first[1]
    del first
    second = memory.take()
    assert second.data_ptr() != place  # a view still holds the first
    array = row.numpy()
    del row
    assert memory.take().data_ptr() != place  # and so does an array
    del array
    assert memory.take().data_ptr() == place


def test_step_uses_no_prod_operator(field: Field) -> None:
    """CUDA torch has no integer kernel of it and compiles one at first use."""
    asked = set()

    class Names(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            asked.add(func._schema.name)
            return func(*args, **(kwargs or {}))

    env = NavigationEnv(field, 3, SMALL, seed=0, tensor_only=True)
    with Names():
        env.step(actions(0, 3))
    assert "aten::scatter_" in asked
    assert "aten::prod" not in asked
