"""Settings of the policy network and of reward shaping; observation and action spaces, options of a task."""

import math
from dataclasses import dataclass
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, field_validator, model_validator

from navi_core.config.base import Config, Count
from navi_core.config.registry import CORE_NAMES, CoreName, EncoderName
from navi_core.errors import ConfigError

SECTORS = 16
"""Direction sectors; the first is ahead, the next to its right."""
RINGS = (1.6, 3.2, 6.4, 12.8)
"""Outer radii of the rings in which unseen floor is counted [m]."""
AHEAD = (3, 7)
"""Cells along the way to the frontier whose bearings are inputs."""
MOVED = 3
"""Inputs for the drone's motion since its last look."""
OCCUPANCY_INPUTS = SECTORS * (2 + len(RINGS)) + 2 * len(AHEAD) + 2 + MOVED
"""Inputs of the occupancy memory, see `mapping.frontier_features`."""

ANTICIPATED = 32
"""Outputs of the prediction that `PolicyConfig.anticipation` trains: two rings of 16 sectors."""


_MOST_AUTO_PATCHES = 192
"""Patches that `patch: auto` allows: those of 256x48 at edge 8."""


class PolicyConfig(Config):
    """Settings of the policy network: encoder → temporal (recurrent) core → heads."""

    encoder: EncoderName = "rayvit"
    """Encoder backend, built in or of a module that NAVI_PLUGINS names."""
    core: CoreName = "mamba2"
    """Temporal core, built in or of a module that NAVI_PLUGINS names; none has no memory."""
    azimuth_bins: int = Field(256, ge=8, le=4096)
    """Azimuth bins of the observation; in a training those of the environment, if they are set there alone."""
    elevation_bins: int = Field(48, ge=4, le=2048)
    """Elevation bins of the observation; in a training those of the environment, if they are set there alone."""
    width: int = Field(128, ge=8, le=1024, multiple_of=4)
    """Embedding width D."""
    patch: Annotated[int, Field(ge=2, le=64)] | Literal["auto"] = 8
    """Patch edge of rayvit, a divisor of both observation axes; auto grows with the resolution (8 at 256x48)."""
    area_attention: bool = False
    """rayvit weighs patches by their solid angle: those near the poles count less."""
    separable_refinement: bool = False
    """spherical_cnn's last stage is depthwise and pointwise: a quarter of the operations."""
    picture_channels: tuple[
        Annotated[int, Field(ge=1, le=4096)], Annotated[int, Field(ge=1, le=4096)], Annotated[int, Field(ge=1, le=4096)]
    ] = (32, 64, 64)
    """Channels of the three convolutions that see a task's pictures (Mnih et al. 2015)."""
    core_layers: int = Field(1, ge=1, le=4)
    """1: the bare block; more: pre-norm residual layers."""
    aux: Literal["no_reward", "full", "off"] = "no_reward"
    """Auxiliary input from the previous step (shaped reward, loop similarity, intrinsic reward)."""
    place_memory: bool = False
    """Inputs for the directions of unseen floor, from an occupancy map of the flight; behind the
    auxiliary input of the previous step."""
    map_cell: float = Field(0.4, ge=0.1, le=0.4, exclude_if=lambda cell: cell == 0.4)
    """Edge of a cell of that map [m]; doors under 0.8 m need 0.2."""
    known_channel: bool = Field(False, exclude_if=lambda known: not known)
    """The encoder has a fourth channel, the rays that a limited sensor (env.sensor.profiles) has measured."""
    recovery: bool = False
    """Flights by the typical action that do not come from the spot are disturbed until they are free, in evaluation and
    in service; training and sampled flights come free by themselves and are left alone."""
    shield: bool = Field(False, exclude_if=lambda shield: not shield)
    """Hold the height, and slow commands towards cells that the own map does not know to be free, in training,
    evaluation and service."""
    done_after: int = Field(0, ge=0, le=10_000, exclude_if=lambda after: not after)
    """Decisions without a way to a frontier of the own map after which a flight hovers, in evaluation and in service;
    0: it flies on."""
    goal: bool = False
    """The auxiliary input also holds the relative goal (point-goal flight)."""
    depth_shift: float = 0.2
    """Subtracted from the depth channel before the encoder."""
    depth_scale: float = Field(0.1, gt=0)
    """Divides the shifted depth channel."""
    distribution: Literal["gaussian", "beta", "discrete", "q"] = "gaussian"
    """Distribution of actions: unbounded Gaussian, Beta on (−1, 1), a choice of motion primitive, or the best one by
    its Q value (dqn)."""
    q_hidden: int = Field(64, ge=1, le=2**14)
    """Width of the Q head's hidden layer, the latents of drift smoothing (q)."""
    dueling: bool = False
    """The Q head sums a value and centred advantages (q)."""
    log_std_init: float = Field(-0.5, ge=-5, le=2)
    """Initial log standard deviation of every action axis (gaussian)."""
    separate_value: bool = False
    """The critic has an encoder and a core of its own; about twice the work."""
    stop_value_gradient: bool = False
    """Keep the critic's gradient out of the trunk."""
    privileged_critic: bool = False
    """In training the critic sees how much floor is left, or the way to the goal, and how long the episode
    is (asymmetric actor-critic, Pinto et al. 2018); the actor is not. Reference tasks have neither and ignore it."""
    anticipation: float = Field(0.0, ge=0, le=100, exclude_if=lambda weight: not weight)
    """Weight of an auxiliary loss of ppo, by which the features learn to predict where unseen floor lies around the
    drone (occupancy anticipation, Ramakrishnan et al. 2020); 0: none. It needs privileged_critic."""

    @property
    def patch_edge(self) -> int:
        """Patch size of the ViT encoder rayvit [bins]; `auto`: least divisor ≥ 8 of both axes with ≤ 192 patches."""
        if self.patch != "auto":
            return self.patch
        azimuth, elevation = self.azimuth_bins, self.elevation_bins
        common = math.gcd(azimuth, elevation)
        edges = [n for n in range(8, common + 1) if common % n == 0]
        fits = [n for n in edges if azimuth * elevation <= _MOST_AUTO_PATCHES * n * n]
        if not fits:
            raise ConfigError(
                f"patch auto finds no edge for {azimuth}x{elevation}: no common divisor from 8 up leaves at most "
                f"{_MOST_AUTO_PATCHES} patches; set policy.patch"
            )
        return fits[0]

    @field_validator("aux", mode="before")
    @classmethod
    def _off_is_a_word(cls, value: object) -> object:
        # YAML reads a bare off as false.
        return "off" if value is False else value

    @field_validator("core", mode="before")
    @classmethod
    def _fused_is_for_benchmarks(cls, value: object) -> object:
        if isinstance(value, str) and value.replace("_", "-") == "mamba-ssm" and value not in CORE_NAMES.all():
            raise ConfigError(
                f"temporal core {value} is for benchmarks only (navi bench core); train and serve with mamba2, "
                "whose weights load into it and back"
            )
        return value

    @property
    def aux_inputs(self) -> int:
        """Width of the auxiliary input: of the last step, and of occupancy memory and goal if enabled."""
        return 3 + OCCUPANCY_INPUTS * self.place_memory + 4 * self.goal

    @model_validator(mode="after")
    def _needs_others(self) -> Self:
        for names, other, why in (
            (("goal", "place_memory"), self.aux != "off", "needs the auxiliary input, which policy.aux off leaves out"),
            (("shield", "done_after"), self.place_memory, "reads the occupancy map; set policy.place_memory, too"),
            (("anticipation",), self.privileged_critic, "learns true floor; set policy.privileged_critic, too"),
        ):
            for name in names:
                if getattr(self, name) and not other:
                    raise ConfigError(f"policy.{name} {why}")
        return self

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.separate_value and self.stop_value_gradient:
            raise ConfigError(
                "separate_value and stop_value_gradient contradict each other: nothing would train the critic's trunk"
            )
        critic = [n for n in ("separate_value", "stop_value_gradient", "privileged_critic") if getattr(self, n)]
        if self.distribution == "q" and critic:
            raise ConfigError(f"distribution q, which dqn learns, has no critic; leave out policy.{', '.join(critic)}")
        if self.encoder == "rayvit":
            edge = self.patch_edge
            for name in ("azimuth_bins", "elevation_bins"):
                bins = getattr(self, name)
                if bins % edge:
                    raise ConfigError(f"{name} {bins} is not a multiple of the patch {edge} (encoder rayvit)")
        return self


