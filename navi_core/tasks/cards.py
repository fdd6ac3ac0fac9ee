"""Memory tasks with a deck of cards, by the rules of POPGym (Morad et al. 2023).

Every decision shows one suit of a shuffled deck, and an episode ends with the last card. Answers are
worth ±1 in total, so that guessing earns −½ and perfect memory 1.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from navi_core.config.policy import Spaces
from navi_core.errors import ConfigError
from navi_core.tasks.task import ReferenceTask, State

_SUITS = 4


class _Cards(ReferenceTask):
    spaces = Spaces(_SUITS, 1, tuple((float(suit),) for suit in range(_SUITS)))

    def __init__(self, num_envs: int, seed: int = 0, *, decks: int = 1, first_row: int = 0) -> None:
        if decks < 1:
            raise ConfigError(f"decks is {decks}; it must be at least 1")
        self.cards = 52 * decks
        self.limit = self.cards - 1
        super().__init__(num_envs, seed, first_row=first_row)

    def _begin(self, episode: Tensor) -> State:
        return {"deck": self._draws(episode, self.cards).argsort(dim=1) % _SUITS, "shown": torch.zeros_like(episode)}

    def _observe(self, state: State) -> Tensor:
        return F.one_hot(self._card(state, state["shown"]), _SUITS)

    @staticmethod
    def _card(state: State, number: Tensor) -> Tensor:
        return state["deck"].gather(1, number[:, None]).squeeze(1)

    def _answered(self, state: State, action: Tensor, asked: Tensor, number: Tensor, answers: int) -> Tensor:
        right = action[:, 0].round().long() == self._card(state, number)
        return torch.where(asked, torch.where(right, 1.0, -1.0) / answers, 0.0)

    @staticmethod
    def _next(state: State) -> State:
        return {"deck": state["deck"], "shown": state["shown"] + 1}


class RepeatPrevious(_Cards):
    """Repeat the suit of the k-th latest card; k = 4 is what was shown three decisions ago.

    Args:
        num_envs: Rows B.
        seed: Seed of the decks.
        k: Which card; 1 is the one just shown.
        decks: Decks of 52 cards; an episode has 52·decks − 1 decisions.
        first_row: Number of the first row among those of the run.

    Raises:
        ConfigError: `k` or `decks` is out of range.
    """

    def __init__(self, num_envs: int, seed: int = 0, *, k: int = 4, decks: int = 1, first_row: int = 0) -> None:
        if not 1 <= k < 52 * decks:
            raise ConfigError(f"k is {k}; allowed: 1 … {52 * decks - 1}")
        self.k = k
        super().__init__(num_envs, seed, decks=decks, first_row=first_row)

    def _advance(self, state: State, action: Tensor) -> tuple[State, Tensor, Tensor]:
        number = state["shown"] - (self.k - 1)
        reward = self._answered(state, action, number >= 0, number.clamp_min(0), self.cards - self.k)
        return self._next(state), reward, torch.zeros_like(number, dtype=torch.bool)


class RepeatFirst(_Cards):
    """Repeat the suit of the episode's first card in every decision."""

    def _advance(self, state: State, action: Tensor) -> tuple[State, Tensor, Tensor]:
        first = torch.zeros_like(state["shown"])
        always = torch.ones_like(first, dtype=torch.bool)
        return self._next(state), self._answered(state, action, always, first, self.cards - 1), ~always
