"""Behaviour cloning (Pomerleau 1989): maximum likelihood of a teacher's actions, on recurrent sequences.

L = −E[log π(a|o)] − β·H over sequences of demonstrations, with the recurrent core and its resets. log_std is frozen:
its maximum-likelihood value would shrink to the clone's error and leave a policy without exploration for the
reinforcement learning that follows. The critic is not trained: demonstrations have no rewards.

Every episode is read from its first decision to its last. `lanes` episodes are read in parallel, `bptt` decisions at a
time (truncated backpropagation through time). A lane whose episode is over takes the next one of the epoch's order, and
its state is reset. So no sequence crosses episodes, and each begins with the carried recurrent state, not with zeros.
"""

import math
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from navi_core.config import DynamicsConfig, TrainConfig
from navi_core.config.policy import OCCUPANCY_INPUTS
from navi_core.demos import Dataset, Episode
from navi_core.errors import ConfigError, DemoError, NonFiniteError
from navi_core.learn.algorithms.gradient_steps import UpdateStats
from navi_core.learn.estimators.noise import shuffled
from navi_core.learn.estimators.normalisation import CriticUnits
from navi_core.learn.parallel import ALONE, Workers
from navi_core.learn.rollout.execution import carried_out
from navi_core.policy import NavigationPolicy, RewardShaper
from navi_core.policy.navigation_policy import AUX_INPUTS
from navi_core.record import StageTimer
from navi_core.world.occupancy_memory import CELL, OccupancyMemory

_FEW_SCENES = 4
"""Least number of scenes at which whole scenes, not episodes, are held out."""


@dataclass
class SequenceBatch:
    """Batch of S demonstration sequences of L decisions.

    Attributes:
        lanes: (S,) lane of each sequence, whose recurrent state it continues.
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
    """Data loader of demonstrations: splits episodes into training and held-out sets and yields sequence batches.

    Args:
        data: The demonstrations.
        seed: Seed of the split and of the order.
        validation: Held-out share of the scenes, or of the episodes if there are fewer than four scenes.
        lanes: Episodes read in parallel.
        bptt: Decisions per sequence.
        places: (N, OCCUPANCY_INPUTS) features of the occupancy memory at each decision, for a policy that has one.
        learned: Scenes that the weights were trained on before; held out only if there are no others.

    Raises:
        DemoError: There is only one episode, so none can be held out.
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
                "one flight alone leaves none to hold out; record one more (`navi explore SCENE --record`)",
                path=data.episodes[0].file,
            )

    @property
    def steps(self) -> int:
        """Training decisions per epoch."""
        return sum(episode.steps for episode in self.training)

    def epoch(self, number: int, device: torch.device) -> Iterator[SequenceBatch]:
        """Iterate over sequence batches of the training episodes, shuffled as a function of (seed, number)."""
        order = shuffled(self.seed, len(self.training), number).tolist()
        return self._walk([self.training[n] for n in order], device)

    def validation(self, device: torch.device) -> Iterator[SequenceBatch]:
        """Iterate over sequence batches of the held-out episodes."""
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


def demo_places(data: Dataset, dynamics: DynamicsConfig, cell: float = CELL) -> npt.NDArray[np.float32]:
    """Compute occupancy-memory features of recorded episodes by replaying them: dead reckoning, maps, features.

    Args:
        data: The demonstrations; the flown actions are used, not the labels.
        dynamics: Dynamics of the drone that flew them.
        cell: Edge of the map's cells [m].

    Returns:
        (N, OCCUPANCY_INPUTS) features at each decision.
    """
    features = np.zeros((len(data), OCCUPANCY_INPUTS), np.float32)
    # Episodes of similar length share a batch: features after the end of a row's episode are dropped.
    episodes = sorted(data.episodes, key=lambda episode: episode.steps)
    for first in range(0, len(episodes), _ROWS):
        block = episodes[first : first + _ROWS]
        start, length = np.array([e.start for e in block]), np.array([e.steps for e in block])
        bins = data.azimuth_bins, data.elevation_bins
        memory = OccupancyMemory(len(block), *bins, dynamics, data.max_distance, cell=cell)
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
"""Relative tolerance of settings: files may round their numbers."""


