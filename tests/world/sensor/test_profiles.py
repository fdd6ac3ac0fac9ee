"""Sensor profiles: fields of view, unknown rays, ages of scans; both steps of the environment agree on them."""

from __future__ import annotations

import math

import pytest
import torch

from navi_core.config import BodiesConfig, DynamicsConfig, EnvConfig, SensorConfig
from navi_core.policy.observation import known_rays
from navi_core.world import Field, NavigationEnv, spherical_directions
from navi_core.world.sensor.faults import SensorClock, SensorFaults
from navi_core.world.sensor.panorama import normalise_depth
from navi_core.world.sensor.profiles import PROFILES

AZ, EL, REACH = 64, 16, 100.0
MIXED = SensorConfig(profiles=("sphere", "lidar", "camera", "four_cameras"), delay=(0, 2), period=2, dropout=0.1)


DRAWN = BodiesConfig(speed=(0.5, 2.0), radius=(0.15, 0.2, 0.3), smoothing=(0.3, 0.9))


def env(field, sensor, rows=6, *, tensor_only=False, **settings):
    config = EnvConfig(
        azimuth_bins=AZ, elevation_bins=EL, max_steps=9, episodes_per_scene=2, stagger=False, sensor=sensor, **settings
    )
    return NavigationEnv(field, rows, config, 3, tensor_only=tensor_only)


@pytest.fixture(scope="module")
def field(apartments):
    return Field(apartments)


