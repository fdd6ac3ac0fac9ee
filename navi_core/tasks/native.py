"""Steps of cart-pole and acrobot in one compiled loop over rows: physics, time limit, autoreset and observation."""

import torch
from torch import Tensor

from navi_core.tasks.acrobot import Acrobot
from navi_core.tasks.cart_pole import CartPole
from navi_core.tasks.control_kernels import ACROBOT, CART_POLE, step_episodes
from navi_core.tasks.task import ReferenceTask
from navi_core.world.counter_random import Purpose, stream_key
from navi_core.world.interface import StepBatch, StepInfo

_KINDS: dict[type[ReferenceTask], int] = {CartPole: CART_POLE, Acrobot: ACROBOT}


class NativeStep:
    """Compiled twin of a reference task's `step`; the state stays in the task and is changed in place.

    Rounding of sine and cosine apart, the rows follow the same trajectories. The tensors of a batch are overwritten
    by the next step.

    Args:
        task: A task for which `supports` holds.
    """

    def __init__(self, task: ReferenceTask) -> None:
        self.task, self._kind = task, _KINDS[type(task)]
        self._key, self._first = stream_key(task.seed, Purpose.TASK), int(task.rows[0])
        rows, numbers = task.num_envs, 4 if isinstance(task, CartPole) else task.spaces.observation
        self._obs, self._final = torch.zeros((2, rows, numbers))
        self._reward, self._returns, self._speed = torch.zeros((3, rows))
        self._terminated, self._truncated = torch.zeros((2, rows), dtype=torch.bool)
        self._lengths = torch.zeros(rows, dtype=torch.int64)
        self._shown = slice(None, None, 2) if getattr(task, "masked", False) else slice(None)

    @staticmethod
    def supports(env: object) -> bool:
        """Return whether an environment is a task with a compiled step."""
        return type(env) in _KINDS

    def __call__(self, actions: Tensor) -> StepBatch:
        """Advance every row by one decision, actions (B, 1) float32."""
        written = (
            self._obs, self._final, self._reward, self._terminated, self._truncated, self._returns, self._lengths
        )  # fmt: skip
        step_episodes(
            self._kind, self._key, self._first, self.task.limit, actions[:, 0].numpy(),
            *(x.numpy() for x in (*self.task.rows_state(), *written)),
        )  # fmt: skip
        info: StepInfo = {
            "reward_terms": {"reward": self._reward},
            "speed": self._speed,
            "episode_return": self._returns,
            "episode_length": self._lengths,
        }
        obs, final = self._obs[:, self._shown], self._final[:, self._shown]
        return StepBatch(obs, self._reward, self._terminated, self._truncated, final, info)
