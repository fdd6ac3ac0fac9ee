"""Point-goal metrics: success, and how straight the way was.

SPL, success weighted by path length, is S · l / max(p, l) of an episode: S whether it stopped at the goal, l the
geodesic distance from start to goal, p the length of the path flown (Anderson et al. 2018, On evaluation of embodied
navigation agents, arXiv:1807.06757). SoftSPL replaces S by 1 − d/l, the share of the way that was covered, d the
geodesic distance that is left (Datta et al. 2020, arXiv:2009.03231).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from navi_core.errors import EvaluationError
from navi_core.world.goals import way_lengths, way_to

if TYPE_CHECKING:
    from navi_core.evaluate.flight.course import Start
    from navi_core.evaluate.flight.frozen_starts import Flight
    from navi_core.world.floor.reachable import FloorMap

__all__ = ["goal_metrics", "path_weight"]


def path_weight(geodesic: float, path: float) -> float:
    """Return l / max(p, l), by which success is weighed.

    Args:
        geodesic: Length of the shortest way l [m].
        path: Length of the way flown p [m].
    """
    return geodesic / max(path, geodesic) if geodesic > 0 else 1.0


def goal_metrics(floor: FloorMap, start: Start, flight: Flight, path: float) -> dict[str, Any]:
    """Return what a row tells of an episode's goal.

    Args:
        floor: Reachable floor of its scene.
        start: Where from and where to.
        flight: What was flown.
        path: Length of it [m].

    Returns:
        `goal_x`, `goal_y`, `goal_z` [m]; `success`; `spl`, `soft_spl` in [0, 1]; `geodesic`, the way from the start,
        and `goal_distance`, the way that was left [m].

    Raises:
        EvaluationError: The start has no goal, or no way leads there.
    """
    if start.goal is None:
        raise EvaluationError(
            f"start {start.index} of {start.scene} has no goal; build the course with --task point_goal"
        )
    ways = way_to(floor, np.array(start.goal))
    places = flight.positions.astype(np.float64)
    along = way_lengths(floor, ways, places)
    known = np.flatnonzero(np.isfinite(along))
    if not len(known):
        raise EvaluationError(f"no way leads from start {start.index} of {start.scene} to its goal; take another seed")
    first, at = float(along[0]), int(known[-1])
    # Close to a wall there is none: the way from the last place that has one, and the straight line from there.
    left = float(along[at] + np.linalg.norm(places[-1] - places[at]))
    weight = path_weight(first, path)
    return {
        **dict(zip(("goal_x", "goal_y", "goal_z"), start.goal)),
        "success": flight.success,
        "spl": weight if flight.success else 0.0,
        "soft_spl": max(0.0, 1.0 - left / first) * weight if first > 0 else float(flight.success),
        "geodesic": first,
        "goal_distance": left,
    }
