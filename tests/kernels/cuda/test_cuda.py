"""The engine on a real GPU: exact, repeatable, capturable and fast: `pytest -m gpu tests/kernels/cuda/test_cuda.py`."""

from __future__ import annotations

import pytest
import torch

from navi_core.bench.engine.device import DeviceRow, run_device
from navi_core.bench.engine.device_training import training_rows
from navi_core.config import EnvConfig
from navi_core.kernels.rays import op
from navi_core.scenes import Scene
from navi_core.world import Field, RayHits, spherical_directions

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device"),
]


@pytest.fixture(scope="module")
def table(twin_scenes: dict[str, Scene]) -> list[DeviceRow]:
    """The table of the device for every family at 512, 256x48."""
    scenes = [twin_scenes[name] for name in ("apartment", "maze", "atrium", "rooms")]
    return list(run_device(scenes, "cuda", drones=(256, 1024, 4096), training=False))


def test_gpu_results_are_exact_repeatable_and_capturable(table: list[DeviceRow]) -> None:
    wrong = [row for row in table if row.passed is False and row.unit not in ("G/s", "steps/s")]
    assert wrong == []


def test_gpu_meets_its_speed_targets(table: list[DeviceRow]) -> None:
    speeds = [row for row in table if row.passed is not None and row.unit in ("G/s", "steps/s")]
    assert len(speeds) == 4 and [row for row in speeds if not row.passed] == []


@pytest.mark.timeout(600)
def test_ppo_is_fast_enough(twin_scenes: dict[str, Scene]) -> None:
    """Most of the time of this test is compilation."""
    device, env = torch.device("cuda", torch.cuda.current_device()), EnvConfig(azimuth_bins=256, elevation_bins=48)
    rows = list(training_rows(lambda: Field([twin_scenes["apartment"]], device=device), env, 1024, device))
    assert [row.passed for row in rows if row.passed is not None] == [True]


def test_cuda_operators_pass_opcheck(box_scene: Scene) -> None:
    field = Field([box_scene], device="cuda")
    origins = torch.tensor([[0.0, 1.0, 0.0], [1.0, 0.5, -1.0]], device="cuda")
    rows, directions = torch.zeros(2, dtype=torch.int32, device="cuda"), spherical_directions(8, 4).cuda()
    out = RayHits.empty(2, 32, field.device)
    torch.library.opcheck(op.cast_rays, (origins, directions, rows, field.number, 20.0, 4))
    torch.library.opcheck(
        op.cast_rays_out, (origins, directions, rows, field.number, 20.0, 4, out.depth, out.semantic, out.valid)
    )
    torch.library.opcheck(op.distance, (origins, rows, field.number))
    torch.library.opcheck(op.within, (origins, rows, field.number, 0.5))


def test_impossible_rows_miss_on_the_gpu(twin_scenes: dict[str, Scene]) -> None:
    field = Field([twin_scenes["box"], twin_scenes["octree"]], device="cuda")
    origins = torch.tensor([[0.11, 1.0, 0.07]], device="cuda").repeat(6, 1)
    origins[1, 2], origins[2, 0] = float("nan"), float("inf")
    rows = torch.tensor([0, 0, 1, -1, 2, 2**31 - 1], device="cuda", dtype=torch.int32)
    hits = field.cast_rays(origins, spherical_directions(8, 4).cuda(), rows, 20.0)
    assert hits.valid[0].all() and not hits.valid[1:].any()
    assert (hits.depth[1:] == 20.0).all() and (hits.semantic[1:] == 0).all()
    assert torch.isinf(field.distance(origins, rows)[1:]).all() and not field.within(origins, rows, 9.0)[1:].any()
    torch.cuda.synchronize()


def test_other_threads_and_streams_give_the_same_bits(box_scene: Scene) -> None:
    from concurrent.futures import ThreadPoolExecutor

    field, directions = Field([box_scene], device="cuda"), spherical_directions(64, 16).cuda()
    origins, rows = torch.rand(32, 3, device="cuda") + 0.1, torch.zeros(32, dtype=torch.int32, device="cuda")
    torch.cuda.synchronize()
    expected = field.cast_rays(origins, directions, rows)

    def cast() -> RayHits:
        with torch.cuda.stream(torch.cuda.Stream()):
            hits = field.cast_rays(origins, directions, rows)
        torch.cuda.synchronize()
        return hits

    with ThreadPoolExecutor(2) as pool:
        for future in [pool.submit(cast) for _ in range(8)]:
            assert torch.equal(future.result().depth, expected.depth)
