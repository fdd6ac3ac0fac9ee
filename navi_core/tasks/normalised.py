"""Observation normalisation of a task: mean 0 and deviation 1 by the observations so far.

The usual preprocessing of tasks with quantities of unlike size, such as those of MuJoCo: (x − mean) / √(variance + ε),
bounded by ±10, with moments of all rows merged in float64 (Chan et al. 1979). They belong to the environment: what the
collector stores is what the policy saw. Of several processes each has its own rows' moments.
"""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from navi_core.config.policy import Spaces
from navi_core.errors import ConfigError
from navi_core.world.interface import Environment, EnvironmentWrapper, StepBatch

_BOUND = 10.0
_EPSILON = 1e-8


class NormalisedTask(EnvironmentWrapper):
    """A task with vector observations, normalised.

    Args:
        task: The task.

    Attributes:
        mean: (n,) float64 of all observations so far.
        variance: (n,) float64, population.
        count: Observations so far.

    Raises:
        ConfigError: The task shows pictures.
    """

    spaces: Spaces

    def __init__(self, task: Environment) -> None:
        super().__init__(task)
        spaces = self.spaces
        if spaces.shape:
            raise ConfigError("normalise_observations is for vectors; pictures are divided by 255 in the network")
        self.spaces = replace(spaces, scale=())
        self.mean = torch.zeros(spaces.observation, dtype=torch.float64)
        self.variance = torch.ones(spaces.observation, dtype=torch.float64)
        self.count = 0

    def reset(self) -> Tensor:
        """Begin every row's first episode; returns (B, n) normalised observations."""
        return self._seen(self.env.reset())

    def step(self, actions: Tensor) -> StepBatch:
        """Advance every row by one decision; observations are normalised, rewards and returns are the task's."""
        batch = self.env.step(actions)
        return replace(batch, obs=self._seen(batch.obs), ended_obs=self._scaled(batch.ended_obs))

    def observe(self) -> Tensor:
        """Return the present observations (B, n), normalised."""
        return self._scaled(self.env.observe())

    def state_dict(self) -> dict[str, Any]:
        """Return the task's state and the moments."""
        moments = {"mean": self.mean.clone(), "variance": self.variance.clone(), "count": self.count}
        return {"task": self.env.state_dict(), "moments": moments}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Undo `state_dict`."""
        moments = state["moments"]
        self.mean, self.variance = moments["mean"].clone(), moments["variance"].clone()
        self.count = int(moments["count"])
        self.env.load_state_dict(state["task"])

    def _seen(self, obs: Tensor) -> Tensor:
        """Merge observations (B, n) into the moments, then return them normalised."""
        values = obs.double()
        count, mean = len(values), values.mean(0)
        total, delta = self.count + count, mean - self.mean
        squares = self.variance * self.count + (values - mean).square().sum(0)
        squares = squares + delta.square() * self.count * count / total
        self.mean = self.mean + delta * count / total
        self.variance, self.count = squares / total, total
        return self._scaled(obs)

    def _scaled(self, obs: Tensor) -> Tensor:
        return ((obs.double() - self.mean) / (self.variance + _EPSILON).sqrt()).clamp(-_BOUND, _BOUND).float()
