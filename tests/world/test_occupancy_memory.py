"""Occupancy memory: odometry and passed poses, independent rows, scrolling, resets and demonstrations."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import torch

from navi_core.config import DynamicsConfig, EnvConfig, PolicyConfig, SensorConfig, parse_config
from navi_core.config.policy import AHEAD, MOVED, OCCUPANCY_INPUTS
from navi_core.demos import index_folder, load_dataset, save_demonstration
from navi_core.errors import ConfigError
from navi_core.learn.algorithms.cloning import demo_places
from navi_core.mapping.occupancy_map import FREE, SEEN, draw
from navi_core.world import Field, NavigationEnv, SphericalSensor
from navi_core.world.goals import relative_goal
from navi_core.world.occupancy_memory import CELL, SIZE, VIEW_RADIUS, OccupancyMemory
from navi_core.world.sensor.faults import SensorFaults
from navi_core.world.sensor.panorama import normalise_depth, spherical_directions
from tests.demos.conftest import make_demo
from tests.evaluate.conftest import boxes_scene

AZ, EL, REACH, ROWS = 64, 16, 100.0, 4


def remember(rows=ROWS):
    return OccupancyMemory(rows, AZ, EL, DynamicsConfig(), REACH)


@pytest.fixture(scope="module")
def hall():
    """11.87 × 2.4 × 10.33 m with a block and a pillar in it; no wall lies on cells' borders, where a hair decides."""
    blocks = (((0, 0, 0), (11.87, 2.4, 10.33)), ((4, 0, 6.5), (6, 2.4, 10.33)), ((7.5, 0, 2), (8, 2.4, 2.5)))
    return Field([boxes_scene("hall", *blocks)])


def poses(env):
    now = env.poses()
    return torch.cat((now["position"], now["yaw"][:, None]), dim=1)


def flown(hall, seed, scale, decisions):
    """Fly at random; return what was seen at each pose, the poses, and the actions and collisions between them."""
    config = EnvConfig(azimuth_bins=AZ, elevation_bins=EL, stagger=False)
    env, generator = NavigationEnv(hall, ROWS, config, seed=seed), torch.Generator().manual_seed(seed)
    seen, where, actions, hits = [env.observe()], [poses(env)], [], 0
    bias = torch.rand(ROWS, 4, generator=generator) * 2 - 1
    for _ in range(decisions):
        action = (bias * 0.5 + torch.rand(ROWS, 4, generator=generator) * 2 - 1) * torch.tensor(scale)
        out = env.step(action)
        seen.append(out.obs.clone())
        where.append(poses(env))
        actions.append(action)
        hits += int(out.info["collision"].sum())
    return seen, where, actions, hits


@pytest.fixture(scope="module")
def free(hall):
    """A flight of twenty decisions without collision."""
    seen, where, actions, hits = flown(hall, 3, (0.3, 0.1, 0.3, 0.8), 20)
    assert hits == 0
    return seen, where, actions


def turned_by(angle, other):
    return torch.remainder(angle - other + math.pi, 2 * math.pi) - math.pi


def test_odometry_is_exact_in_free_flight(free):
    seen, where, actions = free
    memory, start = remember(), where[0].double()
    memory.begin(seen[0])
    sin, cos = start[:, 3].sin(), start[:, 3].cos()
    for obs, true, action in zip(seen[1:], where[1:], actions, strict=True):
        memory.fly(obs, action)
        here, moved = torch.from_numpy(memory.pose), true.double() - start
        # The map's frame begins where the flight did, turned by its heading.
        moved = torch.stack((moved[:, 0] * cos - moved[:, 2] * sin, moved[:, 1], moved[:, 0] * sin + moved[:, 2] * cos))
        assert torch.allclose(here[:, :3], moved.T, atol=1e-4, rtol=0)
        assert turned_by(here[:, 3], true[:, 3] - start[:, 3]).abs().max() < 1e-4
    assert moved.norm(dim=0).max() > 1.0


def test_odometry_stays_close_through_collisions(hall):
    seen, where, actions, hits = flown(hall, 1, (1.0, 0.3, 1.0, 0.6), 50)
    assert hits >= 10
    memory = remember()
    memory.begin(seen[0], pose=where[0])
    for obs, action in zip(seen[1:], actions, strict=True):
        memory.fly(obs, action)
    error = (torch.from_numpy(memory.pose[:, :3]) + where[0][:, :3] - where[-1][:, :3]).norm(dim=1)
    assert error.max() < 0.05, error
    assert turned_by(torch.from_numpy(memory.pose[:, 3]), where[-1][:, 3]).abs().max() < 0.05


