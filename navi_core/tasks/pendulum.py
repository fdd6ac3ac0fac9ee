"""Swing a pendulum up and hold it there, step for step as Gymnasium's Pendulum-v1."""

import math

import torch
from torch import Tensor

from navi_core.config.policy import Spaces
from navi_core.tasks.task import ReferenceTask, State
from navi_core.world.counter_random import Purpose, uniform

_GRAVITY, _MASS, _LENGTH, _SECONDS = 10.0, 1.0, 1.0, 0.05
_TORQUE, _SPEED = 2.0, 8.0


class Pendulum(ReferenceTask):
    """Reward −(angle² + 0.1·speed² + 0.001·torque²) a decision, 200 decisions.

    Args:
        num_envs: Rows B.
        seed: Seed of the starts.
        masked: Show the angle's cosine and sine alone; the speed must be remembered.
        first_row: Number of the first row among those of the run.
    """

    limit = 200

    def __init__(self, num_envs: int, seed: int = 0, *, masked: bool = True, first_row: int = 0) -> None:
        self.masked = masked
        self.spaces = Spaces(2 if masked else 3)
        super().__init__(num_envs, seed, first_row=first_row)

    def _begin(self, episode: Tensor) -> State:
        number = torch.arange(2)
        draw = uniform(self.seed, Purpose.TASK, self.rows[:, None].expand(-1, 2), episode[:, None], number)
        return {"body": (2 * draw - 1) * torch.tensor([math.pi, 1.0], dtype=torch.float64)}

    def _observe(self, state: State) -> Tensor:
        angle, speed = state["body"].unbind(1)
        seen = (angle.cos(), angle.sin())
        return torch.stack(seen if self.masked else (*seen, speed), dim=1)

    def _advance(self, state: State, action: Tensor) -> tuple[State, Tensor, Tensor]:
        angle, speed = state["body"].unbind(1)
        torque = (action[:, 0].double().clamp(-1, 1)) * _TORQUE
        upright = torch.remainder(angle + math.pi, 2 * math.pi) - math.pi
        cost = upright.square() + 0.1 * speed.square() + 0.001 * torque.square()
        pull = 3 * _GRAVITY / (2 * _LENGTH) * angle.sin() + 3.0 / (_MASS * _LENGTH**2) * torque
        speed = (speed + pull * _SECONDS).clamp(-_SPEED, _SPEED)
        body = torch.stack((angle + speed * _SECONDS, speed), dim=1)
        return {"body": body}, -cost, torch.zeros_like(cost, dtype=torch.bool)
