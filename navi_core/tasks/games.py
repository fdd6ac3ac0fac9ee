"""Vectorised games: memory tasks with a deck of cards (POPGym), and Snake.

The card tasks follow the rules of POPGym (Morad et al. 2023). Every observation is one suit of a shuffled deck, and an
episode ends with the last card. The rewards of an episode sum to at most ±1: random answers earn −½, perfect memory 1.

Snake's moves, food and observations are compiled loops. The body is stored as the decision at which each cell becomes
free again, so a move writes one cell, and eating adds one to the occupied cells.
"""

import abc
import math

import numba
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional as F

from navi_core.config.policy import Spaces
from navi_core.errors import ConfigError
from navi_core.kernels.draws import draw
from navi_core.tasks.task import ReferenceTask, State
from navi_core.world.counter_random import Purpose, stream_key

_SUITS = 4


class _Cards(ReferenceTask):
    spaces = Spaces(_SUITS, 1, tuple((float(suit),) for suit in range(_SUITS)))

    def __init__(self, num_envs: int, seed: int, decks: int, first_row: int, k: int) -> None:
        if decks < 1:
            raise ConfigError(f"decks is {decks}; it must be at least 1")
        self.cards, self.k = 52 * decks, k
        self.limit = self.cards - 1
        super().__init__(num_envs, seed, first_row=first_row)

    @abc.abstractmethod
    def _asked(self, shown: Tensor) -> Tensor:
        """Return the index (B,) of the card to recall in every row; negative for none."""

    def _begin(self, episode: Tensor) -> State:
        return {"deck": self._draws(episode, self.cards).argsort(dim=1) % _SUITS, "shown": torch.zeros_like(episode)}

    def _observe(self, state: State) -> Tensor:
        return F.one_hot(self._card(state, state["shown"]), _SUITS)

    @staticmethod
    def _card(state: State, number: Tensor) -> Tensor:
        return state["deck"].gather(1, number[:, None]).squeeze(1)

    def _advance(self, state: State, action: Tensor) -> tuple[State, Tensor, Tensor]:
        number = self._asked(state["shown"])
        right = action[:, 0].round().long() == self._card(state, number.clamp_min(0))
        reward = torch.where(number >= 0, torch.where(right, 1.0, -1.0) / (self.cards - self.k), 0.0)
        over = torch.zeros_like(number, dtype=torch.bool)
        return {"deck": state["deck"], "shown": state["shown"] + 1}, reward, over


class RepeatPrevious(_Cards):
    """Memory task: recall the suit of the k-th latest card; k = 4 is the card shown three decisions ago.

    Args:
        num_envs: Rows B.
        seed: Seed of the decks.
        k: Position of the card to recall, counted back; 1 is the one just shown.
        decks: Decks of 52 cards; an episode has 52·decks − 1 decisions.
        first_row: Number of the first row among those of the run.

    Raises:
        ConfigError: `k` or `decks` is out of range.
    """

    def __init__(self, num_envs: int, seed: int = 0, *, k: int = 4, decks: int = 1, first_row: int = 0) -> None:
        if not 1 <= k < 52 * decks:
            raise ConfigError(f"k is {k}; allowed: 1 … {52 * decks - 1}")
        super().__init__(num_envs, seed, decks, first_row, k)

    def _asked(self, shown: Tensor) -> Tensor:
        return shown - (self.k - 1)


class RepeatFirst(_Cards):
    """Memory task: recall the suit of the episode's first card in every decision."""

    def __init__(self, num_envs: int, seed: int = 0, *, decks: int = 1, first_row: int = 0) -> None:
        super().__init__(num_envs, seed, decks, first_row, 1)

    def _asked(self, shown: Tensor) -> Tensor:
        return torch.zeros_like(shown)


Counts = npt.NDArray[np.int64]
Seen = npt.NDArray[np.float32]

NUMBERS = 27
"""Size of an observation: wall, body and food along eight rays, relative position of the food, and the length."""
DIRECTIONS = np.array([[-1, 0], [-1, 1], [0, 1], [1, 1], [1, 0], [1, -1], [0, -1], [-1, -1]])
"""Steps (row, column) along the eight rays; every second one is a heading."""
HEAD, HEADING, NOW, LENGTH, FOOD, EATEN, HUNGER = range(7)
"""Column indices of a snake's state array."""


@numba.njit(inline="always", error_model="numpy")
def _serve(body: Counts, snake: Counts, key: int, row: int, episode: int) -> None:
    """Place food on a uniformly drawn free cell; no food (−1) if the grid is full."""
    free = 0
    for cell in range(len(body)):
        free += body[cell] <= snake[NOW]
    if free == 0:
        snake[FOOD] = -1
        return
    place = np.int64(draw(key, row, episode, snake[EATEN]) * free)
    for cell in range(len(body)):
        if body[cell] <= snake[NOW]:
            if place == 0:
                snake[FOOD] = cell
                return
            place -= 1


