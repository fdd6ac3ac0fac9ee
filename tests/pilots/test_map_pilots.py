"""The pilots with a map: their odometry, their search, their shield, and the order they come in."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from navi_core.config import DRIFTS, CompileConfig, DynamicsConfig, EvalConfig, SensorConfig
from navi_core.errors import ConfigError
from navi_core.evaluate import build_course, evaluate
from navi_core.mapping.level_rays import read_levels
from navi_core.mapping.occupancy_map import FAR, FREE, HIT, NEAR_RADIUS, SEEN, VOID, chart
from navi_core.mapping.search import expand, trace_back
from navi_core.pilots import Pose, build_pilot
from navi_core.pilots.pilot import draw_normal, read_scan
from navi_core.scenes import compile_mesh
from navi_core.world import Dynamics, Field, FloorMap, SphericalSensor
from navi_core.world.reckoning import integrate
from tests.conftest import box_triangles, mesh_of

AZ, EL = 64, 16


@pytest.fixture(scope="module")
def field(apartments):
    return Field(apartments)


class Flight:
    """Rows flown by a pilot in a field, with what happened."""

    def __init__(self, field, pilot, keys, scene, *, noise=0.0):
        self.field, self.pilot, self.noise, self.t = field, pilot, noise, 0
        self.keys, self.scene = torch.tensor(keys), torch.tensor(scene)
        floors = [FloorMap(field, index, 0.2, 0.3) for index in range(field.num_scenes)]
        starts = []
        for key, index in zip(keys, scene, strict=True):
            cells = np.argwhere(floors[index].free[:, 5])
            i, k = cells[key * 37 % len(cells)]
            low = field.bounds(index)[0]
            starts.append([low[0] + (i + 0.5) * 0.2, low[1] + 1.1, low[2] + (k + 0.5) * 0.2])
        self.position = torch.tensor(starts, dtype=torch.float32)
        self.yaw = torch.tensor([0.7 * key for key in keys]) % (2 * math.pi)
        self.velocity = torch.zeros(len(keys), 4)
        self.sensor = SphericalSensor(field, AZ, EL, 100.0)
        self.dynamics = Dynamics(field, DynamicsConfig())
        self.collisions = 0
        pilot.attach(field)
        pilot.reset(torch.ones(len(keys), dtype=torch.bool), self.keys)

    def step(self):
        hits = self.sensor.cast(self.position, self.yaw, self.scene)
        pose = Pose(self.position, self.yaw, self.scene) if self.pilot.privileged else None
        action = self.pilot.act(self.sensor.observation(hits), pose=pose)
        answer = action
        if self.noise:
            zero = torch.zeros_like(self.keys)
            action = (action + self.noise * draw_normal(0, self.keys, zero, zero + self.t, axes=4)).clamp(-1, 1)
            self.pilot.executed(action)
        front = self.dynamics.front_distance(hits.depth, hits.valid, AZ)
        motion = self.dynamics.step(self.position, self.yaw, self.velocity, action, front, self.scene)
        self.position, self.yaw, self.velocity = motion.position, motion.yaw, motion.velocity
        self.collisions += int(motion.collided.sum())
        self.t += 1
        return answer


def test_odometry_equals_dynamics_in_free_flight(box_scene):
    field, generator = Field([box_scene]), torch.Generator().manual_seed(1)
    dynamics = Dynamics(field, DynamicsConfig())
    scene = torch.zeros(1, dtype=torch.int64)
    position, yaw, velocity = torch.tensor([[0.0, 1.2, 0.0]]), torch.tensor([0.3]), torch.zeros(1, 4)
    pose, speed = np.array([0.0, 1.2, 0.0, 0.3]), np.zeros(4)
    for _ in range(6):
        action = (torch.rand(1, 4, generator=generator) * 2 - 1) * torch.tensor([0.3, 0.3, 0.3, 1.0])
        motion = dynamics.step(position, yaw, velocity, action, torch.tensor([9.0]), scene)
        assert not motion.collided.any()
        position, yaw, velocity = motion.position, motion.yaw, motion.velocity
        command = action[0].double().numpy() * np.array([5.0, 2.0, 3.0, 3.0])
        integrate(pose.copy(), speed.copy(), command, 0, 5, 0.02, (0.85, math.inf, math.inf), pose, speed)
    np.testing.assert_allclose(pose[:3], position[0].numpy(), atol=1e-5)
    assert pose[3] == pytest.approx(float(yaw), abs=1e-5)
    np.testing.assert_allclose(speed, velocity[0].numpy(), atol=1e-5)


@pytest.mark.slow
def test_odometry_stays_close_through_collisions(field):
    """With strong disturbances the frontier pilot collides often, and its pose estimate stays close."""
    flight = Flight(field, build_pilot("frontier"), [1, 2, 3, 4], [0, 1, 0, 1], noise=0.9)
    begin, turned = flight.position.clone(), flight.yaw.clone()
    for _ in range(80):
        flight.step()
    assert flight.collisions >= 5
    hits = flight.sensor.cast(flight.position, flight.yaw, flight.scene)
    flight.pilot.act(flight.sensor.observation(hits))
    here = torch.from_numpy(flight.pilot._here)
    # The map's frame begins at the start, turned by the first heading.
    sin, cos = turned.sin(), turned.cos()
    moved = flight.position - begin
    x, z = moved[:, 0] * cos - moved[:, 2] * sin, moved[:, 0] * sin + moved[:, 2] * cos
    error = torch.hypot(here[:, 0] - x, here[:, 2] - z)
    assert error.median() < 0.05 and error.max() < 0.4, error


_SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in ("frontier", "oracle")]


@pytest.mark.parametrize("name", ["compass", "planner", *_SLOW])
def test_map_pilot_is_independent_of_batch(field, name):
    together = Flight(field, build_pilot(name, seed=4), [5, 6, 7], [1, 0, 1])
    alone = Flight(field, build_pilot(name, seed=4), [7], [1])
    for _ in range(25):
        row = together.step()[2]
        assert torch.equal(alone.step()[0], row)
        assert row.abs().max() <= 1
    assert torch.equal(alone.position[0], together.position[2])


@pytest.mark.parametrize("name", ["frontier", "compass"])
def test_a_reset_row_begins_a_new_map(field, name):
    pilot = build_pilot(name)
    flight = Flight(field, pilot, [5, 6], [1, 0])
    first = [flight.step() for _ in range(12)]
    again = Flight(field, pilot, [5, 6], [1, 0])
    for action in first:
        assert torch.equal(again.step(), action)


@pytest.mark.slow
def test_pilots_rank_by_coverage(apartments):
    course = build_course(apartments, EvalConfig(starts=2, max_steps=120, block=4))
    mapped = ("frontier", "compass", "planner")
    result = {name: evaluate(name, course).summary for name in ("random", "forward-plus", *mapped)}
    random, plus, frontier, compass, planner = (summary["c_vis_auc"] for summary in result.values())
    assert random < plus < min(frontier, compass) - 5 and max(frontier, compass) < planner
    for name in mapped:
        assert result[name]["collisions_per_minute"] < 5


@pytest.mark.parametrize("name", [pytest.param("frontier", marks=pytest.mark.slow), "compass", "planner"])
def test_late_scans_and_drift_cost_pilots_with_a_map_little(apartments, name):
    common = {"starts": 2, "max_steps": 120, "block": 4}
    faults = {"sensor": SensorConfig(delayed=True), "odometry": DRIFTS["high"]}
    prompt, late = (
        evaluate(name, build_course(apartments, EvalConfig(**common, **more))).summary for more in ({}, faults)
    )
    assert late["c_vis_auc"] > 0.85 * prompt["c_vis_auc"] and late["collisions_per_minute"] < 5
    if name == "planner":
        assert late["collisions_per_minute"] <= prompt["collisions_per_minute"]
        return
    assert "odometry off by 2 % and 0.1 °/s" in late["inputs"] and "one decision late" in late["inputs"]


def test_only_privileged_pilots_accept_a_pose(field):
    obs = torch.zeros(1, 3, AZ, EL)
    pose = Pose(torch.zeros(1, 3), torch.zeros(1), torch.zeros(1, dtype=torch.int64))
    with pytest.raises(ConfigError, match="observations alone"):
        build_pilot("frontier").act(obs, pose=pose)
    planner = build_pilot("planner")
    with pytest.raises(ConfigError, match="privileged and needs pose"):
        planner.act(obs)
    with pytest.raises(ConfigError, match="attach"):
        planner.act(obs, pose=pose)


def test_search_finds_the_cheapest_way():
    """Against a shortest-path routine on the same graph, without a cost for closeness."""
    from scipy.sparse import lil_matrix
    from scipy.sparse.csgraph import dijkstra

    rng = np.random.default_rng(0)
    passable = rng.random((14, 17)) > 0.3
    passable[2, 3] = True
    near = np.full(passable.shape, FAR, np.uint8)
    cost, parent = np.empty(passable.shape, np.float32), np.empty(passable.shape, np.int32)
    expand(passable, near, np.zeros_like(passable), 2, 3, 4, 5.0, False, cost, parent)
    graph = lil_matrix((passable.size, passable.size))
    for i, k in np.argwhere(passable):
        for di in (-1, 0, 1):
            for dk in (-1, 0, 1):
                p, q = i + di, k + dk
                if (di or dk) and 0 <= p < 14 and 0 <= q < 17 and passable[p, q]:
                    graph[i * 17 + k, p * 17 + q] = math.hypot(di, dk)
    expected = dijkstra(graph.tocsr(), indices=2 * 17 + 3).reshape(passable.shape)
    expected[~passable] = np.inf
    np.testing.assert_allclose(cost, expected, rtol=1e-5)
    path = np.zeros(64, np.int32)
    goal = int(np.where(np.isfinite(expected), expected, -1).argmax())
    length = trace_back(parent, goal, path, parent.shape[1])
    steps = np.stack([path[:length] // 17, path[:length] % 17], axis=1)
    assert (np.abs(np.diff(steps, axis=0)).max(axis=1) == 1).all()
    assert tuple(steps[0]) == (2, 3)


def test_search_ends_at_the_nearest_goal_and_keeps_off_surfaces():
    passable, near = np.ones((9, 9), bool), np.full((9, 9), FAR, np.uint8)
    near[4, 1:8] = 0  # a wall across the middle, open at both ends
    goal = np.zeros((9, 9), bool)
    goal[8, 4] = goal[6, 8] = True
    cost, parent = np.empty((9, 9), np.float32), np.empty((9, 9), np.int32)
    assert expand(passable, near, goal, 1, 4, 4, 0.5, True, cost, parent) == 6 * 9 + 8
    near[4, :] = 0
    assert expand(passable, near, goal, 1, 4, 4, 0.5, True, cost, parent) == -1


def test_the_map_of_a_box_room(box_scene):
    """From the middle of the 4 × 4 m box everything is seen and free but the walls, and distances are those to them."""
    field = Field([box_scene])
    sensor = SphericalSensor(field, 128, 24, 100.0)
    zero = torch.zeros(1, dtype=torch.int64)
    obs = sensor.observation(sensor.cast(torch.tensor([[0.0, 1.2, 0.0]]), torch.tensor([0.4]), zero))
    scan = read_scan(obs, 100.0)
    marks, near = np.zeros((1, 100, 100), np.uint8), np.full((1, 100, 100), FAR, np.uint8)
    pose = np.array([[0.0, 1.2, 0.0, 0.4]])
    box = np.full((1, 4), 50, np.int64)
    chart(
        marks, near, pose, pose[:, 1], scan.reach, scan.met, scan.points, scan.valid, np.ones(1, bool), box,
        0.1, 0.25, 3.2,
    )  # fmt: skip
    inside = marks[0, 31:69, 31:69]
    assert (inside & FREE).all()
    assert (inside & SEEN).all()
    assert not (inside & HIT).any()
    assert not (marks[0, :29] & FREE).any()
    assert not (marks[0, 71:] & FREE).any()
    hits = np.argwhere(marks[0] & HIT)
    assert len(hits) >= 100
    assert np.isin(hits, (29, 30, 69, 70)).any(axis=1).all()
    brute = ((np.argwhere(np.ones((100, 100), bool))[:, None] - hits[None]) ** 2).sum(axis=2).min(axis=1)
    brute = np.where(brute <= NEAR_RADIUS**2, brute, FAR).reshape(100, 100)
    np.testing.assert_array_equal(near[0], brute)


@pytest.mark.parametrize("elevations", [7, 8])
def test_dropped_out_ray_is_not_free_in_either_reading(elevations):
    rng = np.random.default_rng(elevations)
    obs = rng.random((5, 3, 16, elevations)).astype(np.float32)
    obs[:, 2] = rng.random(obs[:, 2].shape) < np.array([0.0, 0.05, 0.5, 0.95, 1.0])[:, None, None]
    # A closed surrounding with an opening two bins wide, and far from it one ray that dropped out.
    obs[4, 2, 3:5], obs[4, 2, 10, (elevations - 1) // 2] = 0.0, 0.0
    obs[:, 0] = np.where(obs[:, 2] > 0, obs[:, 0], 1.0)
    scan = read_scan(torch.from_numpy(obs), 50.0)
    levels = ((elevations - 1) // 2, elevations // 2)
    flat = math.cos(math.pi / 2 - levels[0] * math.pi / (elevations - 1))
    reach, met = np.empty((5, 16)), np.empty((5, 16), np.bool_)
    front, clearance = np.empty(5), np.empty(5)
    read_levels(obs, np.arange(5), math.log1p(50.0), levels, (2, 2, 6), flat, reach, met, front, clearance)
    np.testing.assert_allclose(scan.reach, reach, rtol=1e-5)
    np.testing.assert_array_equal(scan.met, met)
    np.testing.assert_allclose(scan.clearance, clearance, rtol=1e-5)
    far = np.isclose(scan.reach[4], 50.0 * flat)
    assert far.nonzero()[0].tolist() == [3, 4]
    assert not met[4, 10]


@pytest.mark.parametrize(
    ("name", "settings", "words"),
    [
        ("frontier", {"unseen": 0}, ["unseen", "0", "[1, 25]"]),
        ("frontier", {"extent": 1.0}, ["extent", "10"]),
        ("frontier", {"replan": 0}, ["replan", "0"]),
        ("compass", {"cell": 0.01}, ["compass", "cell", "0.01"]),
        ("planner", {"patience": 0.0}, ["patience", "0.0"]),
        ("planner", {"speed": 2.0}, ["planner", "speed", "[0.05, 1]"]),
        ("wall-following", {"distance": 0.0}, ["distance", "0.1"]),
        ("farthest-ray", {"braking": -1.0}, ["braking", "-1.0"]),
    ],
)
def test_impossible_settings_are_refused(name, settings, words):
    with pytest.raises(ConfigError) as caught:
        build_pilot(name, **settings)
    for word in words:
        assert word in str(caught.value)


@pytest.fixture(scope="module")
def open_room():
    """A room of 6 × 6 m with walls on three sides, no ceiling, and nothing beyond: who leaves it sees no end."""
    walls = [((-3.1, 0, -3), (-3, 2.4, 3)), ((-3, 0, -3.1), (3, 2.4, -3)), ((-3, 0, 3), (3, 2.4, 3.1))]
    poles = [((7.8, 0, 7.8), (8, 2.4, 8)), ((-8, 0, -8), (-7.8, 2.4, -7.8))]
    floor = [((-3, -0.1, -3), (3, 0, 3))]
    triangles = np.concatenate([box_triangles(*box) for box in walls + poles + floor])
    return compile_mesh(mesh_of(triangles, "open_room"), CompileConfig(resolution=64))


def test_frontier_pilot_stays_above_floor(open_room):
    flight = Flight(Field([open_room]), build_pilot("frontier"), [3, 8], [0, 0])
    for _ in range(60):
        flight.step()
        assert (flight.position[:, 0] < 4.0).all()


def charted(scene, spoil, pilot=None, reach=100.0):
    """Show a frontier pilot an observation from the middle of a box room, spoilt; return it."""
    sensor = SphericalSensor(Field([scene]), AZ, EL, reach)
    zero = torch.zeros(1, dtype=torch.int64)
    obs = sensor.observation(sensor.cast(torch.tensor([[0.0, 1.2, 0.0]]), torch.tensor([0.4]), zero))
    spoil(obs[0, 2])
    obs[0, 0][obs[0, 2] == 0] = 1.0
    if pilot is None:
        pilot = build_pilot("frontier", max_distance=reach)
        pilot.reset(torch.ones(1, dtype=torch.bool), zero)
    pilot.act(obs)
    return pilot


def test_rays_that_dropped_out_make_no_hole_in_a_floor(box_scene):
    """In a closed room every ray that meets nothing dropped out; marked as holes they would end the exploration."""
    pilot = charted(box_scene, lambda valid: valid[::3, ::2].zero_())
    assert (pilot._marks & SEEN).any()
    assert not (pilot._marks & VOID).any()


def test_missing_floor_rays_mark_holes_until_floor_is_seen(box_scene):
    first, last = 8, 24
    pilot = charted(box_scene, lambda valid: valid[first:last].zero_())
    (marks,), middle = pilot._marks & VOID, pilot._marks.shape[1] / 2
    holes = np.argwhere(marks) + 0.5 - middle
    assert holes[:, 0].min() > 0, "on the right alone"
    for a in range(first + 1, last - 1):
        angle = 2 * math.pi * a / AZ
        assert marks[int(middle + 30 * math.sin(angle)), int(middle - 30 * math.cos(angle))]
    charted(box_scene, lambda valid: None, pilot)
    assert 0 < np.count_nonzero(pilot._marks & VOID) < len(holes)


def test_rays_mark_no_hole_beyond_their_range():
    """A ray of 2 m ends above the floor beyond 1.6 m."""
    hall = [((-6, -0.1, -6), (6, 0, 6)), ((5.8, 0, 5.8), (6, 3, 6)), ((-6, 0, -6), (-5.8, 3, -5.8))]
    triangles = np.concatenate([box_triangles(*box) for box in hall])
    pilot = charted(compile_mesh(mesh_of(triangles, "hall"), CompileConfig(resolution=64)), lambda v: None, reach=2.0)
    assert not (pilot._marks & VOID).any()


@pytest.mark.parametrize("name", ["frontier", "planner"])
def test_open_sky_gives_default_flight_height(name):
    """Without a ceiling the pilot flies 1.2 m above the floor, and no computation yields NaN."""
    yard = [((-9, -0.1, -9), (9, 0, 9)), ((8.8, 0, 8.8), (9, 3, 9))]
    triangles = np.concatenate([box_triangles(*box) for box in yard])
    scene = compile_mesh(mesh_of(triangles, "yard"), CompileConfig(resolution=64))
    flight = Flight(Field([scene]), build_pilot(name), [3], [0])
    with np.errstate(all="raise"):
        for _ in range(8):
            flight.step()
    assert flight.position[0, 1].item() == pytest.approx(1.2, abs=0.06)
    assert flight.pilot._settled.all()


def test_planner_drops_unfulfilled_view_at_its_position(field):
    """A view that gains nothing at the position of the drone is not proposed again."""
    pilot = build_pilot("planner")
    flight = Flight(field, pilot, [3], [0])
    flight.step()
    one, cost = pilot._slices[int(pilot._grid[0])], np.full(pilot._slices[0].passable.shape, np.inf, np.float32)
    nearest = int(one.viewpoints[0])
    cost.reshape(-1)[nearest] = 0.0
    seen = np.zeros(one.passable.shape, bool)
    assert pilot._best_view(0, one, seen, cost, here=-1) == nearest
    assert pilot._best_view(0, one, seen, cost, here=nearest) == -1
    assert seen.sum() == one.view_start[1] - one.view_start[0]
