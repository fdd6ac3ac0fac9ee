"""Swing the lower of two links above a line (Sutton 1996), step for step as Gymnasium's Acrobot-v1."""

import math

import numpy as np
import torch
from torch import Tensor

from navi_core.config.policy import Spaces
from navi_core.tasks.control_kernels import ACROBOT, advance_rows
from navi_core.tasks.task import ReferenceTask, State
from navi_core.world.counter_random import Purpose, uniform


class Acrobot(ReferenceTask):
    """Reward −1 a decision until the tip is above the line; 500 decisions at most.

    Args:
        num_envs: Rows B.
        seed: Seed of the starts.
        first_row: Number of the first row among those of the run.
    """

    limit = 500
    spaces = Spaces(6, 1, ((0.0,), (1.0,), (2.0,)), (1.0, 1.0, 1.0, 1.0, 4 * math.pi, 9 * math.pi))

    def _begin(self, episode: Tensor) -> State:
        number = torch.arange(4)
        draw = uniform(self.seed, Purpose.TASK, self.rows[:, None].expand(-1, 4), episode[:, None], number)
        return {"body": draw * 0.2 - 0.1}

    def _observe(self, state: State) -> Tensor:
        first, second, *speeds = state["body"].unbind(1)
        return torch.stack((first.cos(), first.sin(), second.cos(), second.sin(), *speeds), dim=1)

    def _advance(self, state: State, action: Tensor) -> tuple[State, Tensor, Tensor]:
        body = state["body"].clone()
        reward, over = np.zeros(self.num_envs), np.zeros(self.num_envs, dtype=bool)
        advance_rows(ACROBOT, action[:, 0].round().long().numpy(), body.numpy(), reward, over)
        return {"body": body}, torch.from_numpy(reward), torch.from_numpy(over)