class ShaperConfig(Config):
    """Settings of actor-side reward shaping: step penalty, RND curiosity, loop penalty."""

    existential_tax: float = -0.02
    """Added at every decision."""
    velocity_weight: float = 0.0
    """Weight of the linear speed [1 / (m/s)]."""
    rnd_start: float = Field(1.0, ge=0)
    """RND coefficient at step 0; 0 with rnd_end 0 switches RND off."""
    rnd_end: float = Field(0.01, ge=0)
    """RND coefficient after rnd_decay_steps."""
    rnd_decay_steps: Count = 500_000
    """Steps of the linear decay."""
    rnd_clamp: float = Field(5.0, gt=0)
    """Bound of the normalised intrinsic reward."""
    rnd_lr: float = Field(3e-4, gt=0)
    """Learning rate of the RND predictor."""
    loop_coefficient: float = Field(2.0, ge=0)
    """Weight of the loop penalty; 0 switches episodic memory off."""
    loop_threshold: float = Field(0.85, ge=-1, le=1)
    """Cosine similarity above which a revisit is penalised."""
    loop_decay: Literal["half_life", "exponential"] = "half_life"
    """2^(−Δ/τ) or exp(−Δ/τ), Δ steps since the remembered step."""
    loop_tau: float = Field(200.0, gt=0)
    """τ of the decay [steps]."""
    memory_capacity: int = Field(100_000, ge=1, le=2**30)
    """Embeddings kept in total over all rows."""
    memory_exclusion: int = Field(50, ge=0)
    """Age from which a memory is compared [steps]; at 50 those of the latest 49 steps are not."""

    @property
    def made_of(self) -> list[str]:
        """Components of the next auxiliary input: none, one or both of curiosity and loop memory."""
        parts = {"curiosity": self.rnd_start + self.rnd_end, "loop memory": self.loop_coefficient}
        return [name for name, weight in parts.items() if weight > 0]


