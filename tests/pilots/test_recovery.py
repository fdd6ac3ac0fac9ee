"""Recovery: stuck drones are disturbed until they are 1 m away; moving drones are not."""

from __future__ import annotations

import math

import torch

from navi_core.pilots.pilot import draw_normal
from navi_core.pilots.reactive import Recovery

AHEAD = torch.tensor([[0.99, 0.3, 0.0, 0.8]])


class Drone:
    """Asks for one drone, at decision after decision."""

    def __init__(self, hz: float = 10.0, seed: int = 0, key: int = 5) -> None:
        self.recovery, self.key, self.step = Recovery(1, hz, seed), torch.tensor([key]), 0

    def at(self, x: float = 0.0, yaw: float = 0.0, *, begins: bool = False) -> torch.Tensor:
        pose, step = torch.tensor([[x, 1.0, 0.0, yaw]]), torch.tensor([self.step])
        self.step += 1
        return self.recovery.act(AHEAD, pose, torch.tensor([begins]), self.key, step)

    @property
    def stuck(self) -> bool:
        return bool(self.recovery.stuck)


def test_drone_is_stuck_after_half_a_second_and_free_after_1_m():
    drone = Drone()
    drone.at(begins=True)
    for _ in range(4):
        assert torch.equal(drone.at(), AHEAD)
        assert not drone.stuck
    disturbed = drone.at()
    noise = draw_normal(0, drone.key, torch.zeros(1, dtype=torch.int64), torch.tensor([5]), axes=4)
    expected = (AHEAD + noise).clamp(-1, 1)
    assert drone.stuck
    assert torch.equal(disturbed[:, [0, 2, 3]], expected[:, [0, 2, 3]])
    assert disturbed[0, 1] == AHEAD[0, 1]  # it keeps its height
    for x in (0.05, 0.3, 0.7, 0.99):
        assert not torch.equal(drone.at(x), AHEAD)
        assert drone.stuck
    assert torch.equal(drone.at(1.0), AHEAD)
    assert not drone.stuck
    assert torch.equal(drone.at(1.02), AHEAD)  # the next spot is counted from there


def test_moving_or_turning_drone_is_not_stuck():
    mover, turner = Drone(), Drone()
    for t in range(40):
        mover.at(0.025 * t, begins=t == 0)
        turner.at(yaw=0.025 * t, begins=t == 0)
        assert not mover.stuck
        assert not turner.stuck
    around = Drone()
    for t in range(4):
        around.at(yaw=math.pi - 0.01 if t % 2 else -math.pi + 0.01, begins=t == 0)
    assert not around.stuck
    around.at(yaw=math.pi), around.at(yaw=-math.pi)
    assert around.stuck  # 0.02 rad across the turn of the circle is the same direction


def test_patience_is_half_a_second_at_any_decision_rate():
    drone = Drone(hz=50.0)
    for t in range(25):
        drone.at(begins=t == 0)
    assert not drone.stuck
    drone.at()
    assert drone.stuck
    drone.at(begins=True)
    assert not drone.stuck


def test_disturbances_are_independent_of_other_rows():
    """Rows 3 and 1 of a larger table, in that order, act like tables of one row."""
    together, alone = Recovery(5, 10.0, seed=9), [Drone(seed=9, key=key) for key in (70, 71)]
    keys, rows = torch.tensor([70, 71]), torch.tensor([3, 1])
    for t in range(12):
        pose = torch.tensor([[0.0, 1.0, 0.0, 0.0], [0.0, 1.0, 0.0, 0.0]])
        begins = torch.full((2,), t == 0)
        both = together.act(AHEAD.expand(2, 4), pose, begins, keys, torch.full((2,), t), rows)
        single = torch.cat([drone.at(begins=t == 0) for drone in alone])
        assert torch.equal(both, single)
    assert together.stuck.tolist() == [False, True, False, True, False]
