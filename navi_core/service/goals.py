"""Goals of drones on the wire: published by an environment, collected by an actor."""

import logging
import time

import torch
from torch import Tensor

from navi_core.config.service import FARTHEST
from navi_core.service.wire import DistanceMatrix, TelemetryEvent
from navi_core.world import NavigationEnv

GOAL_EVENT = "environment.goal"
"""x, y, z [m] of a drone's goal in an episode; sent before its first observation there."""

_LOG = logging.getLogger("navi.service")
_CAPACITY = 4096
"""Drones whose goals are kept, as many as a server serves."""


def goal_event(env: NavigationEnv, row: int, *, env_id: int, episode_id: int, step_id: int) -> TelemetryEvent | None:
    """Return the event with the goal of a row's present episode; None in an environment without goals.

    Args:
        env: The environment.
        row: The row.
        env_id: Its number on the wire.
        episode_id: Number of its episode there.
        step_id: Of the decision that led here.
    """
    if env.goals is None:
        return None
    goal = env.goals.at(row, env.counters["scene"]).cpu().numpy()
    return TelemetryEvent(GOAL_EVENT, episode_id, env_id, step_id, goal, time.time())


class GoalTable:
    """Goals by drone, each of one episode.

    Args:
        common: x, y, z [m] of one goal for all drones and episodes; None: environments publish them.
    """

    def __init__(self, common: tuple[float, float, float] | None = None) -> None:
        self._common = None if common is None else torch.tensor(common)
        self._goals: dict[int, tuple[int, Tensor]] = {}
        self._warned = False

    def update(self, event: TelemetryEvent) -> bool:
        """Take a goal; return false where the event is no goal, or its position is out of bounds."""
        if event.event_type != GOAL_EVENT or event.payload.shape != (3,):
            return False
        goal = torch.tensor(event.payload.tolist())
        if not bool((goal.abs() <= FARTHEST).all()):
            return False
        self._goals.pop(event.env_id, None)
        self._goals[event.env_id] = (event.episode_id, goal)
        if len(self._goals) > _CAPACITY:
            # The least recently updated one.
            del self._goals[next(iter(self._goals))]
        return True

    def goal_of(self, matrix: DistanceMatrix) -> Tensor | None:
        """Return the goal of an observation's drone and episode, (3,) [m]; None where it is unknown."""
        if self._common is not None:
            return self._common
        drone = int(matrix.env_ids[0]) if len(matrix.env_ids) else -1
        episode, goal = self._goals.get(drone, (0, None))
        return goal if episode == matrix.episode_id else None

    def warn_missing(self, env_id: int) -> None:
        """Warn once of a drone whose goal is not published."""
        if not self._warned:
            self._warned = True
            _LOG.warning(
                "drone %d waits for a goal that no environment publishes: serve one with goals (navi environment "
                "--task point_goal), or give one for all drones (navi serve --goal X,Y,Z)",
                env_id,
            )
