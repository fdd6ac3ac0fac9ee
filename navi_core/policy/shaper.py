"""Reward shaping on the actor's side, before storage: existential tax, velocity bonus, curiosity (RND), loop penalty.

shaped = reward + tax + w_v·speed + β(step)·intrinsic − loop penalty. A term whose coefficients are zero is neither
built nor computed.

Curiosity is random network distillation (RND, Burda et al. 2018): the error of predicting a fixed random network on an
embedding falls with every visit, so new views earn a higher reward. The running mean and variance that normalise it are
frozen in evaluation mode.

The episodic memory compares a row's embedding with the earlier embeddings of its episode. It is one ring buffer of unit
embeddings per row, preallocated on the device and written in place. An embedding is normalised once per step, for the
query and for the insertion; both have fixed shapes and are timed separately.
"""

import copy
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from navi_core.config import ShaperConfig
from navi_core.errors import ConfigError
from navi_core.policy.navigation_policy import seeded


class EpisodicMemory:
    """Episodic memory: per-row ring buffers of the embeddings of the current episode, for loop detection.

    Args:
        rows: Rows B.
        capacity: Embeddings kept in total; each row gets capacity // rows.
        width: Embedding width D.
        exclusion: Least age of compared embeddings [steps].
        device: Device of the buffers.

    Raises:
        ConfigError: The capacity leaves a row without memory, or nothing older than `exclusion`.
    """

    def __init__(
        self,
        rows: int,
        capacity: int,
        width: int,
        *,
        exclusion: int = 50,
        device: torch.device | str = "cpu",
    ) -> None:
        per_row = capacity // rows
        if per_row <= exclusion:
            raise ConfigError(
                f"memory_capacity {capacity} gives each of {rows} rows {per_row} steps, "
                f"not more than memory_exclusion {exclusion}; use at least {rows * (exclusion + 1)}"
            )
        self.rows, self.capacity, self.exclusion = rows, per_row, exclusion
        self._units = torch.zeros(rows, per_row, width, device=device)
        self._count = torch.zeros(rows, dtype=torch.int64, device=device)  # steps of the episode so far
        self._row = torch.arange(rows, device=device)
        self._slot = torch.arange(per_row, device=device)
        self._bound = 0  # host-side bound of the used slots, so a young memory is not read in full
        # Reading the exact count costs nothing on the CPU; on an accelerator it would synchronise.
        self._looks = self._count.device.type == "cpu"

    @staticmethod
    def unit(embedding: Tensor) -> Tensor:
        """Normalise embeddings (B, D) to unit length, as `query` and `append` take them."""
        return F.normalize(embedding.detach(), dim=-1)

    def query(self, unit: Tensor) -> tuple[Tensor, Tensor]:
        """Find each row's most similar earlier embedding by cosine similarity, given unit embeddings (B, D).

        Returns:
            Highest cosine similarity (B,) to an embedding at least `exclusion` steps old, and its
            age (B,) [steps]; 0 and 0 where there is none.
        """
        used = self._used()
        if not used:
            return unit.new_zeros(self.rows), torch.zeros_like(self._count)
        # At count n, slot s holds step n−1−((n−1−s) mod capacity), i.e. is 1 + that remainder old.
        age = 1 + torch.remainder(self._count[:, None] - 1 - self._slot[:used], self.capacity)
        comparable = (age >= self.exclusion) & (age <= self._count[:, None])
        # (1, D) @ (D, n) runs at memory speed on CPU; (n, D) @ (D, 1) is 2–4 times slower.
        similarity = torch.bmm(unit[:, None], self._units[:, :used].transpose(1, 2)).squeeze(1)
        similarity = similarity.masked_fill(~comparable, -torch.inf)
        best, slot = similarity.max(dim=1)
        found = torch.isfinite(best)
        return torch.where(found, best, 0.0), torch.where(found, age.gather(1, slot[:, None]).squeeze(1), 0)

    def append(self, unit: Tensor) -> None:
        """Append unit embeddings (B, D) of the current step to the ring buffers."""
        self._units[self._row, self._count % self.capacity] = unit
        self._count += 1
        self._bound = min(self._bound + 1, self.capacity)

    def clear(self, done: Tensor) -> None:
        """Clear the buffers of rows whose episode ended, `done` (B,) bool."""
        self._count.masked_fill_(done, 0)

    def state_dict(self) -> dict[str, Tensor]:
        """Return the buffers' content; only used slots are copied, unused ones of a row are zero."""
        used = self._used()
        empty = self._slot[:used] >= self._count[:, None]
        return {"units": self._units[:, :used].masked_fill(empty[..., None], 0.0), "count": self._count.clone()}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Restore the buffers from a `state_dict`.

        Raises:
            ConfigError: The content is of other rows, width or a larger capacity.
        """
        units, count = state["units"], state["count"]
        rows, used, width = units.shape
        if rows != self.rows or width != self._units.shape[2] or used > self.capacity:
            raise ConfigError(f"memory {tuple(units.shape)} does not fit {tuple(self._units.shape)}")
        self._units[:, :used] = units.to(self._units.device)
        self._count.copy_(count)
        self._bound = used

    def _used(self) -> int:
        if self._looks:
            self._bound = min(int(self._count.max()), self.capacity)
        return self._bound


class RunningMoments(nn.Module):
    """Running mean and variance of a stream of batches, merged in float64 (Chan et al. 1979)."""

    mean: Tensor
    variance: Tensor
    count: Tensor

    def __init__(self) -> None:
        super().__init__()
        for name, value in (("mean", 0.0), ("variance", 1.0), ("count", 0.0)):
            self.register_buffer(name, torch.tensor(value, dtype=torch.float64))

    def update(self, values: Tensor, reduce: Callable[..., None] | None = None) -> None:
        """Merge a batch of finite values (B,) into the running moments.

        Args:
            values: The batch.
            reduce: All-reduce (sum) over the processes of a run, so that each merges the batches of all.
        """
        values = values.detach().double()
        count, mean = torch.full_like(self.count, values.numel()), values.mean()
        batch_squares = values.var(unbiased=False) * count
        if reduce is not None:
            sums = torch.stack((count, mean * count))
            reduce(sums)
            count, mean = sums[0], sums[1] / sums[0]
            batch_squares = (values - mean).square().sum()
            reduce(batch_squares)
        # An empty stream must not pull toward its placeholder variance: its count is zero.
        total = self.count + count
        delta = mean - self.mean
        squares = self.variance * self.count + batch_squares
        squares = squares + delta.square() * self.count * count / total
        self.mean.add_(delta * count / total)
        self.variance.copy_(squares / total)
        self.count.copy_(total)

    def normalise(self, values: Tensor) -> Tensor:
        """Normalise values: (values − mean) / standard deviation, in their dtype."""
        scale = torch.rsqrt(self.variance + 1e-12)
        return ((values.double() - self.mean) * scale).to(values.dtype)


def _network(width: int, features: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(width, 128), nn.ReLU(), nn.Linear(128, features))


class RND(nn.Module):
    """Random network distillation: frozen random target and trained predictor, each D → 128 → 64.

    Each has 24,768 parameters at D 128.

    Args:
        width: Embedding width D.
        features: Output width.
        clamp: Bound of the normalised intrinsic reward.
    """

    def __init__(self, width: int = 128, features: int = 64, clamp: float = 5.0) -> None:
        super().__init__()
        self.target = _network(width, features).requires_grad_(False)
        self.predictor = _network(width, features)
        self.moments = RunningMoments()
        self.clamp = clamp

    def error(self, embedding: Tensor) -> Tensor:
        """Compute the mean squared prediction error (…,) on embeddings (…, D), without gradient to them."""
        embedding = embedding.detach()
        out: Tensor = (self.predictor(embedding) - self.target(embedding)).square().mean(-1)
        return out

    @torch.no_grad()
    def intrinsic(self, embedding: Tensor, reduce: Callable[..., None] | None = None) -> Tensor:
        """Compute normalised intrinsic rewards (B,), clamped to ±clamp, of embeddings (B, D).

        In training mode the batch first updates the running moments; in evaluation mode they are frozen.

        Args:
            embedding: Encoder outputs.
            reduce: All-reduce (sum) over the processes of a run.
        """
        error = self.error(embedding)
        if self.training:
            self.moments.update(error, reduce)
        return self.moments.normalise(error).clamp_(-self.clamp, self.clamp)


Reduce = Callable[..., None]
"""Type of an in-place all-reduce (sum) of tensors over the processes of a run."""


@dataclass(frozen=True)
class ShapedReward:
    """Shaped rewards of one decision of B rows, with their terms."""

    total: Tensor
    """Shaped reward (B,)."""
    intrinsic: Tensor
    """Normalised, clamped RND reward (B,), before the coefficient β; zero when RND is off."""
    loop_similarity: Tensor
    """Cosine similarity (B,) to the most similar embedding of sufficient age; zero when the memory is off."""
    loop_penalty: Tensor
    """Loop penalty (B,), at least 0, subtracted from the reward."""


def loop_penalty(similarity: Tensor, age: Tensor, config: ShaperConfig) -> Tensor:
    """Compute the loop penalty: coefficient·(similarity − threshold)·decay(age) above the threshold, else 0.

    Args:
        similarity: Cosine similarities (B,).
        age: Age Δ (B,) of the similar embedding [steps].
        config: Coefficient, threshold, τ, and the decay: `half_life` 2^(−Δ/τ) or `exponential` exp(−Δ/τ).
    """
    rate = age.to(similarity.dtype) / -config.loop_tau
    decay = torch.exp2(rate) if config.loop_decay == "half_life" else torch.exp(rate)
    return config.loop_coefficient * (similarity - config.loop_threshold).clamp_min(0) * decay


class RewardShaper:
    """Reward shaper of B vectorised rows; owns the RND networks, their optimiser and the episodic memory.

    Args:
        config: Coefficients of the shaping terms.
        rows: Rows B.
        width: Embedding width D.
        seed: Seed of the RND networks; the global random state is left alone.
        device: Device of the networks and the memory.

    Raises:
        ConfigError: The memory capacity is too small for the rows.
    """

    def __init__(
        self, config: ShaperConfig, rows: int, width: int, seed: int = 0, device: torch.device | str = "cpu"
    ) -> None:
        self.config = config
        self.training = True
        self.rnd: RND | None = None
        self.memory: EpisodicMemory | None = None
        self._optimizer: torch.optim.Adam | None = None
        if config.rnd_start > 0 or config.rnd_end > 0:
            with seeded(seed):
                self.rnd = RND(width, clamp=config.rnd_clamp).to(device)
            self._optimizer = torch.optim.Adam(self.rnd.predictor.parameters(), lr=config.rnd_lr, fused=True)
        if config.loop_coefficient > 0:
            self.memory = EpisodicMemory(
                rows, config.memory_capacity, width, exclusion=config.memory_exclusion, device=device
            )

    def train(self, mode: bool = True) -> Self:
        """Set training mode; in evaluation mode the RND normalisation and predictor are frozen."""
        self.training = mode
        if self.rnd is not None:
            self.rnd.train(mode)
        return self

    def eval(self) -> Self:
        """Set evaluation mode: RND is frozen."""
        return self.train(False)

    def rnd_coefficient(self, step: int) -> float:
        """Return the curiosity coefficient β at `step`: linear from rnd_start to rnd_end over rnd_decay_steps."""
        if self.rnd is None:
            return 0.0
        share = min(max(step, 0) / self.config.rnd_decay_steps, 1.0)
        return self.config.rnd_start + share * (self.config.rnd_end - self.config.rnd_start)

    @torch.no_grad()
    def shape(
        self,
        embedding: Tensor,
        reward: Tensor,
        speed: Tensor,
        done: Tensor,
        step: int,
        *,
        timer: Callable[[str], AbstractContextManager[None]] | None = None,
        reduce: Reduce | None = None,
    ) -> ShapedReward:
        """Shape the rewards of one decision of every row: add tax, velocity bonus and curiosity, subtract loop penalty.

        Args:
            embedding: Encoder output (B, D) of the observation the decision was made on.
            reward: Environment rewards (B,).
            speed: Linear speeds (B,) [m/s].
            done: (B,) bool; the row's episode ends with this decision, and its memory is cleared afterwards.
            step: Decisions so far summed over rows; drives the curiosity schedule.
            timer: Times the stages `memory_query`, `memory_append` and `shaping_rnd`.
            reduce: All-reduce (sum) over the processes of a run, so that all normalise curiosity alike.
        """
        config = self.config
        timed = timer if timer is not None else nullcontext
        with timed("shaping_rnd"):
            total = reward + config.existential_tax
            if config.velocity_weight:
                total = total + config.velocity_weight * speed
            intrinsic = similarity = penalty = torch.zeros_like(reward)
            if self.rnd is not None:
                intrinsic = self.rnd.intrinsic(embedding, reduce)
                total = total + self.rnd_coefficient(step) * intrinsic
        if self.memory is not None:
            with timed("memory_query"):
                unit = self.memory.unit(embedding)
                similarity, age = self.memory.query(unit)
            with timed("memory_append"):
                self.memory.append(unit)
                self.memory.clear(done)
            with timed("shaping_rnd"):
                penalty = loop_penalty(similarity, age, config)
                total = total - penalty
        return ShapedReward(total, intrinsic, similarity, penalty)

    def learn(self, embedding: Tensor, share: float = 1.0) -> Tensor:
        """Backpropagate the RND predictor's loss on embeddings (…, D) and return it, a scalar.

        In evaluation mode, or without RND, nothing is learned; without RND the loss is 0.

        Args:
            embedding: Encoder outputs; no gradient reaches them.
            share: Weight of these embeddings among those of the coming `step`.
        """
        if self.rnd is None:
            return embedding.new_zeros(())
        with torch.set_grad_enabled(self.training):
            loss = self.rnd.error(embedding).mean()
            if self.training:
                (loss * share).backward()
        return loss.detach()

    def step(self, reduce: Reduce | None = None) -> None:
        """Take one optimiser step of the RND predictor with the gradients accumulated by `learn`.

        Args:
            reduce: All-reduce (sum) over the processes of a run.
        """
        if self._optimizer is None or self.rnd is None or not self.training:
            return
        if reduce is not None:
            for p in self.rnd.predictor.parameters():
                p.grad = torch.zeros_like(p) if p.grad is None else p.grad
            reduce(*(p.grad for p in self.rnd.predictor.parameters()))
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)

    def forget(self, rows: Tensor) -> None:
        """Clear the episodic memory of `rows` (B,) bool, whose episodes were abandoned."""
        if self.memory is not None:
            self.memory.clear(rows)

    def state_dict(self) -> dict[str, Any]:
        """Return a copy of RND weights, moments, optimiser state and episodic memory, in plain containers."""
        state: dict[str, Any] = {}
        if self.rnd is not None and self._optimizer is not None:
            # Copied, for optimizers adopt the tensors they are given: two shapers must not share them.
            state["rnd"] = copy.deepcopy(dict(self.rnd.state_dict()))
            state["rnd_optimizer"] = copy.deepcopy(self._optimizer.state_dict())
        if self.memory is not None:
            state["memory"] = self.memory.state_dict()
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore RND, optimiser and episodic memory from a `state_dict`; parts that either side lacks are skipped.

        Raises:
            ConfigError: The memory is of other rows or width.
        """
        if self.rnd is not None and self._optimizer is not None and "rnd" in state:
            self.rnd.load_state_dict(state["rnd"])
            self._optimizer.load_state_dict(state["rnd_optimizer"])
        if self.memory is not None and "memory" in state:
            self.memory.load_state_dict(state["memory"])
