"""Every setting of the engine: frozen pydantic models, one docstring per field, unknown keys refused.

Values are SI units; defaults are those of the specification. Nothing here imports torch, so that
the command line, the pipeline and tools may read configurations cheaply.
"""

from __future__ import annotations

import difflib
import hashlib
import json
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from navi_core.errors import ConfigError

__all__ = [
    "REWARD_TERMS",
    "CompileConfig",
    "Config",
    "CorpusConfig",
    "DynamicsConfig",
    "EnvConfig",
    "EvalConfig",
    "PPOConfig",
    "PolicyConfig",
    "RewardConfig",
    "ShaperConfig",
    "SpawnConfig",
    "TrainConfig",
    "config_hash",
    "parse_config",
]

C = TypeVar("C", bound="Config")

# Bounds far beyond use that keep a slip of the keyboard from becoming an hour of allocation.
_Count = Annotated[int, Field(ge=1, le=2**40)]
_Speed = Annotated[float, Field(gt=0, le=100)]
_Candidates = Annotated[int, Field(ge=1, le=100)]
_ProbeBins = Annotated[int, Field(ge=4, le=1024)]
_SceneSeed = Annotated[int, Field(ge=0, lt=2**31)]

REWARD_TERMS: tuple[str, ...] = (
    "exploration",
    "progress",
    "clearance",
    "starvation",
    "proximity",
    "structure_band",
    "forward_structure",
    "inspection",
    "collision",
    "view_gain",
)
"""Names of the environment's reward terms: the nine of the specification, then `view_gain`."""


class Config(BaseModel):
    """Base of every configuration: frozen, complete, and strict about keys."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", use_attribute_docstrings=True, validate_default=True, allow_inf_nan=False
    )

    @model_validator(mode="before")
    @classmethod
    def _name_the_nearest_key(cls, data: Any) -> Any:
        if isinstance(data, dict):
            known = list(cls.model_fields)
            for key in data:
                if key not in known:
                    near = difflib.get_close_matches(str(key), known, n=1, cutoff=0.4)
                    hint = f"did you mean {near[0]!r}? " if near else ""
                    raise ConfigError(f"{cls.__name__} has no key {key!r}; {hint}allowed: {', '.join(known)}")
                if isinstance(data[key], bool) and cls.model_fields[key].annotation in (int, float, str):
                    # pydantic would take true for the number 1.
                    raise ConfigError(f"{key} = {data[key]}: true and false are not a number")
        return data


class CompileConfig(Config):
    """How a mesh becomes a `.gmdag` scene."""

    resolution: int = Field(512, ge=16, le=2048)
    """Voxels along one edge of the scene's cube; a power of two, 16 to 2048."""
    padding: float = Field(1.0, gt=0, le=100)
    """Free margin added on each side of the mesh bounds [m]."""
    up_axis: Literal["y", "z"] = "y"
    """The mesh's up axis; `z` is rotated to +Y on reading."""
    unit_scale: float = Field(1.0, gt=0, le=1e6)
    """Metres per mesh unit (0.01 for centimetres)."""
    max_leaf_triangles: int = Field(16, ge=1, le=4096)
    """A surface cell with a longer triangle list is split while the resolution allows it."""

    @model_validator(mode="after")
    def _power_of_two(self) -> Self:
        if self.resolution & (self.resolution - 1):
            lower = 1 << (self.resolution.bit_length() - 1)
            raise ConfigError(
                f"resolution {self.resolution} is not a power of two; nearest are {lower} and {2 * lower}"
            )
        return self


class DynamicsConfig(Config):
    """4-DOF drone: forward, vertical, lateral, yaw."""

    max_speed: tuple[_Speed, _Speed, _Speed] = (5.0, 2.0, 3.0)
    """Limits of forward, vertical and lateral speed [m/s]."""
    max_yaw_rate: float = Field(3.0, gt=0)
    """Limit of the yaw rate [rad/s]."""
    smoothing: float = Field(0.85, gt=0, le=1)
    """Share of the command in the new velocity, per substep."""
    substep: float = Field(0.02, ge=1e-4, le=1)
    """Physics time step [s]."""
    steps_per_decision: int = Field(5, ge=1, le=50)
    """Substeps per decision; 5 gives 10 Hz. 1 is a compatibility option."""
    radius: float = Field(0.15, gt=0, le=10)
    """Collision clearance of the drone [m]."""
    limiter_distance: float = Field(0.8, gt=0)
    """Front distance under which linear speed is limited [m]."""
    limiter_floor: float = Field(0.05, ge=0, le=1)
    """Least share of the commanded speed that the limiter leaves."""
    limiter_elevation_degrees: float = Field(30.0, gt=0, le=90)
    """Half-width of the elevation band the limiter looks at [degrees]."""

    @property
    def decision_seconds(self) -> float:
        """Duration of one decision [s]."""
        return self.substep * self.steps_per_decision

    @property
    def decision_hz(self) -> float:
        """Decisions per second [Hz]."""
        return 1.0 / self.decision_seconds


