"""Settings of the off-policy learner: Double DQN, prioritised replay, Ape-X distribution, drift smoothing."""

from typing import Literal, Self

from pydantic import Field, model_validator

from navi_core.config.algorithms import RolloutConfig, Schedule
from navi_core.config.base import Config, Count
from navi_core.errors import ConfigError


class DQNConfig(RolloutConfig):
    """Settings of Double DQN (van Hasselt, Guez and Silver 2016) with n-step targets."""

    max_grad_norm: float = Field(10.0, gt=0)
    """Global gradient norm bound."""
    rollout: int = Field(16, ge=1, le=2**20)
    """Decisions per row between updates."""
    bptt: int = Field(16, ge=1, le=2**20)
    """Decisions of a training sequence, where the policy has a temporal core; must divide rollout."""
    microbatch: None = None
    """Of ppo and grpo alone: a gradient step is taken on its minibatch at once; replay.batch_size is its size."""
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
    """Settings of prioritised experience replay (Schaul et al. 2016)."""

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
        """Return the capacity of each replay shard [items].

        Args:
            per_item: Decisions of an item.
            shards: Parts of equal capacity.
        """
        return max(1, self.capacity // per_item // shards)

    def require_start(self, learning_starts: int, per_item: int = 1, shards: int = 1) -> None:
        """Refuse a replay capacity below `learning_starts`, with which the run would never learn.

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
    """Settings of a distributed run (Ape-X): numbers of actors, learners and replay shards."""

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


class SmoothingConfig(Config):
    """Settings of drift smoothing: kernel averaging of each row with its nearest neighbours in latent space."""

    enabled: bool = False
    """Whether the learner smooths."""
    apply_to: Literal["td_targets", "latents", "q_regulariser"] = "td_targets"
    """What is smoothed: bootstrap targets, the latents the Q head reads, or nothing but a penalty on Q."""
    regulariser_weight: float = Field(0.1, ge=0)
    """λ_reg, weight of ½‖Q − smoothed Q‖²; apply_to: q_regulariser."""
    k: int = Field(16, ge=1, le=2**16)
    """Neighbours of a row, itself excluded; a smaller batch has fewer."""
    sigma_min: float = Field(1e-3, gt=0)
    """Least kernel width σ_i, which is the distance to the k-th neighbour."""
    sigma_max: float = Field(1.0, gt=0)
    """Largest kernel width."""
    alpha_step_init: float = Field(0.15, ge=0, le=10)
    """Step size α_step at step 0. Not the exponent of the priorities."""
    alpha_step_schedule: Literal["constant", "linear", "cosine"] = "cosine"
    """How α_step falls to 0."""
    alpha_step_decay_steps: Count = 100_000
    """Steps at which α_step is 0; linear and cosine."""
    dim_exponent: float = Field(0.5, ge=0, le=4)
    """Δt = d^(−dim_exponent)."""
    dt_dim: Literal["latent", "h"] = "latent"
    """d of Δt: latent_dim, or the width of what is smoothed."""
    trust_region_tau: float = Field(0.1, gt=0)
    """τ, bound of the norm of a row's step."""
    latent_dim: int = Field(64, ge=1, le=2**16)
    """d, numbers of a latent; the width of the Q head's hidden layer must be the same."""
    gate_by_td_variance: bool = True
    """Smooth only where the variance of the temporal differences or the disagreement is above its floor."""
    td_var_min: float = Field(0.0, ge=0)
    """The gate is open above this variance of the temporal differences."""
    disagreement_min: float = Field(0.0, ge=0)
    """The gate is open above this mean distance of a row from its neighbours' mean."""
    scale_preservation: bool = False
    """Give every feature its former mean and deviation back. Rows may then leave their neighbours' range."""
    noise_std: float = Field(0.0, ge=0)
    """Deviation of normal noise in a step."""
    iterations: int = Field(1, ge=1, le=100)
    """Steps of one application; the kernel is computed once."""
    importance_weighted: bool = False
    """Weigh neighbours by their importance weights, so that what is drawn often does not count twice."""
    block: int = Field(4096, ge=16, le=2**20)
    """Rows of the distance matrix that are held at once."""
    free_energy_weight: float = Field(0.0, ge=0)
    """λ_F, weight of the free energy in the loss; 0 reports it alone."""
    temperature: float = Field(1.0, ge=0)
    """T of the free energy U − T·S."""

    @model_validator(mode="after")
    def _widths(self) -> Self:
        if self.sigma_min > self.sigma_max:
            raise ConfigError(f"sigma_min {self.sigma_min:g} is above sigma_max {self.sigma_max:g}")
        return self


class EarlyStopConfig(Config):
    """Settings of early stopping, for runs without further improvement."""

    enabled: bool = False
    """Whether the controller ends the run; on where another setting of this section is given."""
    eval_interval: Count = 5000
    """Decisions between two evaluations of the controller."""
    patience: int = Field(10, ge=1, le=10_000)
    """Evaluations in a row below the threshold before the run ends."""
    hysteresis_pct: float = Field(0.03, ge=0, lt=1)
    """Half width of the band around the threshold in which nothing changes."""
    td_ema_beta: float = Field(0.9, ge=0, lt=1)
    """β of the moving averages of the temporal differences' mean and variance."""
    plateau_threshold: float = Field(0.5, gt=0, lt=1)
    """Cost below which an evaluation counts toward stopping."""
    reward_ema_beta: float = Field(0.6, ge=0, lt=1)
    """β of the moving average of the validation reward."""
    window: int = Field(5, ge=1, le=10_000)
    """Evaluations over which the rise of the validation reward is measured."""
    td_var_floor: float = Field(0.0, ge=0)
    """The run also ends when the variance stays at or below this and nothing improves for patience evaluations."""
    trend: bool = False
    """Do not stop while a Mann–Kendall test over the window sees the reward, not averaged, rise (one-sided, 5 %)."""
    slump: float | None = Field(None, ge=0, le=10)
    """Do not stop while the moving average of the reward is this share of |best| below its best; None does not ask.

    A run that has just lost what it knew is flat too, and its weights are those of its worst hour."""
    rise: float | None = Field(None, ge=0, le=10)
    """Do not stop before the moving average of the reward was this share of |first| above its first; None does not ask.

    A run that has not begun to learn is flat too: acrobot earns its least for tens of thousands of decisions."""
    aggregate: Literal["median", "trimmed_mean"] = "median"
    """How the evaluations of several workers become one."""
    trim: float = Field(0.25, ge=0, lt=0.5)
    """Share that is dropped at each end; aggregate: trimmed_mean."""


class AdaptationConfig(Config):
    """Settings of slow adaptation of the drift smoother and the learning rate to evaluation results."""

    enabled: bool = False
    """Whether anything is adapted; algorithm dqn alone."""
    rate: float = Field(0.05, gt=0, lt=1)
    """Relative change of one adaptation."""
    min_dwell: int = Field(5, ge=1, le=10_000)
    """Evaluations between two changes."""
    alpha_step_bounds: tuple[float, float] = (0.01, 0.5)
    """Range of alpha_step."""
    tau_bounds: tuple[float, float] = (0.01, 1.0)
    """Range of trust_region_tau."""
    k_bounds: tuple[int, int] = (4, 64)
    """Range of k."""
    learning_rate_bounds: tuple[float, float] = (1e-5, 5e-3)
    """Range of the learning rate."""

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        for name in ("alpha_step_bounds", "tau_bounds", "k_bounds", "learning_rate_bounds"):
            low, high = getattr(self, name)
            if not 0 < low <= high:
                raise ConfigError(f"adaptation.{name} {low:g}, {high:g}: needs two positive numbers in ascending order")
        return self
