"""Configuration of a training run: all its sections, and migration of settings from older versions."""

from typing import Any, Literal, Self

from pydantic import Field, model_validator

from navi_core.config.algorithms import DPOConfig, GRPOConfig, PPOConfig
from navi_core.config.base import Config, Count, parse_config
from navi_core.config.offpolicy import (
    AdaptationConfig,
    DistributedConfig,
    DQNConfig,
    EarlyStopConfig,
    ReplayConfig,
    SmoothingConfig,
)
from navi_core.config.policy import PolicyConfig, ShaperConfig, TaskOptions
from navi_core.config.registry import LEARNER_NAMES, LearnerName
from navi_core.config.world import CompileConfig, CorpusConfig, EnvConfig, compile_resolution
from navi_core.errors import ConfigError

_BINS = ("azimuth_bins", "elevation_bins")


class BCConfig(Config):
    """Settings of behaviour cloning (BC) of demonstrations on sequences."""

    data: str | None = None
    """Content hash of the demonstrations; filled in by `navi train bc`, so that other data are another run."""
    learning_rate: float = Field(1e-3, gt=0, le=1)
    """Adam step size."""
    epochs: int = Field(50, ge=1, le=100_000)
    """Passes over the demonstrations."""
    sequences: int = Field(32, ge=1, le=2**20)
    """Sequences per minibatch, each from another episode."""
    bptt: int = Field(8, ge=1, le=2**20)
    """Decisions per sequence; the recurrent state is carried from one sequence of an episode to its next."""
    entropy_coefficient: float = Field(0.01, ge=0)
    """β, weight of the entropy bonus; a gaussian policy's has no gradient, because log_std is frozen."""
    max_grad_norm: float = Field(0.5, gt=0)
    """Global gradient norm bound."""
    validation: float = Field(0.1, gt=0, le=0.5)
    """Share of the scenes that is held out; of the episodes where there are fewer than four scenes."""