def test_passed_poses_give_the_features_of_odometry(free):
    seen, where, actions = free
    reckoning, reported, everyone = remember(), remember(), torch.arange(ROWS)
    assert torch.equal(reckoning.begin(seen[0], pose=where[0]), reported.begin(seen[0], everyone, where[0]))
    for obs, true, action in zip(seen[1:], where[1:], actions, strict=True):
        answer = reckoning.fly(obs, action)
        assert answer.shape == (ROWS, OCCUPANCY_INPUTS)
        assert answer.dtype == torch.float32
        assert answer.isfinite().all()
        assert torch.allclose(answer, reported.follow(obs, true, everyone), atol=1e-3)
    # Without a pose a flight begins with heading 0, wherever it is.
    heading = where[0] * torch.tensor([1.0, 1.0, 1.0, 0.0])
    assert torch.equal(reckoning.begin(seen[0]), reported.begin(seen[0], pose=heading))


def test_late_scans_are_drawn_from_the_pose_that_they_were_taken_from(free):
    seen, where, _ = free
    prompt, late = remember(), OccupancyMemory(ROWS, AZ, EL, DynamicsConfig(), REACH, oldest=1)
    first = torch.ones(ROWS, dtype=torch.bool)
    prompt.look(seen[0], where[0], first)
    late.look(seen[0], where[0], first)
    # The observation of the first decision is shown twice.
    age = torch.ones(ROWS, dtype=torch.int64)
    late.look(seen[0], where[1], ~first, age=age)
    for t in range(1, len(seen) - 1):
        prompt.look(seen[t], where[t], ~first)
        late.look(seen[t], where[t + 1], ~first, age=age)
        assert np.array_equal(prompt.marks, late.marks), t


def test_dropped_out_rays_open_no_wall(free):
    seen, where, _ = free
    faults = SensorFaults(SensorConfig(dropout=0.05), 5, torch.arange(ROWS), REACH)
    true, spoilt, zero = remember(), remember(), torch.zeros(ROWS, dtype=torch.int64)
    for t, (obs, pose) in enumerate(zip(seen, where, strict=True)):
        begins = torch.full((ROWS,), t == 0)
        true.look(obs, pose, begins)
        spoilt.look(faults.apply(obs, zero, zero + t), pose, begins)
    free_there, free_here = (memory.marks & FREE > 0 for memory in (true, spoilt))
    # Nothing but cells that a ray beside would have touched: 12 m of free floor behind a wall would be thirty a ray.
    assert (free_here & ~free_there).sum() < 0.02 * free_there.sum()
    assert (free_there & ~free_here).sum() < 0.02 * free_there.sum()


def test_row_features_are_independent_of_other_rows(free):
    seen, where, actions = free
    whole, part, some = remember(), remember(2), torch.tensor([3, 1])
    assert torch.equal(whole.begin(seen[0])[some], part.begin(seen[0][some]))
    for obs, action in zip(seen[1:], actions, strict=True):
        assert torch.equal(whole.fly(obs, action)[some], part.fly(obs[some], action[some]))
    reported = [whole.begin(seen[0], pose=where[0])[some], part.begin(seen[0][some], pose=where[0][some])]
    for obs, true in zip(seen[1:6], where[1:6], strict=True):
        assert torch.equal(*reported)
        rest = whole.marks[[0, 2]].copy()
        reported = [whole.follow(obs[some], true[some], some), part.follow(obs[some], true[some], torch.arange(2))]
        assert np.array_equal(whole.marks[[0, 2]], rest)


def test_row_reset_forgets_its_map_alone(free):
    seen, _, actions = free
    used, fresh, other, one = remember(), remember(), remember(), torch.tensor([1])
    for memory in (used, other):
        memory.begin(seen[0])
        for obs, action in zip(seen[1:11], actions[:10], strict=True):
            memory.fly(obs, action)
    first = fresh.begin(seen[10])
    assert torch.equal(used.begin(seen[10][one], one), first[one])
    assert used.pose[1].tolist() == [0.0] * 4
    for obs, action in zip(seen[11:], actions[10:], strict=True):
        a, b, c = (memory.fly(obs, action) for memory in (used, fresh, other))
        assert torch.equal(a[1], b[1])
        assert torch.equal(a[[0, 2, 3]], c[[0, 2, 3]])
    assert not torch.equal(a[1], c[1])


