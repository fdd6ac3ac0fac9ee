"""Recovery behaviour of a drone that does not leave its spot.

Where a wall blocks the typical action of a policy, the drone sees the same again, its recurrent state comes to rest,
and it pushes against the wall to its end. Sampled flights come free by themselves, which is why training does not
unlearn it; flights by the typical action need this.
"""

import math

import torch
from torch import Tensor

from navi_core.pilots.pilot import draw_normal

PATIENCE = 0.5
"""A drone that has been on a spot for so long is stuck [s]."""
SPOT = 0.1
"""Radius of a spot [m]."""
SPOT_TURN = 0.1
"""A drone that turns farther is not on the spot [rad]."""
AWAY = 1.0
"""A drone this far from where it was stuck is free [m]."""
DISTURBANCE = 1.0
"""Standard deviation of what is added to the actions meanwhile, but for the vertical one, as a share of the limits."""


class Recovery:
    """Disturbs the actions of stuck drones until they are free; the others' pass unchanged.

    Args:
        rows: Drones R.
        decision_hz: Decisions a second.
        seed: Of the disturbances, which are functions of seed, key and decision alone.

    Attributes:
        stuck: (R,) bool, whose actions were disturbed last.
    """

    def __init__(self, rows: int, decision_hz: float, seed: int = 0) -> None:
        self._seed, self._patience = seed, max(1, round(PATIENCE * decision_hz))
        self._spot = torch.zeros(rows, 4, dtype=torch.float64)
        self._still = torch.zeros(rows, dtype=torch.int64)
        self.stuck = torch.zeros(rows, dtype=torch.bool)

    def act(
        self, action: Tensor, pose: Tensor, begins: Tensor, keys: Tensor, step: Tensor, rows: Tensor | None = None
    ) -> Tensor:
        """Return what some drones do.

        Args:
            action: (n, 4) what their policy wants, as shares of the limits.
            pose: (n, 4) x, y, z [m] and yaw [rad] at which it was decided.
            begins: (n,) bool, a flight begins.
            keys: (n,) int64, whom the disturbances belong to.
            step: (n,) int64, number of the decision.
            rows: (n,) which drones they are; all of them where it is None.

        Returns:
            (n, 4); clamped to [−1, 1] where it is disturbed.
        """
        which = slice(None) if rows is None else rows
        here, spot, still = pose.to(torch.float64), self._spot[which], self._still[which]
        away = (here[:, :3] - spot[:, :3]).norm(dim=1)
        turned = torch.remainder(here[:, 3] - spot[:, 3] + math.pi, 2.0 * math.pi).sub(math.pi).abs()
        stays = (away <= SPOT) & (turned <= SPOT_TURN) & ~begins
        still = torch.where(stays, still + 1, torch.zeros_like(still))
        stuck = (self.stuck[which] & (away < AWAY) & ~begins) | (still >= self._patience)
        # A stuck drone keeps the spot that it must leave.
        self._spot[which] = torch.where((stays | stuck)[:, None], spot, here)
        self._still[which], self.stuck[which] = still, stuck
        if not bool(stuck.any()):
            return action
        noise = DISTURBANCE * draw_normal(self._seed, keys, torch.zeros_like(keys), step, axes=4)
        noise[:, 1] = 0.0
        return torch.where(stuck[:, None], (action + noise.to(action)).clamp(-1.0, 1.0), action)
