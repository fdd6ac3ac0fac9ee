"""Demonstrations as training sequences, and the check that recordings match a run.

Every episode is walked from its first decision to its last. `lanes` episodes are walked side by side, `bptt` decisions
at a time. A lane whose episode is over takes the next one of the epoch's order, and its state is reset. So a sequence
never crosses an episode, and each begins with the state that the policy has after everything before it, not with zeros.
"""

import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from navi_core.config import DynamicsConfig
from navi_core.config.policy import OCCUPANCY_INPUTS
from navi_core.demos import Dataset, Episode
from navi_core.errors import ConfigError, DemoError
from navi_core.learn.estimators.noise import shuffled
from navi_core.world.occupancy_memory import OccupancyMemory

_FEW_SCENES = 4
"""From this many scenes on, whole scenes are held out."""


@dataclass
class SequenceBatch:
    """S sequences of L decisions.

    Attributes:
        lanes: (S,) lane of each sequence, whose state it begins with.
        obs: (S, L, 3, Az, El).
        actions: (S, L, 4).
        reset: (S, L) bool; true at the first decision of an episode.
        places: (S, L, OCCUPANCY_INPUTS) features of the occupancy memory, or (S, L, 0).
        mask: (S, L) bool; false behind the end of an episode, where the last decision is repeated.
    """

    lanes: Tensor
    obs: Tensor
    actions: Tensor
    reset: Tensor
    places: Tensor
    mask: Tensor


class DemoFeed:
    """Splits a dataset into training and held-out episodes and walks either.

    Args:
        data: The demonstrations.
        seed: Seed of the split and of the order.
        validation: Share of the scenes that is held out, of the episodes where there are fewer than four scenes.
        lanes: Episodes walked side by side.
        bptt: Decisions per sequence.
        places: (N, OCCUPANCY_INPUTS) features of the occupancy memory at each decision, for a policy that has one.
        learned: Scenes that the weights learned from before; they are held out where there are no others only.

    Raises:
        DemoError: There is one episode only, so that nothing could be held out.
    """

    def __init__(
        self,
        data: Dataset,
        *,
        seed: int,
        validation: float,
        lanes: int,
        bptt: int,
        places: npt.NDArray[np.float32] | None = None,
        learned: Collection[str] = (),
    ) -> None:
        self._places = np.empty((len(data), 0), np.float32) if places is None else places
        self.data, self.seed, self.lanes, self.bptt = data, seed, lanes, bptt
        scenes = sorted({episode.scene for episode in data.episodes})
        # What is held out as a whole: a scene, or an episode where there are few scenes.
        whole = len(scenes) >= _FEW_SCENES
        groups: list[str | int] = [episode.scene if whole else n for n, episode in enumerate(data.episodes)]
        names = [*scenes] if whole else groups
        order = [names[n] for n in shuffled(seed, len(names), -1).tolist()]
        order.sort(key=lambda name: name in learned)
        held = set(order[: max(1, round(validation * len(names)))])
        aside = [group in held for group in groups]
        self.training = [e for e, out in zip(data.episodes, aside, strict=True) if not out]
        self.held_out = [e for e, out in zip(data.episodes, aside, strict=True) if out]
        if not self.training:
            raise DemoError(
                "one episode alone leaves nothing to hold out; record more with `navi demos expert --episodes`",
                path=data.episodes[0].file,
            )

    @property
    def steps(self) -> int:
        """Training decisions of an epoch."""
        return sum(episode.steps for episode in self.training)

    def epoch(self, number: int, device: torch.device) -> Iterator[SequenceBatch]:
        """Walk the training episodes in an order that is a function of (seed, number)."""
        order = shuffled(self.seed, len(self.training), number).tolist()
        return self._walk([self.training[n] for n in order], device)

    def validation(self, device: torch.device) -> Iterator[SequenceBatch]:
        """Walk the held-out episodes."""
        return self._walk(self.held_out, device)

    def _walk(self, episodes: Sequence[Episode], device: torch.device) -> Iterator[SequenceBatch]:
        waiting = iter(episodes)
        lanes: list[Episode | None] = [next(waiting, None) for _ in range(self.lanes)]
        place = [0] * self.lanes
        while any(episode is not None for episode in lanes):
            active = [n for n, episode in enumerate(lanes) if episode is not None]
            offsets = np.array([place[n] for n in active])[:, None] + np.arange(self.bptt)
            begin = np.array([lanes[n].start for n in active])[:, None]  # type: ignore[union-attr]
            length = np.array([lanes[n].steps for n in active])[:, None]  # type: ignore[union-attr]
            index = begin + np.minimum(offsets, length - 1)
            obs = self.data.observations(index.reshape(-1)).reshape(*index.shape, *self._shape)
            yield SequenceBatch(
                lanes=torch.tensor(active, device=device),
                obs=torch.from_numpy(obs).to(device),
                actions=torch.from_numpy(self.data.actions[index]).to(device),
                reset=torch.from_numpy(offsets == 0).to(device),
                places=torch.from_numpy(self._places[index]).to(device),
                mask=torch.from_numpy(offsets < length).to(device),
            )
            for n in active:
                place[n] += self.bptt
                episode = lanes[n]
                if episode is not None and place[n] >= episode.steps:
                    lanes[n], place[n] = next(waiting, None), 0

    @property
    def _shape(self) -> tuple[int, int, int]:
        return 3, self.data.azimuth_bins, self.data.elevation_bins


