"""Depth images become the observations that rays from the same pose have."""

from __future__ import annotations

import math

import pytest
import torch

from navi_core.errors import ConfigError
from navi_core.policy.observation import known_rays
from navi_core.world import Field, SphericalSensor
from navi_core.world.sensor.panorama import denormalise_depth
from navi_core.world.sensor.pinhole import Intrinsics, PinholeAdapter
from navi_core.world.sensor.profiles import PROFILES

AZ, EL, REACH = 64, 16, 100.0
HEIGHT, WIDTH = 270, 480
CAMERA = Intrinsics(
    WIDTH / 2 / math.tan(math.radians(43.5)),
    HEIGHT / 2 / math.tan(math.radians(29.0)),
    WIDTH / 2 - 0.5,
    HEIGHT / 2 - 0.5,
)


def image(field, position, yaw, heading):
    """Cast the rays of every pixel of a camera at a pose; return planar depth (1, H, W) [m], 0 where nothing is met."""
    row, column = torch.meshgrid(torch.arange(HEIGHT), torch.arange(WIDTH), indexing="ij")
    side, up = (column - CAMERA.cx) / CAMERA.fx, (CAMERA.cy - row) / CAMERA.fy
    right = side * math.cos(heading) + math.sin(heading)
    ahead = math.cos(heading) - side * math.sin(heading)
    ray = torch.stack([right, up, -ahead], dim=2).flatten(0, 1)
    length = ray.norm(dim=1)
    ray = ray / length[:, None]
    cos, sin = math.cos(yaw), math.sin(yaw)
    turned = torch.stack([ray[:, 0] * cos + ray[:, 2] * sin, ray[:, 1], ray[:, 2] * cos - ray[:, 0] * sin], dim=1)
    hits = field.cast_rays(position, turned.float(), torch.zeros(1, dtype=torch.int64), REACH)
    return torch.where(hits.valid, hits.depth / length, 0.0).view(1, HEIGHT, WIDTH)


@pytest.mark.parametrize("heading", [0.0, math.pi / 2])
def test_an_image_is_the_observation_of_the_rays_in_it(box_scene, heading):
    field, yaw = Field([box_scene]), 0.7
    position = torch.tensor([[0.3, 1.2, -0.4]])
    sensor = SphericalSensor(field, AZ, EL, REACH)
    true = sensor.observation(sensor.cast(position, torch.tensor([yaw]), torch.zeros(1, dtype=torch.int64)))
    adapter = PinholeAdapter(CAMERA, HEIGHT, WIDTH, AZ, EL, REACH, nearest=0.3, farthest=2.0, heading=heading)
    shown = adapter.observe(image(field, position, yaw, heading))
    known = known_rays(shown)[0]
    turned = torch.roll(known, -round(heading / (2 * math.pi) * AZ), dims=0)
    assert torch.equal(turned, PROFILES["camera"].sees(sensor.directions).view(AZ, EL))
    metres, expected = (denormalise_depth(x[0, 0], REACH)[known] for x in (shown, true))
    # The nearest pixel lies up to half a pixel beside the ray.
    assert (metres - expected.clamp(max=2.0)).abs().max() < 0.03
    beyond = expected > 2.03
    assert beyond.any() and (shown[0, 2][known][beyond] == 0).all()
    assert (shown[0, 2][known][expected < 1.97] == 1).all()


def test_pixels_without_depth_are_unknown():
    adapter = PinholeAdapter(CAMERA, HEIGHT, WIDTH, AZ, EL, REACH)
    for nothing in (0.0, math.nan, -math.inf, 0.1):
        assert not known_rays(adapter.observe(torch.full((2, HEIGHT, WIDTH), nothing))).any()
    spherical = PinholeAdapter(CAMERA, HEIGHT, WIDTH, AZ, EL, REACH, nearest=0.5, planar=False)
    assert known_rays(spherical.observe(torch.full((1, HEIGHT, WIDTH), 0.5))).any(), "the nearest depth is measured"
    # Nothing within range (REP 117): free as far as the camera measures, like a surface beyond.
    free, beyond = (adapter.observe(torch.full((1, HEIGHT, WIDTH), depth)) for depth in (math.inf, 20.0))
    assert torch.equal(free, beyond) and known_rays(free).any() and not free[:, 2].any()
    ids = torch.full((1, HEIGHT, WIDTH), 7)
    obs = adapter.observe(torch.full((1, HEIGHT, WIDTH), 2.0), ids)
    assert set(obs[0, 1].unique().tolist()) == {0.0, 7.0}
    with pytest.raises(ConfigError, match="allowed"):
        adapter.observe(torch.zeros(1, 4, 4))
    with pytest.raises(ConfigError, match="no ray"):
        PinholeAdapter(CAMERA, 1, 1, 8, 4, REACH)
