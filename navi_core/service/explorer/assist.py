"""Assisted flight: slows a person's command before obstacles, by the lookahead of the safety gate."""

import numpy as np
import numpy.typing as npt
import torch

from navi_core.config import GateConfig
from navi_core.world import NavigationEnv
from navi_core.world.lookahead import HorizonFlight, Start

_MARGIN = 0.05
"""Clearance beyond the drone's radius that is kept where possible [m]."""


class FlightAssist:
    """Flies each command ahead with less and less of its translation, and takes the first that touches nothing.

    Args:
        env: Environment of one drone, on the CPU.
    """

    def __init__(self, env: NavigationEnv) -> None:
        self._env = env
        config, drone = GateConfig(), env.config.dynamics
        self._shares = torch.tensor([1.0, *config.slower])
        radii = (drone.radius + _MARGIN, drone.radius)
        self._ahead = [
            HorizonFlight(env.field, drone.model_copy(update={"radius": r}), config.substeps, env.config.max_distance)
            for r in radii
        ]

    def slowed(
        self, observation: npt.NDArray[np.float32], action: npt.NDArray[np.float32]
    ) -> tuple[npt.NDArray[np.float32], float]:
        """Return the fastest free command of an action, and the share of its translation, 0 to 1.

        Args:
            observation: (3, Az, El) of the drone now.
            action: (4,) wanted, in [−1, 1].
        """
        if not action[:3].any():
            return action, 1.0
        state, count = self._env.drone_state(), len(self._shares)
        tried = torch.from_numpy(action).repeat(count, 1)
        tried[:, :3] *= self._shares[:, None]
        position, yaw, velocity = (state[name].repeat_interleave(count, 0) for name in ("position", "yaw", "velocity"))
        scene, seen = self._env.counters["scene"].repeat(count), torch.from_numpy(observation)[None]
        start = Start(position, yaw, velocity, scene, seen, torch.zeros(count, dtype=torch.int64))
        for ahead in self._ahead:
            free = (~ahead.fly(start, tried).collided).nonzero()
            if len(free):
                chosen = int(free[0])
                return tried[chosen].numpy(), float(self._shares[chosen])
        return tried[-1].numpy(), 0.0