_NAVI9 = {name: 1.0 for name in REWARD_TERMS[:9]} | {"view_gain": 0.0}
_EXPLORE = {name: 0.0 for name in REWARD_TERMS} | {"collision": 1.0, "view_gain": 1.0}


class RewardConfig(Config):
    """Weights of the reward terms; all terms are always computed and recorded."""

    preset: Literal["explore", "navi9"] = "explore"
    """`explore`: view_gain and collision; `navi9`: the nine terms of the source system at weight 1."""
    weights: dict[str, float] = Field(default_factory=dict)
    """Weights by term name, overriding the preset's."""
    view_radius: float = Field(3.2, gt=0)
    """Radius within which floor counts as seen [m]."""
    view_cell: float = Field(0.2, ge=0.01, le=10)
    """Edge of a floor cell of view_gain [m]."""

    @model_validator(mode="after")
    def _known_terms(self) -> Self:
        for name in self.weights:
            if name not in REWARD_TERMS:
                near = difflib.get_close_matches(name, REWARD_TERMS, n=1, cutoff=0.3)
                hint = f"did you mean {near[0]!r}? " if near else ""
                raise ConfigError(f"no reward term {name!r}; {hint}allowed: {', '.join(REWARD_TERMS)}")
        return self

    def resolved(self) -> dict[str, float]:
        """Return the weight of every term."""
        return (_NAVI9 if self.preset == "navi9" else _EXPLORE) | self.weights


class SpawnConfig(Config):
    """Where episodes begin."""

    grid: tuple[_Candidates, _Candidates, _Candidates] = (5, 7, 5)
    """Candidate positions along x, y, z."""
    inset: float = Field(0.2, ge=0, lt=0.5)
    """Share of the bounds left out on each side."""
    probe: tuple[_ProbeBins, _ProbeBins] = (48, 12)
    """Azimuth and elevation bins of the probe."""
    max_starvation: float = Field(0.70, gt=0, le=1)
    """Candidates whose share of missing rays reaches this are rejected."""


class EnvConfig(Config):
    """Observation, dynamics, reward and episode rules of `NavigationEnv`."""

    azimuth_bins: int = Field(256, ge=8, le=4096)
    """Azimuth bins of the observation."""
    elevation_bins: int = Field(48, ge=4, le=2048)
    """Elevation bins of the observation."""
    max_distance: float = Field(100.0, gt=0, le=1e5)
    """Range of the sensor, M [m]."""
    max_steps: int = Field(1000, ge=1, le=2**30)
    """Decisions after which an episode is truncated."""
    episodes_per_scene: int = Field(16, ge=1)
    """Episodes of a row in one scene before it moves to the next."""
    void_starvation: float = Field(0.85, gt=0, le=1)
    """Share of missing rays that truncates an episode as void."""
    void_grace: int = Field(10, ge=0)
    """Decisions at the start of an episode in which void is not checked."""
    stagger: bool = True
    """Start the first episodes at different ages so that rows do not end together."""
    dynamics: DynamicsConfig = DynamicsConfig()
    """Drone dynamics."""
    reward: RewardConfig = RewardConfig()
    """Reward weights."""
    spawn: SpawnConfig = SpawnConfig()
    """Spawn pools."""