@numba.njit(cache=True, error_model="numpy")
def begin_snakes(size: int, key: int, first_row: int, episode: Counts, body: Counts, snake: Counts) -> None:
    """Reset every row to a new episode: a snake of three cells in the middle, heading right, and food.

    Args:
        size: Cells of an edge.
        key: `counter_random.stream_key` of the seed.
        first_row: Number of the first row among those of the run.
        episode: (B,) episode numbers.
        body: (B, size²) decisions at which cells become free, written.
        snake: (B, 7) state of the snakes, written.
    """
    for row in range(len(episode)):
        body[row, :] = 0
        middle = (size // 2) * size + size // 2
        snake[row, :] = 0
        snake[row, HEAD], snake[row, HEADING], snake[row, LENGTH] = middle, 1, 3
        for i in range(3):
            body[row, middle - i] = 3 - i
        _serve(body[row], snake[row], key, first_row + row, episode[row])


@numba.njit(cache=True, error_model="numpy")
def move_snakes(
    size: int,
    key: int,
    first_row: int,
    patience: int,
    actions: Counts,
    episode: Counts,
    body: Counts,
    snake: Counts,
    reward: npt.NDArray[np.float64],
    over: npt.NDArray[np.bool_],
) -> None:
    """Step the game: move every snake by one cell; compute rewards and terminations.

    Args:
        size: Cells of an edge.
        key: `counter_random.stream_key` of the seed.
        first_row: Number of the first row among those of the run.
        patience: Decisions without food after which a snake starves.
        actions: (B,) 0 straight on, 1 to the left, 2 to the right.
        episode: (B,) episode numbers.
        body: (B, size²) decisions at which cells become free, changed.
        snake: (B, 7) state of the snakes, changed.
        reward: (B,) 1 for food, −1 for a crash or starvation; written.
        over: (B,) whether the episode is over; written.
    """
    for row in range(len(actions)):
        s, cells = snake[row], body[row]
        turn = 3 if actions[row] == 1 else (1 if actions[row] == 2 else 0)
        s[HEADING] = (s[HEADING] + turn) % 4
        down, right = DIRECTIONS[2 * s[HEADING], 0], DIRECTIONS[2 * s[HEADING], 1]
        y, x = s[HEAD] // size + down, s[HEAD] % size + right
        s[NOW] += 1
        s[HUNGER] += 1
        reward[row], over[row] = 0.0, False
        # The tail has left its cell by now: it may be entered.
        if y < 0 or y >= size or x < 0 or x >= size or cells[y * size + x] > s[NOW]:
            reward[row], over[row] = -1.0, True
            continue
        s[HEAD] = y * size + x
        if s[HEAD] == s[FOOD]:
            s[LENGTH] += 1
            s[EATEN] += 1
            s[HUNGER] = 0
            for cell in range(len(cells)):
                # The tail, about to be free, stays where it is.
                if cells[cell] >= s[NOW]:
                    cells[cell] += 1
            cells[s[HEAD]] = s[NOW] + s[LENGTH]
            reward[row] = 1.0
            _serve(cells, s, key, first_row + row, episode[row])
            over[row] = s[FOOD] < 0
        else:
            cells[s[HEAD]] = s[NOW] + s[LENGTH]
            if s[HUNGER] >= patience:
                reward[row], over[row] = -1.0, True


@numba.njit(cache=True, error_model="numpy")
def see_snakes(size: int, body: Counts, snake: Counts, seen: Seen) -> None:
    """Compute the observation of every snake, relative to its head and heading.

    Along each of eight rays, clockwise from straight ahead: 1/distance to the wall, 1/distance to the nearest cell of
    the body (0 for none), 1 if the food lies on the ray. Then the food's distance ahead and to the right, in edge
    lengths, and the square root of the share of cells that the snake fills.

    Args:
        size: Cells of an edge.
        body: (B, size²) decisions at which cells become free.
        snake: (B, 7) state of the snakes.
        seen: (B, 27) observations, written.
    """
    for row in range(len(snake)):
        s, cells, out = snake[row], body[row], seen[row]
        top, left = s[HEAD] // size, s[HEAD] % size
        for ray in range(8):
            which = (2 * s[HEADING] + ray) % 8
            down, right = DIRECTIONS[which, 0], DIRECTIONS[which, 1]
            y, x, distance = top + down, left + right, 1
            out[3 * ray + 1] = out[3 * ray + 2] = 0.0
            while 0 <= y < size and 0 <= x < size:
                cell = y * size + x
                # A cell that becomes free before the snake can enter it is no obstacle.
                if out[3 * ray + 1] == 0.0 and cells[cell] > s[NOW] + 1:
                    out[3 * ray + 1] = 1.0 / distance
                if cell == s[FOOD]:
                    out[3 * ray + 2] = 1.0
                y, x, distance = y + down, x + right, distance + 1
            out[3 * ray] = 1.0 / distance
        below, beside = s[FOOD] // size - top, s[FOOD] % size - left
        down, right = DIRECTIONS[2 * s[HEADING], 0], DIRECTIONS[2 * s[HEADING], 1]
        out[24] = (below * down + beside * right) / size if s[FOOD] >= 0 else 0.0
        # The heading turned right by a quarter: (down, right) → (right, −down).
        out[25] = (below * right - beside * down) / size if s[FOOD] >= 0 else 0.0
        out[26] = math.sqrt(s[LENGTH] / (size * size))


class Snake(ReferenceTask):
    """Snake task: reward 1 for food, −1 for a crash or starvation; straight, left or right; 2000 decisions at most.

    A snake starves after as many decisions without food as there are cells. Its observation covers eight rays from the
    head and the relative position of the food.

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