def require_alike(facts: Iterable[tuple[str, Any, Any]], whose: str, advice: str) -> None:
    """Validate that recordings (demonstrations or pairs) were made with the settings of a run.

    Args:
        facts: Name of a setting, the run's value, and the recordings' value; numbers may differ by rounding.
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


class EpochInterrupted(Exception):  # noqa: N818 - a stop that was asked for is no error
    """Exception that aborts an epoch because a stop was requested."""


def cloning_loss(log_prob: Tensor, entropy: Tensor, mask: Tensor, beta: float) -> tuple[Tensor, Tensor]:
    """Compute the cloning loss L = −mean(log π) − β·mean(H) over unmasked decisions, and −mean(log π) alone.

    Args:
        log_prob: Log densities of the teacher's actions, (S, L) [nat].
        entropy: Entropies, (S, L) [nat].
        mask: Mask of the decisions that count, (S, L) bool.
        beta: β.
    """
    weight = mask.to(log_prob.dtype)
    count = weight.sum().clamp_min(1.0)
    nll = -(log_prob * weight).sum() / count
    return nll - beta * (entropy * weight).sum() / count, nll


class CloningLearner(CriticUnits):
    """Behaviour-cloning learner: trains the policy on demonstrations; keeps the critic's normalisation state unchanged.

    Args:
        policy: `NavigationPolicy`.
        shaper: Unused: demonstrations have no rewards. Part of the signature that all learners share.
        config: The run's configuration.
        device: Training device.
        workers: A single process; demonstrations are not distributed.

    Raises:
        ConfigError: The policy chooses among motion primitives, there are several processes, or the device cannot
            capture graphs.
    """

    def __init__(
        self,
        policy: NavigationPolicy,
        _shaper: RewardShaper,
        config: TrainConfig,
        device: torch.device,
        workers: Workers = ALONE,
    ) -> None:
        if workers.size > 1:
            raise ConfigError(f"bc learns in one process, not in {workers.size}; start it without torchrun")
        self.policy, self.config, self.device = policy, config, device
        if policy.config.distribution == "discrete":
            raise ConfigError(
                "policy.distribution discrete cannot be cloned: demonstrations answer with any action, not with motion "
                "primitives; use gaussian or beta"
            )
        self._score = carried_out(policy.evaluate, config, device)
        super().__init__()
        kept = ("heads.log_std", "heads.critic.", "critic_trunk.")
        self.parameters = [p for name, p in policy.named_parameters() if not name.startswith(kept)]
        self.optimizer = torch.optim.Adam(self.parameters, lr=config.bc.learning_rate, eps=1e-5, fused=True)

    def update(
        self, feed: DemoFeed, /, *, index: int, steps: int, stop: Callable[[], bool] | None = None
    ) -> UpdateStats:
        """Train one epoch on the demonstrations.

        Args:
            feed: The demonstrations.
            index: Number of the epoch; seeds the order.
            steps: Decisions before this epoch; unused.
            stop: Called before every minibatch.

        Raises:
            NonFiniteError: The loss, the gradient or a weight became NaN or infinite.
            EpochInterrupted: `stop` returned True; the weights are those of an unfinished epoch.
        """
        del steps  # nothing is scheduled
        bc, timer, start = self.config.bc, StageTimer(), time.perf_counter()
        state = self.policy.initial_state(feed.lanes, self.device)
        rows: list[Tensor] = []
        batches = feed.epoch(index, self.device)
        while True:
            if stop is not None and stop():
                raise EpochInterrupted
            with timer("minibatch_fetch"):
                batch = next(batches, None)
            if batch is None:
                break
            with timer("policy_evaluation"):
                log_prob, entropy, state = self._evaluate(batch, state)
                total, nll = cloning_loss(log_prob, entropy, batch.mask, bc.entropy_coefficient)
            with timer("backward"):
                # Also the critic's gradients: compiled code makes zeros of them, which add up in a graph's memory.
                self.policy.zero_grad(set_to_none=True)
                total.backward()
            with timer("gradient_clip"):
                norm = torch.nn.utils.clip_grad_norm_(self.parameters, bc.max_grad_norm)
            with timer("optimizer_step"):
                self.optimizer.step()
            spread = (entropy * batch.mask).sum()
            rows.append(torch.stack((nll, total, norm, spread, batch.mask.sum())).detach())
        with timer("statistics"):
            metrics = self._metrics(rows, index)
        metrics["learning_rate"] = bc.learning_rate
        return UpdateStats(metrics=metrics, seconds=time.perf_counter() - start, epochs=1, timer=timer)

    @torch.no_grad()
    def validate(self, feed: DemoFeed) -> float:
        """Compute the negative log-likelihood of the held-out decisions [nat per decision]."""
        state = self.policy.initial_state(feed.lanes, self.device)
        total, count = torch.zeros((), dtype=torch.float64), 0
        for batch in feed.validation(self.device):
            log_prob, _, state = self._evaluate(batch, state)
            total -= (log_prob.double() * batch.mask).sum().cpu()
            count += int(batch.mask.sum())
        return float(total) / count

    def _evaluate(self, batch: SequenceBatch, state: tuple[Tensor, ...]) -> tuple[Tensor, Tensor, tuple[Tensor, ...]]:
        """Evaluate the policy on a batch: log-probabilities of the teacher's actions, entropies, recurrent states."""
        # A recording has only the occupancy features of the auxiliary input; the rest is zero.
        aux = torch.cat((torch.zeros(*batch.mask.shape, AUX_INPUTS, device=self.device), batch.places), dim=-1)
        before = tuple(x.index_select(0, batch.lanes) for x in state)
        out = self._score(batch.obs, aux, before, batch.reset, batch.actions)
        # Truncated backpropagation through time: the state is carried over, its gradient is not.
        after = tuple(x.index_copy(0, batch.lanes, new.detach()) for x, new in zip(state, out.state, strict=True))
        return out.log_prob, out.entropy, after

    def _metrics(self, rows: list[Tensor], index: int) -> dict[str, float]:
        weights = torch.stack([p.detach().abs().sum() for p in self.parameters]).sum()
        table = torch.stack(rows).double()
        nll, total, norm, entropy, count = (column.tolist() for column in table.unbind(1))
        for name, values in (("nll", nll), ("total_loss", total), ("grad_norm", norm)):
            for number, value in enumerate(values):
                if not math.isfinite(value):
                    raise NonFiniteError(
                        name,
                        f"{name} is {value} in minibatch {number} of epoch {index}; the last good checkpoint is kept. "
                        "A lower bc.learning_rate or bc.max_grad_norm may help",
                    )
        if not math.isfinite(float(weights)):
            name = next(n for n, p in self.policy.named_parameters() if not torch.isfinite(p).all())
            raise NonFiniteError(name, f"weight {name} is not finite after epoch {index}")
        decisions = sum(count)
        return {
            "nll": sum(a * n for a, n in zip(nll, count, strict=True)) / decisions,
            "total_loss": sum(a * n for a, n in zip(total, count, strict=True)) / decisions,
            "grad_norm": sum(norm) / len(norm),
            "entropy": sum(entropy) / decisions,
        }
