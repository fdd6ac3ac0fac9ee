"""Snake: eat, grow, do not run into a wall or into yourself."""

import numpy as np
import torch
from torch import Tensor

from navi_core.config.policy import Spaces
from navi_core.errors import ConfigError
from navi_core.tasks.snake_kernels import NUMBERS, begin_snakes, move_snakes, see_snakes
from navi_core.tasks.task import ReferenceTask, State
from navi_core.world.counter_random import Purpose, stream_key


class Snake(ReferenceTask):
    """Reward 1 for food, −1 for a crash or for starving; straight on, left or right; 2000 decisions at most.

    A snake starves after as many decisions without food as there are cells. It sees what lies along eight rays from its
    head, and where the food is.

    Args:
        num_envs: Rows B.
        seed: Seed of the food.
        size: Cells of an edge.
        first_row: Number of the first row among those of the run.

    Raises:
        ConfigError: `size` is out of range.
    """

    limit = 2000
    spaces = Spaces(NUMBERS, 1, ((0.0,), (1.0,), (2.0,)))

    def __init__(self, num_envs: int, seed: int = 0, *, size: int = 20, first_row: int = 0) -> None:
        if not 6 <= size <= 200:
            raise ConfigError(f"size is {size}; allowed: 6 … 200")
        self.size, self._key, self._first = size, stream_key(seed, Purpose.TASK), first_row
        super().__init__(num_envs, seed, first_row=first_row)

    def _begin(self, episode: Tensor) -> State:
        body = torch.empty(self.num_envs, self.size**2, dtype=torch.int64)
        snake = torch.empty(self.num_envs, 7, dtype=torch.int64)
        begin_snakes(self.size, self._key, self._first, episode.numpy(), body.numpy(), snake.numpy())
        return {"body": body, "snake": snake}

    def _observe(self, state: State) -> Tensor:
        seen = torch.empty(self.num_envs, NUMBERS)
        see_snakes(self.size, state["body"].numpy(), state["snake"].numpy(), seen.numpy())
        return seen

    def _advance(self, state: State, action: Tensor) -> tuple[State, Tensor, Tensor]:
        moved = {name: x.clone() for name, x in state.items()}
        reward, over = np.zeros(self.num_envs), np.zeros(self.num_envs, dtype=bool)
        move_snakes(
            self.size, self._key, self._first, self.size**2, action[:, 0].round().long().numpy(),
            self._episode.numpy(), moved["body"].numpy(), moved["snake"].numpy(), reward, over,
        )  # fmt: skip
        return moved, torch.from_numpy(reward), torch.from_numpy(over)
