"""The spherical sensor: bins, directions, golden depths, rotation."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from navi_core.world import Field, SphericalSensor, denormalise_depth, normalise_depth, spherical_directions


def test_golden_depths() -> None:
    value = normalise_depth(torch.tensor([0.0, 1.0, 5.0, 30.0, 100.0, 250.0]), 100.0)
    assert value.tolist() == pytest.approx([0.0, 0.150190, 0.388237, 0.744073, 1.0, 1.0], abs=1e-6)
    assert denormalise_depth(value[:5], 100.0).tolist() == pytest.approx([0, 1, 5, 30, 100], rel=1e-4, abs=1e-6)


def test_directions_follow_the_convention() -> None:
    d = spherical_directions(8, 5).view(8, 5, 3)
    assert d[0, 2].tolist() == pytest.approx([0, 0, -1], abs=1e-6)  # bin 0 looks along −Z
    assert d[2, 2].tolist() == pytest.approx([1, 0, 0], abs=1e-6)  # a quarter turn to the right
    assert d[3, 0].tolist() == pytest.approx([0, 1, 0], abs=1e-6)  # elevation 0 looks up
    assert d[5, 4].tolist() == pytest.approx([0, -1, 0], abs=1e-6)
    assert d.norm(dim=-1).numpy() == pytest.approx(1.0, abs=1e-6)


def test_turning_by_one_bin_rolls_the_observation(apartments) -> None:
    field = Field(apartments)
    sensor = SphericalSensor(field, 32, 8, 100.0)
    low, high = field.bounds(0)
    position = torch.tensor(np.array([(low + high) / 2 + [0.3, 0, 0.2]]), dtype=torch.float32)
    scene = torch.zeros(1, dtype=torch.int64)
    yaw = torch.tensor([0.7])
    here = sensor.cast(position, yaw, scene).depth.view(32, 8)
    turned = sensor.cast(position, yaw + 2 * math.pi / 32, scene).depth.view(32, 8)
    assert torch.allclose(turned, here.roll(1, dims=0), atol=2e-3)


def test_observation_channels(box_scene) -> None:
    sensor = SphericalSensor(Field([box_scene]), 16, 5, 100.0)
    hits = sensor.cast(torch.tensor([[0.0, 1.25, 0.0]]), torch.zeros(1), torch.zeros(1, dtype=torch.int64))
    obs = sensor.observation(hits)
    assert obs.shape == (1, 3, 16, 5)
    assert obs.dtype == torch.float32
    depth = denormalise_depth(obs[0, 0], 100.0)
    assert depth[:, 0].tolist() == pytest.approx([1.25] * 16, abs=1e-3)  # straight up: the ceiling
    assert float(depth[0, 2]) == pytest.approx(2.0, abs=1e-3)  # straight ahead: the wall
    assert (obs[0, 1] == 1).all()
    assert (obs[0, 2] == 1).all()


def test_a_miss_reads_one_zero_zero(box_scene) -> None:
    sensor = SphericalSensor(Field([box_scene]), 16, 5, max_distance=1.0)
    hits = sensor.cast(torch.tensor([[0.0, 1.25, 0.0]]), torch.zeros(1), torch.zeros(1, dtype=torch.int64))
    ahead = sensor.observation(hits)[0, :, 0, 2]
    assert ahead.tolist() == [1.0, 0.0, 0.0]
