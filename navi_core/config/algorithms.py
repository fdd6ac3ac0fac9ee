"""Settings of the on-policy learners (PPO, GRPO, DPO): rollouts, optimiser, schedules."""

import math
from itertools import pairwise
from typing import Literal, Self

from pydantic import Field, model_validator

from navi_core.config.base import Config, Count
from navi_core.errors import ConfigError


class Schedule(Config):
    """Schedule of a hyperparameter over training steps, from its configured value at step 0."""

    shape: Literal["linear", "cosine", "piecewise"] = "linear"
    """Straight line, half a cosine, or straight lines through `points`."""
    end: float | None = None
    """Value at `steps` and after; for linear and cosine."""
    steps: Count | None = None
    """Decisions summed over rows at which `end` is reached; None is the run's total_steps."""
    points: tuple[tuple[int, float], ...] = Field((), max_length=1000)
    """(steps, value) in ascending order of steps; for piecewise. The last value stays."""

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if self.shape == "piecewise":
            steps = [0, *(at for at, _ in self.points)]
            if not self.points or any(b <= a for a, b in pairwise(steps)):
                raise ConfigError("a piecewise schedule needs points [[steps, value], …] with ascending steps above 0")
            if self.end is not None or self.steps is not None:
                raise ConfigError("a piecewise schedule has points; end and steps belong to linear and cosine")
        elif self.end is None:
            raise ConfigError(f"a {self.shape} schedule needs end, the value that it reaches")
        elif self.points:
            raise ConfigError(f"a {self.shape} schedule has end and steps; points belong to piecewise")
        return self

    def values(self) -> tuple[float, ...]:
        """Return the target values in the schedule."""
        return tuple(value for _, value in self.points) if self.end is None else (self.end,)

    def value(self, start: float, at: int, total_steps: int | None) -> float:
        """Return the scheduled value at a training step.

        Args:
            start: Its value at step 0.
            at: Decisions so far, summed over rows.
            total_steps: The run's length; used where `steps` is not given.

        Raises:
            ConfigError: The schedule has no end: neither `steps` nor `total_steps` is given.
        """
        if self.end is None:
            earlier, low = 0, start
            for later, high in self.points:
                if at < later:
                    return low + (high - low) * max(at - earlier, 0) / (later - earlier)
                earlier, low = later, high
            return low
        last = self.steps if self.steps is not None else total_steps
        if last is None:
            raise ConfigError(f"a {self.shape} schedule needs its own steps, or total_steps (--steps) of the run")
        share = min(1.0, max(at, 0) / last)
        if self.shape == "linear":
            return start + (self.end - start) * share
        return self.end + 0.5 * (start - self.end) * (1.0 + math.cos(math.pi * share))


class RolloutConfig(Config):
    """Base settings of on-policy learners: rollout length, sequences, and the Adam optimiser."""

    learning_rate: float = Field(3e-4, gt=0, le=1)
    """Adam step size."""
    max_grad_norm: float = Field(0.5, gt=0)
    """Global gradient norm bound."""
    rollout: int = Field(256, ge=1, le=2**20)
    """Decisions per row between updates."""
    bptt: int = Field(8, ge=1, le=2**20)
    """Decisions per sequence; must divide rollout."""
    microbatch: int | None = Field(None, ge=1, le=2**30)
    """Sequences per backward pass, whose gradients are summed over a minibatch.

    None: all at once; on the CPU, of panoramas with 16,384 numbers or more, 128 observations at once."""
    reward_ema_alpha: float = Field(0.01, gt=0, le=1)
    """Smoothing of the reported reward_ema, per decision batch."""

    @model_validator(mode="after")
    def _chunks(self) -> Self:
        if self.rollout % self.bptt:
            raise ConfigError(f"rollout {self.rollout} is not a multiple of bptt {self.bptt}")
        return self

    @model_validator(mode="after")
    def _scheduled_values(self) -> Self:
        schedules: dict[str, Schedule] = getattr(self, "schedules", {})
        for name, schedule in schedules.items():
            zero, most = self._limits(name)
            for value in schedule.values():
                if not (0 < value <= most or (value == 0 and zero)):
                    raise ConfigError(
                        f"schedules.{name} names {value}; allowed: above 0 up to {most:g}{' (and 0)' if zero else ''}"
                    )
        return self

    def _limits(self, name: str) -> tuple[bool, float]:
        """Return a setting's bounds: whether 0 is allowed, and the maximum."""
        bounds = type(self).model_fields[name].metadata
        return any(hasattr(bound, "ge") for bound in bounds), min(
            (float(bound.le) for bound in bounds if hasattr(bound, "le")), default=math.inf
        )


