"""The drone by hand: smoothing, axes, limiter, collisions per substep."""

from __future__ import annotations

import math

import pytest
import torch

from navi_core.config import DynamicsConfig, EnvConfig
from navi_core.world import Dynamics, Field, FloorMap, NavigationEnv

SCENE = torch.zeros(1, dtype=torch.int64)
FREE = torch.tensor([torch.inf])


@pytest.fixture(scope="module")
def field(box_scene) -> Field:
    return Field([box_scene])


def fly(field: Field, action: list[float], substeps: int = 1, yaw: float = 0.0, front: torch.Tensor = FREE, start=None):
    dynamics = Dynamics(field, DynamicsConfig(steps_per_decision=substeps))
    position = torch.tensor([start or [0.0, 1.25, 0.0]])
    return dynamics.step(position, torch.tensor([yaw]), torch.zeros(1, 4), torch.tensor([action]), front, SCENE)


def test_full_forward_from_rest(field: Field) -> None:
    assert fly(field, [1, 0, 0, 0]).position[0].tolist() == pytest.approx([0, 1.25, -0.085], abs=1e-6)
    two = fly(field, [1, 0, 0, 0], substeps=2).position[0, 2]
    assert float(two) == pytest.approx(-0.085 - (0.85 * 5 + 0.15 * 4.25) * 0.02, abs=1e-6)


def test_steady_forward_flight_is_a_tenth_of_a_metre_per_substep(field: Field) -> None:
    flown = [float(fly(field, [1, 0, 0, 0], substeps=n).position[0, 2]) for n in (9, 10)]
    assert flown[1] - flown[0] == pytest.approx(-0.1, abs=1e-5)


def test_yaw_from_rest_and_steady(field: Field) -> None:
    assert float(fly(field, [0, 0, 0, 1]).yaw) == pytest.approx(0.051, abs=1e-6)
    turned = [float(fly(field, [0, 0, 0, 1], substeps=n).yaw) for n in (9, 10)]
    assert turned[1] - turned[0] == pytest.approx(0.06, abs=1e-5)


def test_axes(field: Field) -> None:
    assert fly(field, [0, 0, 1, 0]).position[0, 0] > 0  # lateral is to the right
    assert fly(field, [0, 1, 0, 0]).position[0, 1] > 1.25
    left = fly(field, [1, 0, 0, 0], yaw=math.pi / 2).position[0]  # a left turn faces −X
    assert left.tolist() == pytest.approx([-0.085, 1.25, 0], abs=1e-6)


def test_yaw_turns_before_the_translation(field: Field) -> None:
    motion = fly(field, [1, 0, 0, 1])
    assert float(motion.position[0, 0]) == pytest.approx(-math.sin(0.051) * 0.085, abs=1e-6)


def test_actions_are_clamped_here(field: Field) -> None:
    assert torch.equal(fly(field, [9, 0, 0, 0]).position, fly(field, [1, 0, 0, 0]).position)


def test_a_body_has_its_own_limits_and_response(field: Field) -> None:
    dynamics = Dynamics(field, DynamicsConfig(steps_per_decision=2))
    bodies = torch.tensor([[0.5, 0.2, 0.4]])  # half the speed, radius (m), smoothing
    rest = torch.tensor([[0.0, 1.25, 0.0]]), torch.zeros(1), torch.zeros(1, 4)
    velocity = dynamics.step(*rest, torch.tensor([[1.0, 0, 0, 0]]), FREE, SCENE, bodies).velocity
    assert float(velocity[0, 0]) == pytest.approx(2.5 * (1 - 0.6**2))


def test_limiter_scales_linear_axes_only(field: Field) -> None:
    near = fly(field, [1, 0, 0, 1], front=torch.tensor([0.4]))
    assert float(near.velocity[0, 0]) == pytest.approx(0.85 * 5 * 0.5)
    assert float(near.velocity[0, 3]) == pytest.approx(0.85 * 3)
    assert float(fly(field, [1, 0, 0, 0], front=torch.tensor([0.001])).velocity[0, 0]) == pytest.approx(0.85 * 5 * 0.05)


def test_collision_reverts_the_substep_and_stops(field: Field) -> None:
    # 0.25 m before the wall at z = −2: two substeps fit before clearance falls under 0.15 m.
    motion = fly(field, [1, 0, 0, 0], substeps=2, start=[0.0, 1.25, -1.75])
    assert bool(motion.collided)
    assert float(motion.position[0, 2]) == pytest.approx(-1.835, abs=1e-5)  # the second substep was reverted
    assert motion.velocity[0].tolist() == [0, 0, 0, 0]
    assert float(motion.attempted_speed) == pytest.approx(0.85 * 5 + 0.15 * 4.25, abs=1e-4)


def test_drones_keep_their_radius_from_surfaces(field: Field) -> None:
    dynamics = Dynamics(field, DynamicsConfig())
    generator = torch.Generator().manual_seed(0)
    rows = 64
    position, yaw = torch.tensor([[0.0, 1.25, 0.0]]).repeat(rows, 1), torch.rand(rows, generator=generator) * 6
    velocity, scene = torch.zeros(rows, 4), torch.zeros(rows, dtype=torch.int64)
    for _ in range(60):
        action = torch.rand(rows, 4, generator=generator) * 2 - 1
        motion = dynamics.step(position, yaw, velocity, action, torch.full((rows,), torch.inf), scene)
        position, yaw, velocity = motion.position, motion.yaw, motion.velocity
        assert (field.distance(position, scene) >= 0.15 - 1e-6).all()