_ROWS = 32
"""Episodes per batch."""


def demo_places(data: Dataset, dynamics: DynamicsConfig) -> npt.NDArray[np.float32]:
    """Replay recorded episodes through an occupancy memory: dead reckoning, maps, features.

    Args:
        data: The demonstrations; the flown actions count, not the labels.
        dynamics: Of the drone that flew them.

    Returns:
        (N, OCCUPANCY_INPUTS) features at each decision.
    """
    features = np.zeros((len(data), OCCUPANCY_INPUTS), np.float32)
    # Episodes of like length go together: features after a row's flight is over are dropped.
    episodes = sorted(data.episodes, key=lambda episode: episode.steps)
    for first in range(0, len(episodes), _ROWS):
        block = episodes[first : first + _ROWS]
        start, length = np.array([e.start for e in block]), np.array([e.steps for e in block])
        memory = OccupancyMemory(len(block), data.azimuth_bins, data.elevation_bins, dynamics, data.max_distance)
        for t in range(int(length.max())):
            at = start + np.minimum(t, length - 1)
            obs = torch.from_numpy(data.observations(at))
            if t == 0:
                answer = memory.begin(obs)
            else:
                answer = memory.fly(obs, torch.from_numpy(data.flown[start + np.minimum(t - 1, length - 1)]))
            on = t < length
            features[at[on]] = answer.numpy()[on]
    return features


_TOLERANCE = 1e-6
"""Relative; files may round their numbers."""


def require_alike(facts: Iterable[tuple[str, Any, Any]], whose: str, advice: str) -> None:
    """Check that recordings have the settings of a run.

    Args:
        facts: Name of a setting, the run's value, that of the recordings; numbers may differ by rounding.
        whose: Name of the recordings.
        advice: Remedy, for the message.

    Raises:
        ConfigError: A value differs; both are named.
    """
    for name, here, there in facts:
        if not _alike(here, there):
            raise ConfigError(f"{name} is {here}, that of the {whose} {there}; {advice}")


def _alike(here: object, there: object) -> bool:
    if isinstance(here, list | tuple) and isinstance(there, list | tuple):
        return len(here) == len(there) and all(map(_alike, here, there))
    if isinstance(here, float) and isinstance(there, int | float):
        try:
            return math.isclose(here, there, rel_tol=_TOLERANCE)
        except OverflowError:  # a file may hold an integer beyond all floats
            return False
    return bool(here == there)