ScheduledPPO = Literal["learning_rate", "entropy_coefficient", "clip", "std_limit"]
"""Settings of PPO that may move during a run."""


class PPOConfig(RolloutConfig):
    """Settings of proximal policy optimisation (PPO, Schulman et al. 2017) on sequences."""

    schedules: dict[ScheduledPPO, Schedule] = {}
    """How learning_rate, entropy_coefficient, clip and std_limit move; one that is not named stays."""
    gamma: float = Field(0.99, ge=0, le=1)
    """Discount per decision."""
    gae_lambda: float = Field(0.95, ge=0, le=1)
    """λ of generalised advantage estimation."""
    clip: float = Field(0.2, gt=0, le=1)
    """Ratio clip ε."""
    entropy_coefficient: float = Field(0.01, ge=0)
    """Weight of the entropy bonus."""
    std_limit: float | None = Field(None, gt=0, le=10)
    """Most that a Gaussian policy's standard deviations may be after an update; None: as learned.

    With a schedule that falls, the policy that is learned comes close to its own mean, which is what evaluation and
    service fly. What too small deviations do is in docs/results/history.md, "Recovery of stuck drones"."""
    value_coefficient: float = Field(0.5, ge=0)
    """Weight of the value loss."""
    value_clip: float | None = Field(None, gt=0)
    """Clip of the value step, in the critic's units; None switches it off."""
    normalise_returns: bool = True
    """The critic predicts returns in units of their own spread; undone before advantages are estimated."""
    normalise_rewards: bool = False
    """Divide rewards by the running deviation of the discounted return."""
    reward_clip: float = Field(10.0, gt=0)
    """Bound of a normalised reward."""
    rho_clip: float | None = Field(None, gt=0)
    """Bound ρ̄ of the importance ratio on the temporal difference (V-trace); None: the ratio is not looked at."""
    c_clip: float | None = Field(None, gt=0)
    """Bound c̄ of the importance ratio on the trace behind it; None: the ratio is not looked at."""
    epochs: int = Field(2, ge=1, le=100)
    """Passes over each rollout."""
    minibatch: int = Field(64, ge=1, le=2**30)
    """Sequences per minibatch."""
    order: Literal["shuffled", "sequential", "advantage"] = "shuffled"
    """Minibatches: a new random order every epoch, storage order, or drawn by |advantage| with replacement."""
    advantage_exponent: float = Field(0.8, ge=0, le=2)
    """Sequences are drawn in proportion to mean |advantage| to this power; order: advantage."""
    advantage_correction: float = Field(0.2, ge=0, le=1)
    """Exponent β of the weight (count · probability)^−β that makes up for being drawn often; order: advantage."""
    target_kl: float | None = Field(0.03, gt=0)
    """Approximate KL above which the update's remaining epochs are skipped; None never stops."""

    @model_validator(mode="after")
    def _limit_to_move(self) -> Self:
        if "std_limit" in self.schedules and self.std_limit is None:
            raise ConfigError("schedules.std_limit moves a limit from its own value: set std_limit, too")
        return self


class SegmentsConfig(RolloutConfig):
    """Settings of the trajectory segments, cut from rollouts, that GRPO and DPO compare."""

    horizon: int | None = Field(None, ge=1, le=2**20)
    """Decisions of a segment that nothing ends before; None is the rollout.

    A segment begins with the rollout, with an episode, and where the one before it reached its horizon. It counts
    if its whole horizon lies in the rollout, whatever happens in it, so that no outcome is preferred; and unless
    its episode is truncated before, which is nobody's doing."""
    min_steps: int = Field(2, ge=1, le=2**20)
    """Decisions that a segment must have to count."""

    @model_validator(mode="after")
    def _segments(self) -> Self:
        if self.horizon is not None and not self.min_steps <= self.horizon <= self.rollout:
            raise ConfigError(
                f"horizon {self.horizon} of a segment; allowed: min_steps {self.min_steps} … rollout {self.rollout}"
            )
        # Without a horizon a segment is at most the rollout: none would count.
        if self.min_steps > self.rollout:
            raise ConfigError(
                f"min_steps {self.min_steps} of a segment that is at most the rollout of {self.rollout}; allowed: 1 … "
                f"rollout {self.rollout}"
            )
        return self

    @property
    def segment_steps(self) -> int:
        """Length of a full segment [decisions]."""
        return self.horizon if self.horizon is not None else self.rollout


