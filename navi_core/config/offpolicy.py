"""Settings of learning off policy: Double DQN, its replay, and how many processes share them."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from navi_core.config.base import Config, Count
from navi_core.config.rollouts import RolloutConfig
from navi_core.config.schedule import Schedule
from navi_core.errors import ConfigError

__all__ = ["DQNConfig", "DistributedConfig", "ReplayConfig"]


class DQNConfig(RolloutConfig):
    """Double deep Q-learning (van Hasselt, Guez and Silver 2016) with n-step targets."""

    max_grad_norm: float = Field(10.0, gt=0)
    """Global gradient norm bound."""
    rollout: int = Field(16, ge=1, le=2**20)
    """Decisions per row between updates."""
    bptt: int = Field(16, ge=1, le=2**20)
    """Decisions of a training sequence, where the policy has a temporal core; must divide rollout."""
    microbatch: None = None
    """Of ppo and grpo alone: a gradient step is taken on its minibatch at once; replay.batch_size says how large."""
    schedules: dict[Literal["learning_rate"], Schedule] = {}
    """How learning_rate moves; if it is not named it stays."""
    gamma: float = Field(0.99, ge=0, le=1)
    """Discount per decision."""
    n_step: int = Field(3, ge=1, le=1000)
    """Decisions whose rewards are summed before the bootstrap; fewer where a rollout or an episode ends."""
    target_update: Literal["polyak", "periodic"] = "polyak"
    """How the target network follows: a little with every gradient step, or a copy now and then."""
    polyak: float = Field(0.005, gt=0, le=1)
    """Share of the way that the target network goes with every gradient step; target_update: polyak."""
    target_period: Count = 1000
    """Gradient steps between copies; target_update: periodic."""
    huber: float = Field(1.0, gt=0)
    """Temporal difference above which the loss is linear (Huber)."""
    exploration: Literal["per_actor", "shared"] = "per_actor"
    """Final ε of the rows: a ladder epsilon_base^(1 + epsilon_exponent·i/(B−1)), or epsilon_end for all."""
    epsilon_base: float = Field(0.4, gt=0, le=1)
    """ε of the first row (Horgan et al. 2018); exploration: per_actor."""
    epsilon_exponent: float = Field(7.0, ge=0, le=1000)
    """How far the ladder falls to the last row; exploration: per_actor."""
    epsilon_end: float = Field(0.02, ge=0, le=1)
    """Final ε; exploration: shared."""
    epsilon_decay_steps: int = Field(0, ge=0, le=2**40)
    """Decisions over which ε comes down from 1 on a straight line; 0 begins with the final ε."""
    learning_starts: Count = 1000
    """Decisions in the replay before the first gradient step."""
    replay_ratio: float = Field(4.0, gt=0, le=1024)
    """Decisions learned from for every decision made."""
    burn_in: int = Field(0, ge=0, le=2**16)
    """Decisions before each sequence that bring its stored state up to date and are not learned from there.

    A multiple of bptt (Kapturowski et al. 2019); observations are then kept once for each overlap."""

    @model_validator(mode="after")
    def _whole_chunks(self) -> Self:
        if self.burn_in % self.bptt:
            raise ConfigError(f"dqn.burn_in {self.burn_in} is not a multiple of dqn.bptt {self.bptt}")
        return self


class ReplayConfig(Config):
    """Prioritised experience replay (Schaul et al. 2016)."""

    batch_size: int = Field(256, ge=1, le=2**20)
    """Decisions of a minibatch; with a temporal core they come in whole sequences."""
    prioritized_replay: bool = True
    """Draw in proportion to priority^alpha; false draws uniformly."""
    alpha: float = Field(0.6, ge=0, le=2)
    """Exponent of the priorities. Not the smoother's alpha_step."""
    beta0: float = Field(0.4, ge=0, le=1)
    """Exponent of the importance weights at step 0; it rises to 1 on a straight line."""
    beta_steps: Count | None = None
    """Decisions over which beta rises; None is the run's total_steps, and 100 × capacity for a run without end."""
    capacity: int = Field(100_000, ge=1, le=2**31)
    """Decisions kept, at least dqn.learning_starts; the oldest go first. With a core it is rounded down to whole
    sequences."""
    priority_floor: float = Field(1e-6, gt=0)
    """Added to every |temporal difference|, so that nothing is never drawn again."""
    sequence_max_share: float = Field(0.9, ge=0, le=1)
    """Priority of a sequence: this share of its largest |temporal difference|, the rest of their mean."""
    storage: Literal["auto", "full", "compact"] = "auto"
    """Observations: float32, or depth fp16, semantic u8 and valid bits; auto is compact for panoramas."""

    def items(self, per_item: int = 1, shards: int = 1) -> int:
        """Return how many items each part holds.

        Args:
            per_item: Decisions of an item.
            shards: Parts of equal capacity.
        """
        return max(1, self.capacity // per_item // shards)

    def require_start(self, learning_starts: int, per_item: int = 1, shards: int = 1) -> None:
        """Refuse a replay that never holds what learning waits for: the run would fly to its end and learn nothing.

        Args:
            learning_starts: Decisions in the replay before the first gradient step.
            per_item: Decisions of an item.
            shards: Parts of equal capacity.

        Raises:
            ConfigError: It holds fewer; both numbers are named.
        """
        holds = self.items(per_item, shards) * shards * per_item
        if holds < learning_starts:
            whole = f" in whole sequences of {per_item}" if per_item > 1 else ""
            parts = f" in {shards} shards" if shards > 1 else ""
            raise ConfigError(
                f"replay.capacity {self.capacity} holds {holds} decisions{whole}{parts}, and dqn.learning_starts waits "
                f"for {learning_starts}: nothing would be learned; raise the one or lower the other"
            )


class DistributedConfig(Config):
    """Actors, learners and shards of a distributed run (Ape-X)."""

    actors_per_gpu: int = Field(4, ge=1, le=4096)
    """Actor processes for every GPU, or for every learner where there is none."""
    learners: int = Field(1, ge=1, le=4096)
    """Learner processes that share the gradient."""
    param_sync_interval: Count = 1000
    """Gradient steps between two publications of the weights to the actors."""
    replay_shards: int = Field(4, ge=1, le=4096)
    """Shards that hold the replay; every learner has as many of them as the others."""
    ahead: Count = 4096
    """Decisions for each shard that actors may have made and learners not yet learned from; then actors wait."""
    prefetch: int = Field(8, ge=0, le=1024)
    """Minibatches that are asked for at once, ahead of need, where shards are other processes; 0 asks for each."""
    max_replacements: int = Field(100, ge=0, le=2**31)
    """Deaths of actors and shards that a run makes up for; the next one ends it."""
