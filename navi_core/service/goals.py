"""Where drones are to fly: as an environment tells it on the wire, and as an actor hears it."""

from __future__ import annotations

import logging
import time

import torch
from torch import Tensor

from navi_core.config.service import FARTHEST
from navi_core.service.wire import DistanceMatrix, TelemetryEvent
from navi_core.world import NavigationEnv

__all__ = ["GOAL_EVENT", "GoalsHeard", "goal_event"]

GOAL_EVENT = "environment.goal"
"""x, y, z [m] of the place where a drone is to fly in an episode; sent before its first observation there."""

_LOG = logging.getLogger("navi.service")
_MOST = 4096
"""Drones whose goals are kept, as many as a server serves."""


def goal_event(env: NavigationEnv, row: int, *, env_id: int, episode_id: int, step_id: int) -> TelemetryEvent | None:
    """Return what tells where a row flies in its present episode; None in an environment without goals.

    Args:
        env: The environment.
        row: The row.
        env_id: Its number on the wire.
        episode_id: The number of its episode there.
        step_id: Of the decision that led here.
    """
    if env.goals is None:
        return None
    goal = env.goals.at(row, env.counters["scene"]).cpu().numpy()
    return TelemetryEvent(GOAL_EVENT, episode_id, env_id, step_id, goal, time.time())


class GoalsHeard:
    """The goals of an actor's drones, or of those that a viewer hears of, each of one episode.

    Args:
        everyone: x, y, z [m] of a goal of all drones and episodes; None: environments tell them.
    """

    def __init__(self, everyone: tuple[float, float, float] | None = None) -> None:
        self._everyone = None if everyone is None else torch.tensor(everyone)
        self._goals: dict[int, tuple[int, Tensor]] = {}
        self._warned = False

    def hear(self, event: TelemetryEvent) -> bool:
        """Take an event; False where it is no goal, or one that is no place."""
        if event.event_type != GOAL_EVENT or event.payload.shape != (3,):
            return False
        goal = torch.tensor(event.payload.tolist())
        if not bool((goal.abs() <= FARTHEST).all()):
            return False
        self._goals.pop(event.env_id, None)
        self._goals[event.env_id] = (event.episode_id, goal)
        if len(self._goals) > _MOST:
            # The one that was heard of longest ago.
            del self._goals[next(iter(self._goals))]
        return True

    def of(self, matrix: DistanceMatrix) -> Tensor | None:
        """Return where the drone of an observation is to fly (3,) [m]; None where that was not told yet."""
        if self._everyone is not None:
            return self._everyone
        drone = int(matrix.env_ids[0]) if len(matrix.env_ids) else -1
        episode, goal = self._goals.get(drone, (0, None))
        return goal if episode == matrix.episode_id else None

    def warn(self, env_id: int) -> None:
        """Say once that a drone waits for a goal that nobody tells."""
        if not self._warned:
            self._warned = True
            _LOG.warning(
                "drone %d waits for a goal that nobody tells: serve an environment with goals (navi environment "
                "--task point_goal), or give one for all drones (navi serve --goal X,Y,Z)",
                env_id,
            )