class TrainConfig(Config):
    """Complete configuration of a training run; saved in its run directory and checkpoints."""

    algorithm: LearnerName = "ppo"
    """Learner."""
    # Left out where it is empty: the configurations without one keep their hashes, which name their runs.
    learner_options: dict[str, bool | int | float | str] = Field(default={}, exclude_if=lambda options: not options)
    """Options of a user-defined learner, for example decay: 0.9. Its rollouts and steps are those of section ppo."""
    task: str | None = None
    """A reference task to learn instead of flight; None flies the corpus."""
    task_options: TaskOptions = {}
    """Options of the task, for example masked: false (cart_pole)."""
    seed: int = Field(0, ge=0, lt=2**31)
    """Seed of every random draw."""
    actors: int = Field(64, ge=1, le=65536)
    """Environment rows B."""
    total_steps: Count | None = None
    """Decisions summed over rows at which the run ends; None trains until stopped."""
    checkpoint_every: Count = 25_000
    """Steps between checkpoints."""
    keep_checkpoints: int = Field(3, ge=1, le=10_000)
    """Checkpoints kept in the run directory besides the last."""
    threads: int = Field(0, ge=0, le=256)
    """Torch threads on CPU; 0 measures rollout and update with one thread and with every core."""
    precision: Literal["fp32", "bf16"] = "fp32"
    """Encoder matrix products: single precision, or bfloat16 by autocast. Everything behind it stays fp32."""
    execution: Literal["eager", "compile", "graph"] = "eager"
    """As written, policy calls through torch.compile, or these and environment steps as CUDA graphs (CUDA alone)."""
    storage: Literal["full", "compact"] = "full"
    """Observations of a rollout: float32, or depth fp16, semantic u8 and valid bits (a quarter of the memory)."""
    profile: bool = False
    """Stage timings of a CUDA device by events on its stream instead of the host clock."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Training device."""
    corpus: CorpusConfig = CorpusConfig()
    """Training scenes."""
    compile: CompileConfig = CompileConfig()
    """Scene compilation; a resolution that is not given follows the sensor, see `compile_resolution`."""
    env: EnvConfig = EnvConfig()
    """Environment."""
    policy: PolicyConfig = PolicyConfig()
    """Network."""
    shaper: ShaperConfig = ShaperConfig()
    """Reward shaping."""
    ppo: PPOConfig = PPOConfig()
    """Proximal policy optimisation."""
    grpo: GRPOConfig = GRPOConfig()
    """Group-relative policy optimisation."""
    dpo: DPOConfig = DPOConfig()
    """Direct preference optimisation."""
    bc: BCConfig = BCConfig()
    """Behaviour cloning."""
    dqn: DQNConfig = DQNConfig()
    """Double DQN."""
    replay: ReplayConfig = ReplayConfig()
    """Replay of dqn."""
    kernel_smoothing: SmoothingConfig = SmoothingConfig()
    """Drift smoothing of dqn."""
    early_stopping: EarlyStopConfig = EarlyStopConfig()
    """Early stopping of ppo, grpo, dpo and dqn. bc makes all its epochs and keeps the best one."""
    adaptation: AdaptationConfig = AdaptationConfig()
    """Adaptation of the smoother and the learning rate of dqn."""
    distributed: DistributedConfig = DistributedConfig()
    """Actors, learners and shards."""

    @property
    def rule(self) -> Any:  # noqa: ANN401 (the sections share no class)
        """Settings section of the configured learner; section ppo for a user-defined one."""
        return getattr(self, self.algorithm if self.algorithm in LEARNER_NAMES.built_in else "ppo")

    @property
    def decisions_of_an_item(self) -> int:
        """Decisions per replay item: 1, or a sequence if the policy has a temporal (recurrent) core."""
        return 1 if self.policy.core == "none" else self.dqn.bptt

    @model_validator(mode="before")
    @classmethod
    def _one_sensor(cls, data: object) -> object:
        """Copy azimuth and elevation bins between policy and environment, where only one of them sets these."""
        if not isinstance(data, dict):
            return data
        sections = [data.get(name, {}) for name in ("env", "policy")]
        if not all(isinstance(section, dict | Config) for section in sections):
            return data  # no section at all: its own check reports it
        given = dict(zip(("env", "policy"), map(_given, sections)))
        for here, there in (("env", "policy"), ("policy", "env")):
            missing = {k: v for k, v in given[here].items() if k in _BINS and k not in given[there]}
            if missing:
                data = data | {there: given[there] | missing}
        return data

    @model_validator(mode="after")
    def _head_of_the_learner(self) -> Self:
        """Set the Q-value head for dqn; refuse it for other learners."""
        kind = self.policy.distribution
        if self.algorithm == "dqn" and kind != "q":
            if "distribution" in self.policy.model_fields_set:
                raise ConfigError(f"algorithm dqn learns policy.distribution q, not {kind}; leave it out")
            # Checked as if it had been written: the head refuses what only a critic has.
            learned = self.policy.model_dump(exclude_unset=True) | {"distribution": "q"}
            object.__setattr__(self, "policy", parse_config(PolicyConfig, learned))
        elif self.algorithm != "dqn" and kind == "q":
            raise ConfigError(f"policy.distribution q is learned by algorithm dqn, not by {self.algorithm}")
        smoothing = self.kernel_smoothing
        if smoothing.enabled and smoothing.latent_dim != self.policy.q_hidden:
            raise ConfigError(
                f"kernel_smoothing.latent_dim {smoothing.latent_dim} differs from policy.q_hidden "
                f"{self.policy.q_hidden}, whose activations are the latents; set both"
            )
        return self

    @model_validator(mode="after")
    def _whose_options(self) -> Self:
        if self.learner_options and self.algorithm in LEARNER_NAMES.built_in:
            raise ConfigError(
                f"learner_options are for a user-defined learner; {self.algorithm} is set by its section: "
                f"{self.algorithm}.{next(iter(self.learner_options))}"
            )
        return self

    @model_validator(mode="after")
    def _learning_can_start(self) -> Self:
        if self.algorithm == "dqn":
            self.replay.require_start(self.dqn.learning_starts, self.decisions_of_an_item)
        return self

    @model_validator(mode="after")
    def _goal_of_the_task(self) -> Self:
        """Enable the policy's goal inputs for point-goal flight; refuse them for other tasks."""
        wanted = self.task is None and self.env.task == "point_goal"
        if wanted and self.algorithm in LEARNER_NAMES.built_in and self.algorithm != "ppo":
            raise ConfigError(f"env.task point_goal is learned by ppo, not by {self.algorithm}")
        if self.policy.goal != wanted:
            if "goal" in self.policy.model_fields_set:
                raise ConfigError(f"policy.goal {self.policy.goal} does not fit env.task {self.env.task}; leave it out")
            object.__setattr__(self, "policy", self.policy.model_copy(update={"goal": wanted}))
            if self.policy.aux == "off":
                raise ConfigError("env.task point_goal needs the auxiliary input, which policy.aux off leaves out")
        return self

    @model_validator(mode="after")
    def _places_are_flown_through(self) -> Self:
        if self.policy.place_memory and self.task is not None:
            raise ConfigError(f"policy.place_memory maps flights; the task {self.task} has none. Leave it out")
        if self.policy.place_memory and self.algorithm == "dpo":
            raise ConfigError("dpo compares recorded flights without their maps; leave out policy.place_memory")
        if self.policy.shield and self.algorithm not in ("bc", "ppo"):
            raise ConfigError(
                f"policy.shield acts in the flights of ppo and of clones, not of {self.algorithm}; leave it out"
            )
        if self.policy.anticipation and (self.algorithm not in ("bc", "ppo") or self.env.task != "explore"):
            raise ConfigError(
                f"policy.anticipation is a loss of ppo about unseen floor, not of {self.algorithm} with env.task "
                f"{self.env.task}; leave it out"
            )
        return self

    @model_validator(mode="after")
    def _compile_for_the_sensor(self) -> Self:
        if "resolution" not in self.compile.model_fields_set:
            resolution = compile_resolution(self.env.azimuth_bins, self.env.elevation_bins)
            # Frozen for everybody else: the section is complete only now that the sensor is known.
            object.__setattr__(self, "compile", self.compile.model_copy(update={"resolution": resolution}))
        return self

    @model_validator(mode="after")
    def _one_resolution(self) -> Self:
        for name in _BINS:
            here, there = getattr(self.policy, name), getattr(self.env, name)
            if here != there:
                raise ConfigError(
                    f"policy.{name} {here} differs from env.{name} {there}; leave out policy.{name}, or set it, too"
                )
        return self