def test_fields_of_view_are_those_of_the_data_sheets():
    rays = spherical_directions(AZ, EL)
    seen = {name: profile.sees(rays).view(AZ, EL) for name, profile in PROFILES.items()}
    assert seen["sphere"].all()
    elevation = torch.linspace(90, -90, EL)
    assert torch.equal(seen["lidar"][5], (elevation >= -7) & (elevation <= 52))
    # Ahead within 29 degrees of the horizon; 43.5 degrees to each side.
    assert torch.equal(seen["camera"][0], elevation.abs() <= 29)
    assert seen["camera"][:, EL // 2].nonzero().flatten().tolist() == [*range(8), *range(57, 64)]
    assert torch.equal(seen["four_cameras"][16:32], seen["four_cameras"][:16])
    assert not (seen["camera"] & ~seen["two_cameras"]).any() and not (seen["two_cameras"] & ~seen["four_cameras"]).any()


def test_what_a_camera_does_not_measure_is_unknown():
    obs = torch.zeros(1, 3, AZ, EL)
    metres = torch.full((AZ, EL), 2.0)
    metres[0], metres[1] = 0.2, 7.0
    obs[0, 0], obs[0, 1], obs[0, 2] = normalise_depth(metres, REACH), 4.0, 1.0
    obs[0, 0, 2], obs[0, 1:, 2] = 1.0, 0.0
    zero = torch.zeros(1, dtype=torch.int64)
    shown = SensorFaults(SensorConfig(profiles=("camera",)), 0, zero, REACH).apply(obs, zero, zero)[0]
    known = known_rays(shown[None])[0]
    field_of_view = PROFILES["camera"].sees(spherical_directions(AZ, EL)).view(AZ, EL)
    field_of_view[0] = False  # nearer than 0.3 m
    assert torch.equal(known, field_of_view)
    assert (shown[:, ~known] == 0).all()
    level = EL // 2
    assert shown[0, 3, level] == obs[0, 0, 3, level] and shown[1, 3, level] == 4
    # Beyond the range, or nothing at all: free to the range.
    limit = math.log1p(5.0) / math.log1p(REACH)
    assert shown[:, 1, level].tolist() == shown[:, 2, level].tolist() == pytest.approx([limit, 0.0, 0.0])


def test_dropped_rays_of_a_profile_are_unknown():
    obs = torch.full((1, 3, AZ, EL), 0.5)
    obs[:, 2] = 1.0
    zero = torch.zeros(1, dtype=torch.int64)
    shown = SensorFaults(SensorConfig(profiles=("sphere",), dropout=0.2), 0, zero, REACH).apply(obs, zero, zero)
    share = float((~known_rays(shown)).float().mean())
    assert 0.15 < share < 0.25
    plain = SensorFaults(SensorConfig(dropout=0.2), 0, zero, REACH).apply(obs, zero, zero)
    assert torch.equal(plain[:, 2], shown[:, 2]) and bool((plain[:, 0][plain[:, 2] == 0] == 1).all())


def test_a_full_sphere_flies_as_the_ideal_sensor(field):
    ideal, sphere = env(field, SensorConfig()), env(field, SensorConfig(profiles=("sphere",)))
    generator = torch.Generator().manual_seed(1)
    for _ in range(12):
        action = torch.rand(6, 4, generator=generator) * 2 - 1
        a, b = ideal.step(action), sphere.step(action)
        assert torch.equal(a.obs, b.obs) and torch.equal(a.reward, b.reward)
        assert torch.equal(a.final_obs, b.final_obs)


@pytest.mark.parametrize(
    ("sensor", "settings"),
    [
        (SensorConfig(profiles=("camera",)), {}),
        (MIXED, {"bodies": DRAWN, "dynamics": DynamicsConfig(max_acceleration=8.0, max_yaw_acceleration=10.0)}),
    ],
)
def test_both_steps_agree_with_profiles_delays_and_bodies(field, sensor, settings):
    native, tensor = env(field, sensor, **settings), env(field, sensor, tensor_only=True, **settings)
    generator, gains = torch.Generator().manual_seed(2), 0.0
    for t in range(24):
        action = torch.rand(6, 4, generator=generator) * 2 - 1
        a, b = native.step(action), tensor.step(action)
        # Depths are normalised by two mathematical libraries.
        for name in ("obs", "final_obs"):
            assert torch.allclose(getattr(a, name), getattr(b, name), atol=1e-6), (t, name)
        assert torch.equal(a.reward, b.reward) and torch.equal(a.truncated, b.truncated)
        assert torch.equal(native.view.seen, tensor.view.seen)
        gains += float(a.info["reward_terms"]["view_gain"].sum())
    assert gains > 0
    if settings:
        bodies = native._bodies.current
        assert torch.equal(bodies, tensor._bodies.current) and len(bodies.unique(dim=0)) == 6
        assert set(bodies[:, 1].tolist()) <= set(torch.tensor(DRAWN.radius).tolist())


def test_a_camera_earns_what_lies_in_its_sector(field):
    """Turning on the spot the camera comes to see what the sphere saw at once."""
    sphere, camera = env(field, SensorConfig(profiles=("sphere",))), env(field, SensorConfig(profiles=("camera",)))
    before = camera.view.seen.sum(dim=1)
    assert (before < 0.6 * sphere.view.seen.sum(dim=1)).all()
    for _ in range(6):
        for each in (camera, sphere):
            each.step(torch.tensor([[0.0, 0.0, 0.0, 1.0]]).expand(6, 4))
    assert (camera.view.seen.sum(dim=1) > 1.3 * before).all()
    assert not (camera.view.seen & ~sphere.view.seen).any()


def test_scans_have_their_age(field):
    clock = SensorClock(SensorConfig(delay=(1, 1), period=3), 0, torch.zeros(1, dtype=torch.int64))
    zero = torch.zeros(1, dtype=torch.int64)
    assert [int(clock.age(zero, zero + t)) for t in range(9)] == [0, 1, 2, 3, 1, 2, 3, 1, 2]
    prompt, late = env(field, SensorConfig()), env(field, SensorConfig(delay=(0, 2)))
    scans = [prompt.reset()]
    late.reset()
    for _ in range(7):
        action = torch.full((6, 4), 0.2)
        scans.append(prompt.step(action).obs)
        step = late.step(action)
        age = step.info["scan_age"]
        assert torch.equal(late.scan_age, age)
        for row in range(6):
            assert torch.equal(step.obs[row], scans[-1 - int(age[row])][row])
    assert len(age.unique()) > 1


def test_some_rows_and_restored_states_keep_their_sensors(field):
    whole, parts = env(field, MIXED), env(field, MIXED)
    rows, ages = torch.tensor([4, 1]), set()
    for _ in range(12):
        action = torch.rand(6, 4, generator=torch.Generator().manual_seed(5)) * 2 - 1
        expected = whole.step(action)
        age = whole.scan_age
        stepped = parts.step_rows(rows, action[rows])
        rest = torch.tensor([0, 2, 3, 5])
        assert torch.equal(stepped.obs, expected.obs[rows])
        assert torch.equal(parts.step_rows(rest, action[rest]).obs, expected.obs[rest])
        assert age is not None and torch.equal(parts.scan_age, age)
        ages |= set(age.tolist())
    again = env(field, MIXED)
    again.load_state_dict(whole.state_dict())
    assert torch.equal(again.scan_age, age) and len(ages) > 1
    action = torch.full((6, 4), 0.3)
    assert torch.equal(whole.step(action).reward, again.step(action).reward)