@dataclass(frozen=True)
class Spaces:
    """Observation and action spaces of a task.

    Attributes:
        observation: Numbers of an observation.
        axes: Width of an action.
        choices: Every allowed action, each with `axes` numbers; empty where actions are continuous in (−1, 1).
        scale: Usual magnitude of each number of an observation, by which a network divides; empty for 1.
        shape: (C, H, W) of observations that are pictures, bytes; empty for vectors.
    """

    observation: int
    axes: int = 1
    choices: tuple[tuple[float, ...], ...] = ()
    scale: tuple[float, ...] = ()
    shape: tuple[int, ...] = ()

    @property
    def observed(self) -> tuple[int, ...]:
        """Shape of one observation."""
        return self.shape or (self.observation,)


_SET_BY_RUN = {"name": "task", "num_envs": "actors (rows of a fast learner)", "seed": "seed", "first_row": "seed"}
"""Options that a run sets itself, and the setting of each."""


def _own(options: dict[str, bool | int | float | str]) -> dict[str, bool | int | float | str]:
    for name in options:
        if name in _SET_BY_RUN:
            raise ConfigError(f"task_options.{name} is no option of a task; set {_SET_BY_RUN[name]} instead")
    return options


TaskOptions = Annotated[dict[str, bool | int | float | str], AfterValidator(_own)]
"""Option of the task by name."""
