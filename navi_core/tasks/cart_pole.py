"""Balance a pole on a cart (Barto, Sutton and Anderson 1983), step for step as Gymnasium's CartPole-v1."""

import math

import torch
from torch import Tensor

from navi_core.config.policy import Spaces
from navi_core.tasks.task import ReferenceTask, State
from navi_core.world.counter_random import Purpose, uniform

_GRAVITY, _CART, _POLE, _HALF_LENGTH = 9.8, 1.0, 0.1, 0.5
_FORCE, _SECONDS = 10.0, 0.02
_FAR, _STEEP = 2.4, 12 * 2 * math.pi / 360


class CartPole(ReferenceTask):
    """Reward 1 a decision until the pole falls or the cart leaves; 500 decisions at most.

    Args:
        num_envs: Rows B.
        seed: Seed of the starts.
        masked: Show position and angle alone; the velocities must be remembered.
        first_row: Number of the first row among those of the run.
    """

    limit = 500

    def __init__(self, num_envs: int, seed: int = 0, *, masked: bool = True, first_row: int = 0) -> None:
        self.masked = masked
        scale = (_FAR, _STEEP) if masked else (_FAR, 1.0, _STEEP, 1.0)
        self.spaces = Spaces(len(scale), 1, ((0.0,), (1.0,)), scale)
        super().__init__(num_envs, seed, first_row=first_row)

    def _begin(self, episode: Tensor) -> State:
        number = torch.arange(4)
        draw = uniform(self.seed, Purpose.TASK, self.rows[:, None].expand(-1, 4), episode[:, None], number)
        return {"body": draw * 0.1 - 0.05}

    def _observe(self, state: State) -> Tensor:
        return state["body"][:, ::2] if self.masked else state["body"]

    def _advance(self, state: State, action: Tensor) -> tuple[State, Tensor, Tensor]:
        x, speed, angle, turn = state["body"].unbind(1)
        force = torch.where(action[:, 0] > 0.5, _FORCE, -_FORCE).double()
        mass, moment = _CART + _POLE, _POLE * _HALF_LENGTH
        cos, sin = angle.cos(), angle.sin()
        pushed = (force + moment * turn.square() * sin) / mass
        turning = (_GRAVITY * sin - cos * pushed) / (_HALF_LENGTH * (4.0 / 3.0 - _POLE * cos.square() / mass))
        moving = pushed - moment * turning * cos / mass
        body = torch.stack(
            (x + _SECONDS * speed, speed + _SECONDS * moving, angle + _SECONDS * turn, turn + _SECONDS * turning), dim=1
        )
        fallen = (body[:, 0].abs() > _FAR) | (body[:, 2].abs() > _STEEP)
        return {"body": body}, torch.ones_like(x), fallen