def _given(section: dict[str, Any] | Config) -> dict[str, Any]:
    """Return the explicitly set values of a section as plain data."""
    return section.model_dump(exclude_unset=True) if isinstance(section, Config) else section


def upgrade_train_config(raw: dict[str, Any]) -> dict[str, Any]:
    """Migrate a complete training configuration of an older version; current settings stay unchanged.

    A missing setting gets today's default. Exceptions are listed here.

    Args:
        raw: The `TrainConfig` of a checkpoint, as plain data.
    """
    today = upgrade_settings(raw)
    if isinstance(raw.get("ppo"), dict):
        today["ppo"] = {"normalise_returns": False, **today["ppo"]}
    adaptation = raw.get("adaptation")
    if isinstance(adaptation, dict) and adaptation.get("enabled") and raw.get("algorithm") != "dqn":
        # It was taken from every learner, and moved settings of dqn alone.
        today["adaptation"] = adaptation | {"enabled": False}
    return today


def upgrade_settings(given: dict[str, Any]) -> dict[str, Any]:
    """Migrate a partial set of training settings of an older version.

    Args:
        given: Some of the `TrainConfig`, as plain data.
    """
    today = dict(given)
    if isinstance(given.get("ppo"), dict):
        ppo = today["ppo"] = dict(given["ppo"])
        if (end := ppo.pop("final_learning_rate", None)) is not None:
            ppo["schedules"] = {"learning_rate": {"shape": "cosine", "end": end}}
    for learner in ("dpo", "dqn"):
        section = given.get(learner)
        if isinstance(section, dict) and section.get("microbatch") is not None:
            # These two had it from the rollouts that they share with ppo and grpo, and never looked at it.
            today[learner] = {name: value for name, value in section.items() if name != "microbatch"}
    return today