class PolicyConfig(Config):
    """Encoder → temporal core → heads."""

    encoder: Literal["rayvit", "ring_cnn"] = "rayvit"
    """Encoder backend."""
    core: Literal["mamba2", "gru"] = "mamba2"
    """Temporal core."""
    azimuth_bins: int = Field(256, ge=8, le=4096)
    """Azimuth bins of the observation; must equal the environment's."""
    elevation_bins: int = Field(48, ge=4, le=2048)
    """Elevation bins of the observation; must equal the environment's."""
    width: int = Field(128, ge=8, le=1024, multiple_of=4)
    """Embedding width D."""
    patch: int = Field(8, ge=2, le=64)
    """Patch edge of rayvit; must divide both observation axes."""
    core_layers: int = Field(1, ge=1, le=4)
    """1: the bare block; more: pre-norm residual layers."""
    aux: Literal["no_reward", "full", "off"] = "no_reward"
    """Auxiliary input from the previous step (shaped reward, loop similarity, intrinsic reward)."""
    depth_shift: float = 0.2
    """Subtracted from the depth channel before the encoder."""
    depth_scale: float = Field(0.1, gt=0)
    """Divides the shifted depth channel."""
    log_std_init: float = Field(-0.5, ge=-5, le=2)
    """Initial log standard deviation of every action axis."""
    stop_value_gradient: bool = False
    """Keep the critic's gradient out of the trunk."""

    @model_validator(mode="after")
    def _patch_divides(self) -> Self:
        if self.encoder == "rayvit":
            for name in ("azimuth_bins", "elevation_bins"):
                bins = getattr(self, name)
                if bins % self.patch:
                    raise ConfigError(f"{name} {bins} is not a multiple of the patch {self.patch} (encoder rayvit)")
        return self


class ShaperConfig(Config):
    """Actor-side reward shaping: tax, RND curiosity, loop penalty."""

    existential_tax: float = -0.02
    """Added at every decision."""
    velocity_weight: float = 0.0
    """Weight of the linear speed [1 / (m/s)]."""
    rnd_start: float = Field(1.0, ge=0)
    """RND coefficient at step 0; 0 with rnd_end 0 switches RND off."""
    rnd_end: float = Field(0.01, ge=0)
    """RND coefficient after rnd_decay_steps."""
    rnd_decay_steps: _Count = 500_000
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
    """The latest steps that are not compared."""


class PPOConfig(Config):
    """Proximal policy optimisation (Schulman et al. 2017) on sequences."""

    learning_rate: float = Field(3e-4, gt=0, le=1)
    """Adam step size."""
    final_learning_rate: float | None = Field(None, gt=0, le=1)
    """Cosine target at total_steps; None keeps the rate constant."""
    gamma: float = Field(0.99, ge=0, le=1)
    """Discount per decision."""
    gae_lambda: float = Field(0.95, ge=0, le=1)
    """λ of generalised advantage estimation."""
    clip: float = Field(0.2, gt=0, le=1)
    """Ratio clip ε."""
    entropy_coefficient: float = Field(0.01, ge=0)
    """Weight of the entropy bonus."""
    value_coefficient: float = Field(0.5, ge=0)
    """Weight of the value loss."""
    value_clip: float | None = Field(None, gt=0)
    """Clip of the value step; None switches it off."""
    max_grad_norm: float = Field(0.5, gt=0)
    """Global gradient norm bound."""
    epochs: int = Field(2, ge=1, le=100)
    """Passes over each rollout."""
    rollout: int = Field(256, ge=1, le=2**20)
    """Decisions per row between updates."""
    minibatch: int = Field(64, ge=1, le=2**30)
    """Sequences per minibatch."""
    bptt: int = Field(8, ge=1, le=2**20)
    """Decisions per sequence; must divide rollout."""
    target_kl: float | None = Field(0.03, gt=0)
    """Approximate KL above which the update's remaining epochs are skipped; None never stops."""
    reward_ema_alpha: float = Field(0.01, gt=0, le=1)
    """Smoothing of the reported reward_ema, per decision batch."""

    @model_validator(mode="after")
    def _chunks(self) -> Self:
        if self.rollout % self.bptt:
            raise ConfigError(f"rollout {self.rollout} is not a multiple of bptt {self.bptt}")
        return self


class CorpusConfig(Config):
    """Which scenes are used: an explicit scene list, a root folder, or generated scenes."""

    scenes: tuple[str, ...] = ()
    """Explicit `.gmdag` or mesh files; takes precedence over everything else."""
    manifest: str | None = None
    """Corpus manifest (JSON); takes precedence over root."""
    root: str | None = None
    """Folder searched for meshes."""
    families: dict[str, tuple[_SceneSeed, ...]] = Field(default_factory=lambda: {"apartment": tuple(range(12))})
    """Generated families and their seeds, used when nothing else is named."""


