"""Odometry: stated errors of scale and heading, exact without drift."""

from __future__ import annotations

import math

import pytest
import torch

from navi_core.config import OdometryConfig
from navi_core.world.sensor.odometry import Odometry

KEYS = torch.arange(64)


START = torch.tensor([1.0, 1.2, 5.0])


def flown(
    config: OdometryConfig, keys: torch.Tensor = KEYS, course: tuple[float, float, float] = (0.0, 0.0, -1.0)
) -> tuple[torch.Tensor, torch.Tensor]:
    """Fly 100 decisions of 0.1 s along a course, 0.1 m each, then 100 at rest; return the last estimates."""
    odometry, yaw = Odometry(config, 3, keys, 0.1), torch.zeros(len(keys))
    for t in range(201):
        position = START + 0.1 * min(t, 100) * torch.tensor(course)
        estimate = odometry.follow(position.expand(len(keys), 3), yaw)
    return estimate


def test_without_drift_odometry_is_the_truth():
    position, yaw = flown(OdometryConfig())
    assert torch.allclose(position, torch.tensor([1.0, 1.2, -5.0]).expand(64, 3), atol=1e-5)
    assert yaw.abs().max() == 0


def test_scale_and_bias_have_their_stated_size_and_both_signs():
    position, _ = flown(OdometryConfig(scale=0.02))
    off = -5.0 - position[:, 2]
    assert off.abs().sub(0.2).abs().max() < 1e-4 and 16 < int((off > 0).sum()) < 48
    position, yaw = flown(OdometryConfig(gyro_degrees=0.5))
    turned = torch.remainder(yaw + math.pi, 2 * math.pi) - math.pi
    assert turned.abs().sub(math.radians(0.5 * 20)).abs().max() < 1e-4 and 16 < int((turned > 0).sum()) < 48
    # 10 m along a heading that turns by 5 degrees end 0.44 m beside; a turn to the left (positive yaw) leads to −x.
    assert (position[:, 0] - 1.0).abs() == pytest.approx(torch.full((64,), 0.436).numpy(), abs=0.01)
    assert bool(((position[:, 0] < 1.0) == (turned > 0)).all())


def test_a_flight_drifts_alike_in_any_batch():
    drift = OdometryConfig(scale=0.02, gyro_degrees=0.1)
    together, alone = flown(drift), flown(drift, KEYS[5:6])
    assert torch.equal(together[0][5], alone[0][0]) and torch.equal(together[1][5], alone[1][0])


def test_drift_is_the_same_on_every_course():
    drift = OdometryConfig(scale=0.02, gyro_degrees=0.5)
    (ahead, turned), (aside, also) = flown(drift), flown(drift, course=(1.0, 0.0, 0.0))
    x, y, z = (ahead - START).T
    torch.testing.assert_close(aside - START, torch.stack([-z, y, x], dim=1), atol=1e-4, rtol=0)
    assert torch.equal(turned, also)
