"""Point-goal metrics: success, SPL and SoftSPL.

SPL, success weighted by path length, is S · l / max(p, l) of an episode: S whether it stopped at the goal, l the
geodesic distance from start to goal, p the length of the path flown (Anderson et al. 2018, On evaluation of embodied
navigation agents, arXiv:1807.06757). SoftSPL replaces S by 1 − d/l, the covered fraction of the way, with d the
remaining geodesic distance (Datta et al. 2020, arXiv:2009.03231).
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


def path_weight(geodesic: float, path: float) -> float:
    """Return the SPL weight l / max(p, l).

    Args:
        geodesic: Shortest distance l [m].
        path: Length of the flown path p [m].
    """
    return geodesic / max(path, geodesic) if geodesic > 0 else 1.0


def goal_metrics(floor: FloorMap, start: Start, flight: Flight, path: float) -> dict[str, Any]:
    """Return the goal columns of an episode's row.

    Args:
        floor: Reachable floor of its scene.
        start: Start and goal.
        flight: The flight.
        path: Length of the flown path [m].

    Returns:
        `goal_x`, `goal_y`, `goal_z` [m]; `success`; `spl`, `soft_spl` in [0, 1]; `geodesic`, the distance from the
        start, and `goal_distance`, the remaining distance [m].

    Raises:
        EvaluationError: The start has no goal, or the goal is unreachable.
    """
    if start.goal is None:
        raise EvaluationError(
            f"start {start.index} of {start.scene} has no goal; build the course with --task point_goal"
        )
    ways = way_to(floor, np.array(start.goal))
    positions = flight.positions.astype(np.float64)
    along = way_lengths(floor, ways, positions)
    known = np.flatnonzero(np.isfinite(along))
    if not len(known):
        raise EvaluationError(f"the goal of start {start.index} of {start.scene} is unreachable; take another seed")
    first, at = float(along[0]), int(known[-1])
    # Close to a wall no distance is known: take the last known one plus the straight line from there.
    left = float(along[at] + np.linalg.norm(positions[-1] - positions[at]))
    weight = path_weight(first, path)
    return {
        **dict(zip(("goal_x", "goal_y", "goal_z"), start.goal, strict=True)),
        "success": flight.success,
        "spl": weight if flight.success else 0.0,
        "soft_spl": max(0.0, 1.0 - left / first) * weight if first > 0 else float(flight.success),
        "geodesic": first,
        "goal_distance": left,
    }