def test_restored_memory_continues_bit_for_bit(free):
    seen, _, actions = free
    memory, again = remember(), remember()
    memory.begin(seen[0])
    for obs, action in zip(seen[1:11], actions[:10], strict=True):
        memory.fly(obs, action)
    state = {name: value.clone() for name, value in memory.state_dict().items()}
    again.begin(seen[3])
    again.load_state_dict(state)
    for obs, action in zip(seen[11:], actions[10:], strict=True):
        assert torch.equal(memory.fly(obs, action), again.fly(obs, action))
    assert all(torch.equal(value, again.state_dict()[name]) for name, value in memory.state_dict().items())
    with pytest.raises(ConfigError, match=r"occupancy memory: .* shape"):
        remember(ROWS - 1).load_state_dict(state)
    with pytest.raises(ConfigError, match="reach"):
        OccupancyMemory(ROWS, AZ // 2, EL, DynamicsConfig(), REACH).load_state_dict(state)


def test_observations_of_other_shapes_or_rows_are_refused():
    memory, one = remember(2), torch.zeros(1, 4)
    for wrong in (torch.zeros(2, 3, AZ, EL - 1), torch.zeros(1, 3, AZ, EL), torch.zeros(2, 3, EL, AZ)):
        with pytest.raises(ConfigError, match="observations"):
            memory.begin(wrong)
        with pytest.raises(ConfigError, match="observations"):
            memory.fly(wrong, torch.zeros(2, 4))
    with pytest.raises(ConfigError, match="observations"):
        memory.follow(torch.zeros(2, 3, AZ, EL), one, torch.tensor([1]))


def panorama(pose, low, high):
    """Return what is seen (1, 3, Az, El) from a pose (1, 4) inside an empty box."""
    x, y, z = spherical_directions(AZ, EL).double().T
    sin, cos = pose[0, 3].sin(), pose[0, 3].cos()
    ray = torch.stack((x * cos + z * sin, y, z * cos - x * sin), dim=1)
    wall = torch.where(ray > 0, torch.tensor(high).double(), torch.tensor(low).double())
    depth = ((wall - pose[0, :3]) / ray).nan_to_num(math.inf, math.inf).amin(dim=1)
    obs = torch.stack((normalise_depth(depth, REACH), torch.ones_like(depth), torch.ones_like(depth)))
    return obs.float().view(1, 3, AZ, EL)


def test_box_panorama_helper_matches_the_sensor(box_scene):
    pose = torch.tensor([[0.3, 1.1, -0.4, 0.8]])
    sensor = SphericalSensor(Field([box_scene]), AZ, EL, REACH)
    seen = sensor.observation(sensor.cast(pose[:, :3], pose[:, 3], torch.zeros(1, dtype=torch.int64)))
    assert torch.allclose(panorama(pose, (-2.0, 0.0, -2.0), (2.0, 2.5, 2.0))[:, 0], seen[:, 0], atol=0.02)


def test_a_long_flight_scrolls_and_keeps_the_marks_of_the_window():
    memory, first = remember(1), torch.tensor([0])
    low, high = (-3.0, 0.0, -1.1), (80.0, 2.4, 0.9)
    large = np.zeros((1, 3 * SIZE, 3 * SIZE), np.uint8)
    middle, box = np.zeros((1, 4)), np.full((1, 4), SIZE, np.int64)
    for step in range(90):
        true = torch.tensor([[0.45 * step, 1.2, 0.05 * math.sin(step), 0.1 * step]], dtype=torch.float64)
        obs = panorama(true, low, high)
        if step == 0:
            begin = true.numpy().copy()
            reported = memory.begin(obs, first, true)
        else:
            reported = memory.follow(obs, true, first)
        # The same scans in a map that need not scroll.
        middle[0, :3], middle[0, 3] = true.numpy()[0, :3] - begin[0, :3], true.numpy()[0, 3]
        draw(large, np.array([0]), middle, memory._reach, memory._met, box, CELL, VIEW_RADIUS)
        assert np.abs(memory.pose[0, [0, 2]]).max() <= 16.0
    assert reported[0, -1 - MOVED] == 1.0
    by = np.rint((middle[0, [0, 2]] - memory.pose[0, [0, 2]]) / CELL).astype(int)
    assert by[0] * CELL > 30.0
    assert by[1] == 0
    window = large[0, SIZE + by[0] : 2 * SIZE + by[0], SIZE : 2 * SIZE]
    np.testing.assert_array_equal(memory.marks[0], window)
    # Between the first place that the map still holds and the drone, the floor along the flight has been seen.
    here = int(memory.pose[0, 0] / CELL) + SIZE // 2
    assert here > SIZE // 2
    assert (memory.marks[0, : here + 1, SIZE // 2] == FREE | SEEN).all()


def test_motion_features_are_fractions_of_maximum_motion():
    memory, room, row = remember(1), ((-20.0, 0.0, -20.0), (20.0, 2.4, 20.0)), torch.tensor([0])
    # 5 m/s ahead, 3 m/s to the right and 3 rad/s, for a tenth of a second each; heading π/2 flies towards −x.
    flight = [(0.0, 0.0, 1.5), (0.0, -0.25, 1.5), (0.15, -0.25, 1.5), (0.15, -0.25, 1.35), (0.15, -0.25, 1.35)]
    flight.append((0.15, -0.25, 1.35 + 2 * math.pi))
    wanted = [(0, 0, 0), (0.5, 0, 0), (0, 0.5, 0), (0, 0, -0.5), (0, 0, 0), (0, 0, 0)]
    turn = math.pi / 2 - 1.5
    for step, ((right, back, yaw), expected) in enumerate(zip(flight, wanted, strict=True)):
        x, z = back * math.sin(1.5 + turn), -right * math.sin(1.5 + turn)
        true = torch.tensor([[x, 1.2, z, yaw + turn]], dtype=torch.float64)
        obs = panorama(true, *room)
        reported = memory.begin(obs, row, true) if step == 0 else memory.follow(obs, true, row)
        np.testing.assert_allclose(reported[0, -MOVED:], expected, atol=1e-6)
    assert memory.begin(obs, row, true)[0, -MOVED:].tolist() == [0.0] * MOVED


def test_blocked_drone_has_zero_motion_features():
    """Odometry while the drone pushes at full command against a wall that it touches."""
    memory, pose = remember(1), torch.tensor([[0.0, 1.2, 0.0, 0.0]])
    room = ((-3.03, 0.0, -0.16), (3.07, 2.4, 5.03))
    memory.begin(panorama(pose, *room), pose=pose)
    for _ in range(3):
        reported = memory.fly(panorama(pose, *room), torch.tensor([[1.0, 0.0, 0.0, 1.0]]))
    np.testing.assert_allclose(reported[0, -MOVED:], 0.0, atol=0.02)


def test_leaving_the_map_window_clears_the_map():
    memory, room = remember(1), ((-200.0, 0.0, -2.0), (200.0, 2.4, 2.0))
    there, fresh = torch.tensor([[-100.0, 1.2, 0.0, 0.0]]), remember(1)
    memory.begin(panorama(torch.tensor([[0.0, 1.2, 0.0, 0.0]]), *room), pose=torch.tensor([[0.0, 1.2, 0.0, 0.0]]))
    reported = memory.follow(panorama(there, *room), there, torch.tensor([0]))
    assert torch.equal(reported[:, :-MOVED], fresh.begin(panorama(there, *room), pose=there)[:, :-MOVED])
    # 100 m to the left in one decision is more than a drone can fly: the feature is bounded.
    assert reported[0, -MOVED:].tolist() == [0.0, -2.0, 0.0]
    assert np.array_equal(memory.marks, fresh.marks)


def test_storey_change_starts_a_new_map():
    memory, fresh, first = remember(1), remember(1), torch.tensor([0])
    wide, narrow = ((-5.0, 0.0, -4.0), (6.0, 9.0, 4.5)), ((-2.0, 0.0, -2.5), (2.5, 9.0, 2.0))

    def climb(height, room):
        pose = torch.tensor([[0.0, 1.0 + height, 0.0, 0.3]])
        return panorama(pose, *room), pose

    memory.begin(*climb(0.0, wide)[:1], pose=climb(0.0, wide)[1])
    before = memory.marks.copy()
    memory.follow(*climb(1.45, narrow), first)
    assert ((memory.marks & before) == before).all()
    obs, pose = climb(1.6, narrow)
    reported = memory.follow(obs, pose, first)
    assert torch.equal(reported, fresh.begin(obs, pose=pose))
    assert np.array_equal(memory.marks, fresh.marks)
    # The new storey is as thick: from here it is left upwards and downwards alike.
    memory.follow(*climb(3.05, wide), first)
    after = memory.marks.copy()
    assert (after & before == before).all()
    memory.follow(*climb(0.0, narrow), first)
    assert not np.array_equal(memory.marks, after)
    assert memory.marks.astype(bool).sum() < before.astype(bool).sum()


def test_demonstration_features_follow_flown_actions(tmp_path):
    rng = np.random.default_rng(5)
    did = rng.uniform(-1, 1, (30, 4)).astype(np.float32)
    demo = make_demo(30, starts=(0, 12, 17), flown=did)
    save_demonstration(tmp_path / "a.npz", demo)
    index_folder(tmp_path, ["a.npz"])
    data, dynamics = load_dataset([tmp_path]), DynamicsConfig()
    reported = demo_places(data, dynamics)
    assert reported.shape == (30, OCCUPANCY_INPUTS)
    for episode in data.episodes:
        memory = OccupancyMemory(1, data.azimuth_bins, data.elevation_bins, dynamics, data.max_distance)
        for n in range(episode.start, episode.stop):
            obs = torch.from_numpy(data.observations(np.array([n])))
            answer = memory.begin(obs) if n == episode.start else memory.fly(obs, torch.from_numpy(did[n - 1 : n]))
            np.testing.assert_array_equal(reported[n], answer[0].numpy())
    answered = dataclasses.replace(data, actions=-data.actions)
    np.testing.assert_array_equal(demo_places(answered, dynamics), reported)
    assert not np.array_equal(demo_places(dataclasses.replace(data, flown=data.actions), dynamics), reported)


def test_goal_stays_fixed_while_the_map_scrolls():
    memory, rows = remember(2), torch.arange(2)
    goal = torch.tensor([[25.0, 1.2, -30.0], [-3.0, 1.0, 4.0]])
    obs = torch.zeros(2, 3, AZ, EL)
    obs[:, 0] = 1.0  # nothing is met anywhere: all is free
    for n in range(12):
        position = torch.tensor([[2.0 * n, 1.2, -2.5 * n], [0.4 * n, 1.0, -1.5 * n]])
        yaw = torch.tensor([0.3 * n, -0.2 * n])
        aim, pose = relative_goal(position, yaw, goal), torch.cat((position, yaw[:, None]), dim=1)
        reported = memory.begin(obs, rows, pose, aim) if n == 0 else memory.follow(obs, pose, rows, aim)
        where = memory._origin[:, [0, 2]] + memory._goal
        np.testing.assert_allclose(where, goal[:, [0, 2]].numpy(), atol=1e-4)
        # Cosine to the left of the goal's own bearing, and to the right of the map's: within a step of 45°.
        bearing = reported[:, -MOVED - 2 - 2 * len(AHEAD) : -MOVED - 2].view(2, len(AHEAD), 2)[:, -1]
        away = (goal - position)[:, [0, 2]].norm(dim=1)
        agree = (bearing[:, 0] * aim[:, 1] - bearing[:, 1] * aim[:, 2]) / aim[:, 1:3].norm(dim=1)
        assert ((agree > math.cos(math.radians(30))) | (away < 2 * AHEAD[-1] * CELL)).all()
        assert (reported[:, -MOVED - 1] == 1.0).all()
    explorer = memory.follow(obs, pose, rows)
    assert np.isnan(memory._goal).all()
    assert not torch.equal(explorer, reported)


def test_map_without_trajectory_continues_at_its_own_pose(free):
    seen, where, _ = free
    late = OccupancyMemory(ROWS, AZ, EL, DynamicsConfig(), REACH, oldest=2)
    first, age = torch.ones(ROWS, dtype=torch.bool), torch.ones(ROWS, dtype=torch.int64)
    for t in range(8):
        late.look(seen[max(t - 1, 0)], where[t], first if t == 0 else ~first, age=None if t == 0 else age)
    state = {name: value for name, value in late.state_dict().items() if name != "trajectory"}
    again = OccupancyMemory(ROWS, AZ, EL, DynamicsConfig(), REACH, oldest=2)
    again.load_state_dict(state)
    poses = again.state_dict()["trajectory"]
    assert torch.allclose(poses, where[7][:, None].double().expand(ROWS, 3, 4), atol=1e-6)


def test_coarsest_cells_keep_their_waypoints_apart():
    coarse = OccupancyMemory(1, AZ, EL, DynamicsConfig(), REACH, cell=1.0)
    assert coarse._stride == 1
    with pytest.raises(ConfigError, match="map_cell"):
        parse_config(PolicyConfig, {"map_cell": 0.8})