class TrainConfig(Config):
    """Everything a training run is made of; saved in its run directory and checkpoints."""

    algorithm: Literal["ppo"] = "ppo"
    """Learner."""
    seed: int = Field(0, ge=0, lt=2**31)
    """Seed of every random draw."""
    actors: int = Field(64, ge=1, le=65536)
    """Environment rows B."""
    total_steps: _Count | None = None
    """Decisions summed over rows at which the run ends; None trains until stopped."""
    checkpoint_every: _Count = 25_000
    """Steps between checkpoints."""
    keep_checkpoints: int = Field(3, ge=1, le=10_000)
    """Checkpoints kept in the run directory besides the last."""
    threads: int = Field(0, ge=0, le=256)
    """Torch threads on CPU; 0 chooses by the machine."""
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
    """Update rule."""

    @model_validator(mode="after")
    def _compile_for_the_sensor(self) -> Self:
        if "resolution" not in self.compile.model_fields_set:
            resolution = compile_resolution(self.env.azimuth_bins, self.env.elevation_bins)
            # Frozen for everybody else: the section is complete only now that the sensor is known.
            object.__setattr__(self, "compile", self.compile.model_copy(update={"resolution": resolution}))
        return self

    @model_validator(mode="after")
    def _one_resolution(self) -> Self:
        for name in ("azimuth_bins", "elevation_bins"):
            here, there = getattr(self.policy, name), getattr(self.env, name)
            if here != there:
                raise ConfigError(f"policy.{name} {here} differs from env.{name} {there}; set both")
        return self


class EvalConfig(Config):
    """The evaluation protocol."""

    starts: int = Field(10, ge=1, le=10_000)
    """Frozen starts per scene."""
    max_steps: int = Field(1000, ge=1, le=2**30)
    """Decisions per episode."""
    seed: int = Field(0, ge=0, lt=2**31)
    """Seed of starts and of sampled actions."""
    deterministic: bool = True
    """Fly the mean action instead of a sample."""
    azimuth_bins: int = Field(64, ge=8, le=4096)
    """Azimuth bins for scripted pilots; a policy's own are used for a policy."""
    elevation_bins: int = Field(16, ge=4, le=2048)
    """Elevation bins for scripted pilots."""
    view_radius: float = Field(3.2, gt=0)
    """Radius within which floor counts as seen [m]."""
    floor_cell: float = Field(0.1, ge=0.01, le=10)
    """Edge of a ground-truth cell [m]."""
    visit_cell: float = Field(0.5, ge=0.01, le=100)
    """Edge of a C_visit cell [m]."""
    clearance_margin: float = Field(0.05, ge=0)
    """Added to the drone's radius for the reachable set [m]."""
    block: int = Field(16, ge=1, le=1024)
    """Rows evaluated together; blocks are padded, so results do not depend on how many run."""
    dynamics: DynamicsConfig = DynamicsConfig()
    """Drone dynamics; a policy trained at another decision rate is refused."""


def parse_config(cls: type[C], data: dict[str, Any]) -> C:
    """Build `cls` from plain data, turning pydantic's report into one `ConfigError`.

    Args:
        cls: A configuration class.
        data: Nested plain values.

    Raises:
        ConfigError: Names each offending key, its value and the bound it breaks.
    """
    try:
        return cls.model_validate(data)
    except ValidationError as error:
        parts = [
            _told(".".join(str(p) for p in e["loc"]), e.get("input"), e["msg"], e.get("ctx", {}).get("error"))
            for e in error.errors()
        ]
        raise ConfigError("; ".join(parts)) from None


def config_hash(config: Config) -> str:
    """Return the first 16 hex digits of the SHA-256 of the configuration's canonical JSON."""
    text = json.dumps(config.model_dump(mode="json"), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def compile_resolution(azimuth_bins: int, elevation_bins: int) -> int:
    """Return the default compile resolution: the next power of two ≥ max(512, 2·Az, 8·El), at most 2048."""
    return min(1 << (max(512, 2 * azimuth_bins, 8 * elevation_bins) - 1).bit_length(), 2048)


def _told(place: str, value: Any, message: str, error: Any) -> str:
    if isinstance(error, ConfigError):
        return f"{place}: {error}" if place else str(error)
    return f"{place or 'the configuration'} = {_short(value)}: {message}"


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