def test_front_distance_looks_ahead_within_its_band(field: Field) -> None:
    dynamics = Dynamics(field, DynamicsConfig())
    depth = torch.full((1, 16 * 5), 9.0)
    valid = torch.ones_like(depth, dtype=torch.bool)
    grid = depth.view(1, 16, 5)
    grid[0, 0, 0] = 0.1  # straight up: outside ±30°
    grid[0, 8, 2] = 0.2  # behind
    grid[0, 15, 2] = 3.0  # last Az//8 bins: ahead
    assert float(dynamics.front_distance(depth, valid, 16)) == 3.0
    assert dynamics.front_distance(depth, ~valid, 16).isinf().all()


def test_ahead_is_the_first_and_the_last_eighth_of_the_circle(field: Field) -> None:
    dynamics, seen = Dynamics(field, DynamicsConfig()), []
    for azimuth in range(24):
        depth = torch.full((1, 24, 5), 9.0)
        depth[0, azimuth, 2] = 1.0
        valid = torch.ones(1, 24 * 5, dtype=torch.bool)
        if float(dynamics.front_distance(depth.flatten(1), valid, 24)) == 1.0:
            seen.append(azimuth)
    assert seen == [0, 1, 2, 21, 22, 23]


def test_a_band_between_the_bins_still_looks_ahead(field: Field) -> None:
    dynamics = Dynamics(field, DynamicsConfig(limiter_elevation_degrees=3.0))
    depth = torch.full((1, 8 * 4), 9.0)
    depth.view(1, 8, 4)[0, 0, 1] = 2.0  # elevation 30°, the nearest to the horizon of four bins
    depth.view(1, 8, 4)[0, 0, 0] = 0.5
    assert float(dynamics.front_distance(depth, torch.ones_like(depth, dtype=torch.bool), 8)) == 2.0


def test_limiter_scales_vertical_and_lateral_speed(field: Field) -> None:
    free = fly(field, [1, 1, 1, 1]).velocity[0]
    assert free.tolist() == pytest.approx([0.85 * v for v in (5.0, 2.0, 3.0, 3.0)])
    near = fly(field, [1, 1, 1, 1], front=torch.tensor([0.2])).velocity[0]
    assert near.tolist() == pytest.approx([0.85 * v for v in (1.25, 0.5, 0.75, 3.0)])


def test_acceleration_limits_bound_each_substep(field):
    """4 m/s² for 0.02 s are 0.08 m/s; 10 rad/s² are 0.2 rad/s."""
    config = DynamicsConfig(max_acceleration=4.0, max_yaw_acceleration=10.0)
    for kernels in (True, False):
        motion = Dynamics(field, config, kernels=kernels).step(
            torch.tensor([[0.0, 1.2, 0.0]]), torch.zeros(1), torch.zeros(1, 4), torch.tensor([[1.0, 0.0, -1.0, 1.0]]),
            torch.tensor([torch.inf]), torch.zeros(1, dtype=torch.int64),
        )  # fmt: skip
        assert motion.velocity[0].tolist() == pytest.approx([0.4, 0.0, -0.4, 1.0], abs=1e-5)


def test_height_limit_stops_the_climb_without_a_collision(field):
    """The box reaches from 0 to 2.5 m; a drone that starts above the limit may only sink."""
    start, up = torch.tensor([[0.0, 1.2, 0.0], [0.0, 1.9, 0.0]]), torch.tensor([[0.5, 1.0, 0.3, 0.4]] * 2)
    found = []
    for kernels in (True, False):
        dynamics = Dynamics(field, DynamicsConfig(height_limit=1.5), kernels=kernels)
        state = start, torch.zeros(2), torch.zeros(2, 4)
        for _ in range(6):
            front = torch.full((2,), torch.inf)
            motion = dynamics.step(*state, up, front, torch.zeros(2, dtype=torch.int64))
            state = motion.position, motion.yaw, motion.velocity
            assert not motion.collided.any()
        found.append(state)
        assert motion.position[:, 1].tolist() == pytest.approx([1.5, 1.9]) and not motion.velocity[:, 1].any()
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


def test_nothing_above_the_height_limit_is_reachable(field):
    low, free = FloorMap(field, 0, 0.1, 0.2, height_limit=1.5), FloorMap(field, 0, 0.1, 0.2)
    assert low.height[1] <= 1.5 < free.height[1] and torch.equal(low.reachable, free.reachable)
    env = NavigationEnv(field, 8, EnvConfig(azimuth_bins=16, elevation_bins=8, dynamics={"height_limit": 1.5}), seed=2)
    up = torch.tensor([[1.0, 1.0, 0.0, 0.3]] * 8)
    heights = [env.step(up).info["position"][:, 1].max() for _ in range(20)]
    assert max(heights) <= 1.5 + 1e-6