ScheduledGRPO = Literal["learning_rate", "ent_coef", "max_grad_norm", "ref_kl_coef", "gamma"]
"""Settings of GRPO that may move during a run."""


class GRPOConfig(SegmentsConfig):
    """Settings of group-relative policy optimisation (GRPO, Shao et al. 2024) on trajectory segments."""

    schedules: dict[ScheduledGRPO, Schedule] = {}
    """How learning_rate, ent_coef, max_grad_norm, ref_kl_coef and gamma move; one that is not named stays."""
    group_size: int = Field(4, ge=2, le=2**20)
    """Segments K of a group; one that cannot be filled is dropped and counted."""
    normalize_group: Literal["mean", "mean_std"] = "mean"
    """Advantage of a segment: its return less its group's mean, or that in units of the population deviation."""
    group_by: Literal["order", "age"] = "order"
    """Which segments are compared: those that began together, or those that began at like ages of their episodes."""
    gamma: float = Field(1.0, ge=0, le=1)
    """Discount per decision of a segment's return."""
    update_epochs: int = Field(4, ge=1, le=100)
    """Passes over the groups of a rollout."""
    groups_per_step: int = Field(1, ge=1, le=2**20)
    """Groups whose loss makes one gradient step."""
    clip: float | None = Field(0.2, gt=0, le=1)
    """Ratio clip ε; None is the plain policy gradient, which further epochs carry beyond what it is right for."""
    length_normalisation: bool = False
    """A segment's log-probabilities are averaged over its decisions instead of summed."""
    ent_coef: float = Field(0.01, ge=0)
    """Weight of the mean entropy."""
    ref_kl_coef: float = Field(0.0, ge=0)
    """Weight of the divergence from the frozen reference policy; 0 makes no reference at all."""
    kl_estimator: Literal["k3", "k1"] = "k3"
    """Estimator of the divergence on sampled actions; the expected gradient of k1 is zero: it measures only."""
    ref_sync_every_updates: int = Field(50, ge=1, le=2**30)
    """Group updates after which the reference takes the policy's weights."""

    def least_rows(self) -> int:
        """Return the minimum number of rows (environments) whose rollout can fill a group."""
        return math.ceil(self.group_size / (self.rollout // self.segment_steps))


ScheduledDPO = Literal["learning_rate", "max_grad_norm", "beta"]
"""Settings of DPO that may move during a run."""


class DPOConfig(SegmentsConfig):
    """Settings of direct preference optimisation (DPO, Rafailov et al. 2023) on pairs of trajectory segments."""

    schedules: dict[ScheduledDPO, Schedule] = {}
    """How learning_rate, max_grad_norm and beta move; one that is not named stays."""
    beta: float = Field(0.1, gt=0, le=1)
    """β, how strongly the policy is held to the reference."""
    pairs: str | None = None
    """A JSONL file of pairs (navi demos pairs); None makes them of the rollouts, and rollouts else only measure."""
    pairs_hash: str | None = None
    """SHA-256 of the file; filled in by the command, so that other pairs are another run."""
    held_out: float = Field(0.2, gt=0, le=0.5)
    """Share of a file's pairs that is not learned from, but asked which of them the policy prefers."""
    pair_buffer: int = Field(64, ge=1, le=2**20)
    """Most pairs of an update."""
    update_epochs: int = Field(1, ge=1, le=100)
    """Passes over the pairs of an update."""
    minibatch: int = Field(16, ge=1, le=2**20)
    """Pairs per gradient step."""
    microbatch: None = None
    """Of ppo and grpo alone: a gradient step is taken on its pairs at once; dpo.minibatch is their number."""
    ref_sync_every_updates: int = Field(1, ge=0, le=2**30)
    """Updates after which the reference takes the policy's weights; 0 keeps those that the run began with."""
