"""Where a drone flies, for those who watch: the picture from above with the floor it has seen, and where that lies."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from navi_core.world import NavigationEnv
from navi_core.world.floor.overhead import Overhead, OverheadMaps, tint_seen

__all__ = ["SceneView"]

_EVERY = 5
"""Observations to a picture from above."""


class SceneView:
    """Draws an environment's scenes for viewers.

    Args:
        env: What is flown; it is read alone.
    """

    def __init__(self, env: NavigationEnv) -> None:
        self._env, self._maps = env, OverheadMaps(env.field, env.floors)
        self._at: tuple[int, int, Overhead] | None = None
        self._asked = 0

    def look(self, row: int, height: float) -> tuple[dict[str, float], npt.NDArray[np.uint8]] | None:
        """Return the values of the scene event, and the (256, 256, 3) picture; None where the last one will do.

        With every picture it is also told where it lies: a viewer may have come since the last one.

        Args:
            row: The drone.
            height: It flies at [m].
        """
        env = self._env
        scene, episode = (int(env.counters[name][row]) for name in ("scene", "episode"))
        view = self._maps.at(scene, height)
        place, turn = (row, episode, view), self._asked
        self._asked += 1
        if place == self._at and turn % _EVERY:
            return None
        self._at = place
        low, high = env.field.bounds(scene)
        values = {
            "scene": scene, "scenes": env.field.num_scenes, "rows": env.num_envs,
            "max_distance": env.config.max_distance, "decision_hz": env.config.dynamics.decision_hz,
            "low_x": low[0], "low_y": low[1], "low_z": low[2], "high_x": high[0], "high_y": high[1], "high_z": high[2],
            "corner_x": view.corner[0], "corner_z": view.corner[1], "metres_per_pixel": view.metres_per_pixel,
            "height": view.height,
        }  # fmt: skip
        return values, tint_seen(view, env.view.seen[row].cpu().numpy())
