"""Lookahead kernels for any observation, velocity and bins, against the tensor program."""

from __future__ import annotations

import pytest
import torch

from navi_core.config import EnvConfig
from navi_core.world import Field
from navi_core.world.lookahead import FlightOutlook, HorizonFlight, Start
from tests.world.conftest import native_field

ROWS = 64


@pytest.fixture(scope="module")
def field(apartments) -> Field:
    return native_field(apartments)


def starts(field: Field, bins: tuple[int, int], seed: int) -> tuple[Start, torch.Tensor]:
    """Random poses, speeds and observations: near hits, far hits and misses side by side."""
    generator = torch.Generator().manual_seed(seed)

    def random(*shape: int) -> torch.Tensor:
        return torch.rand(*shape, generator=generator)

    scene = torch.arange(ROWS) % 2
    edges = [torch.stack([torch.from_numpy(field.bounds(i)[end]).float() for i in (0, 1)])[scene] for end in (0, 1)]
    position = edges[0] + (edges[1] - edges[0]) * (random(ROWS, 3) * 0.9 + 0.05)
    sees = torch.stack([random(ROWS, *bins), random(ROWS, *bins).round(), (random(ROWS, *bins) < 0.3).float()], dim=1)
    sees[:, 0] = torch.where(sees[:, 2] > 0, sees[:, 0], (sees[:, 0] < 0.5).float())
    place = torch.randperm(ROWS, generator=generator)
    start = Start(position, random(ROWS) * 6.28, random(ROWS, 4) * 10 - 5, scene, sees, place)
    return start, random(ROWS, 4) * 2.4 - 1.2


@pytest.mark.parametrize("bins", [(24, 6), (9, 5), (19, 48), (8, 61)])
@pytest.mark.parametrize("max_distance", [1.5, 30.0])
def test_kernel_flights_match_tensors(field: Field, bins: tuple[int, int], max_distance: float) -> None:
    drone = EnvConfig().dynamics.model_copy(update={"limiter_elevation_degrees": 40.0, "limiter_distance": 2.5})
    fast, slow = (HorizonFlight(field, drone, 17, max_distance, kernels=kernels) for kernels in (True, False))
    start, action = starts(field, bins, 3)
    a, b = fast.fly(start, action), slow.fly(start, action)
    assert torch.equal(a.collided, b.collided)
    assert 5 < int(a.collided.sum()) < ROWS - 5
    for name in ("position", "velocity", "attempted_speed", "path", "clearance"):
        assert torch.allclose(getattr(a, name), getattr(b, name), atol=2e-5), name
    turned = (a.yaw - b.yaw).abs()
    assert torch.minimum(turned, 6.283185307 - turned).max() < 1e-5


@pytest.mark.parametrize("bins", [(24, 6), (9, 5), (40, 48)])
def test_kernel_terms_match_tensors(field: Field, bins: tuple[int, int]) -> None:
    config = EnvConfig(azimuth_bins=bins[0], elevation_bins=bins[1])
    outlooks = [FlightOutlook(field, config, config.dynamics, 8, kernels=kernels) for kernels in (True, False)]
    pasts, rows = [outlook.past(2 * ROWS) for outlook in outlooks], 2 * torch.arange(ROWS).flip(0) + 1
    for seed in range(3):
        start, action = starts(field, bins, seed)
        for outlook, past in zip(outlooks, pasts, strict=True):
            outlook.remember(past, rows, start)
        for name in ("visits", "seen", "shares"):
            assert torch.equal(*(getattr(past, name) for past in pasts)), name
        (_, reported), (_, twin) = (o.fly(past, rows, start, action) for o, past in zip(outlooks, pasts, strict=True))
        assert torch.allclose(reported, twin, atol=2e-5)
