"""Settings of scenes and the environment: compilation, corpus, sensor, dynamics, rewards, goals, spawns, motions."""

import math
from typing import Annotated, Literal, Self

from pydantic import Field, ValidationInfo, model_validator

from navi_core.config.base import Config
from navi_core.config.registry import PartNames
from navi_core.errors import ConfigError

MOTION_PRIMITIVES: dict[str, tuple[float, float, float, float]] = {
    "hover": (0.0, 0.0, 0.0, 0.0),
    "forward": (1.0, 0.0, 0.0, 0.0),
    "forward_slow": (0.4, 0.0, 0.0, 0.0),
    "backward": (-0.5, 0.0, 0.0, 0.0),
    "climb": (0.0, 1.0, 0.0, 0.0),
    "descend": (0.0, -1.0, 0.0, 0.0),
    "left": (0.0, 0.0, -1.0, 0.0),
    "right": (0.0, 0.0, 1.0, 0.0),
    "turn_left": (0.0, 0.0, 0.0, 1.0),
    "turn_right": (0.0, 0.0, 0.0, -1.0),
    "turn_left_slow": (0.0, 0.0, 0.0, 0.4),
    "turn_right_slow": (0.0, 0.0, 0.0, -0.4),
    "curve_left": (1.0, 0.0, 0.0, 0.5),
    "curve_right": (1.0, 0.0, 0.0, -0.5),
    "curve_left_slow": (0.4, 0.0, 0.0, 0.7),
    "curve_right_slow": (0.4, 0.0, 0.0, -0.7),
    "forward_climb": (1.0, 0.5, 0.0, 0.0),
    "forward_descend": (1.0, -0.5, 0.0, 0.0),
}
"""Name → action (forward, vertical, lateral, yaw), each in [−1, 1]; + lateral is right, + yaw counter-clockwise.

The order is part of a discrete policy's meaning: new primitives go to the end."""


GOAL_TERMS = ("goal_progress", "goal_success")
"""Reward terms of goals, reported beside the others with their weight included."""


class GoalConfig(Config):
    """Settings of point-goal navigation: goal sampling, success radius, training rewards."""

    success_radius: float = Field(0.5, gt=0, le=100)
    """Distance at which a goal counts as reached [m]."""
    stop_speed: float = Field(0.25, gt=0, le=100)
    """Linear speed below which the drone has stopped [m/s]."""
    min_distance: float = Field(2.0, ge=0, le=1000)
    """Least way from the start to the goal: the geodesic one in training, the straight one in evaluation [m]."""
    per_scene: int = Field(8, ge=1, le=256)
    """Goals of each training scene; the way to each is kept for every voxel."""
    progress_weight: float = Field(1.0, ge=0)
    """Reward for each metre by which the way to the goal became shorter [1/m]."""
    success_reward: float = Field(10.0, ge=0)
    """Reward for stopping at the goal."""


# Bounds far beyond use keep a slip of the keyboard from becoming an hour of allocation.
_Speed = Annotated[float, Field(gt=0, le=100)]
_Candidates = Annotated[int, Field(ge=1, le=100)]
_ProbeBins = Annotated[int, Field(ge=4, le=1024)]

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
REWARD_NAMES = PartNames("reward term", REWARD_TERMS)
"""Terms that weights may name; user-defined ones are registered (`navi_core.world.register_reward`)."""


FLOOR_CLEARANCE_MARGIN = 0.05
"""Added to the drone's radius for the reachable floor [m]."""


class DynamicsConfig(Config):
    """Settings of the 4-DOF drone dynamics: forward, vertical, lateral, yaw."""

    max_speed: tuple[_Speed, _Speed, _Speed] = (5.0, 2.0, 3.0)
    """Limits of forward, vertical and lateral speed [m/s]."""
    max_yaw_rate: float = Field(3.0, gt=0)
    """Limit of the yaw rate [rad/s]."""
    smoothing: float = Field(0.85, gt=0, le=1)
    """Share of the command in the new velocity, per substep."""
    max_acceleration: float | None = Field(None, gt=0, le=1000, exclude_if=lambda limit: limit is None)
    """Limit of the acceleration along each axis [m/s²]; None: none."""
    max_yaw_acceleration: float | None = Field(None, gt=0, le=1000, exclude_if=lambda limit: limit is None)
    """Limit of the yaw acceleration [rad/s²]; None: none."""
    height_limit: float | None = Field(None, gt=0, le=1000, exclude_if=lambda limit: limit is None)
    """Height over a scene's lowest surface above which no drone rises and no space is reachable [m]. It is at most that
    of the highest surface, so that a scan without ceilings has a lid. None: no limit."""
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
    def changes(self) -> tuple[float, float]:
        """Largest change of a linear speed [m/s] and of the yaw rate [rad/s] in a substep; infinite without limits."""
        limits = (self.max_acceleration, self.max_yaw_acceleration)
        linear, yaw = (math.inf if limit is None else limit * self.substep for limit in limits)
        return linear, yaw

    @property
    def response(self) -> tuple[float, float, float]:
        """Share of the command in the new velocity, and `changes`, as the kernels of dead reckoning take them."""
        return self.smoothing, *self.changes

    @property
    def decision_seconds(self) -> float:
        """Duration of one decision (environment step) [s]."""
        return self.substep * self.steps_per_decision

    @property
    def decision_hz(self) -> float:
        """Decision rate [Hz]."""
        return 1.0 / self.decision_seconds


_Radius = Annotated[float, Field(gt=0, le=10)]
_Share = Annotated[float, Field(gt=0, le=1)]
_Factor = Annotated[float, Field(ge=0.05, le=20)]


class BodiesConfig(Config):
    """Settings of the drone that change from episode to episode in training (domain randomisation); none by default."""

    speed: tuple[_Factor, _Factor] = (1.0, 1.0)
    """Least and most factor of the drone's speed limits."""
    radius: tuple[_Radius, ...] = ()
    """Radii of which each episode draws one [m]; empty: that of the dynamics."""
    smoothing: tuple[_Share, _Share] | None = None
    """Least and most share of the command in the new velocity, per substep; None: that of the dynamics."""

    @property
    def drawn(self) -> bool:
        """Whether bodies differ from episode to episode."""
        return self != BodiesConfig()

    @model_validator(mode="after")
    def _ascending(self) -> Self:
        for name in ("speed", "smoothing"):
            span = getattr(self, name)
            if span is not None and span[0] > span[1]:
                raise ConfigError(f"bodies.{name} {list(span)}: the least is above the most; swap them")
        return self


_NAVI9 = {name: 1.0 for name in REWARD_TERMS[:9]} | {"view_gain": 0.0}
_COLLIDE = {name: 0.0 for name in REWARD_TERMS} | {"collision": 1.0}
_PRESETS = {"explore": _COLLIDE | {"view_gain": 1.0}, "navi9": _NAVI9, "point_goal": _COLLIDE}


class RewardConfig(Config):
    """Weights of the reward terms; all terms are always computed and recorded."""

    preset: Literal["explore", "navi9", "point_goal"] = "explore"
    """`explore`: view_gain and collision; `navi9`: the nine terms of the source system at weight 1; `point_goal`:
    collision, beside the goal's reward."""
    weights: dict[str, Annotated[float, Field(ge=-1e6, le=1e6)]] = Field(default_factory=dict)
    """Weights by term name, overriding the preset's; a registered user-defined term has the weight given here."""
    view_radius: float = Field(3.2, gt=0)
    """Radius within which floor counts as seen [m]."""
    view_cell: float = Field(0.2, ge=0.01, le=10)
    """Edge of a floor cell of view_gain [m]."""

    @model_validator(mode="after")
    def _known_terms(self, info: ValidationInfo) -> Self:
        if not (info.context and REWARD_NAMES.kind in info.context.get("past", ())):
            for name in self.weights:
                REWARD_NAMES.checked(name)
        return self

    def resolved(self) -> dict[str, float]:
        """Return the resolved weight of every reward term by name."""
        return _PRESETS[self.preset] | self.weights


class SpawnConfig(Config):
    """Settings of the spawn distribution: where episodes begin."""

    grid: tuple[_Candidates, _Candidates, _Candidates] = (5, 7, 5)
    """Candidate positions along x, y, z."""
    inset: float = Field(0.2, ge=0, lt=0.5)
    """Share of the bounds left out on each side."""
    probe: tuple[_ProbeBins, _ProbeBins] = (48, 12)
    """Azimuth and elevation bins of the probe."""
    max_starvation: float = Field(0.70, gt=0, le=1)
    """Candidates whose share of missing rays reaches this are rejected."""
    scattered: int = Field(0, ge=0, le=4096)
    """Poses besides the best-scored ones, at most as many: anywhere in the reachable space, heading anywhere.

    The best-scored ones face structure and keep off walls; a policy that begins nowhere else does not know what to
    do at rest beside a wall. Each keeps its observation in memory."""


SensorProfile = Literal["sphere", "lidar", "camera", "two_cameras", "four_cameras"]
"""Name of a sensor's field of view and range, see `world.sensor.profiles`."""
_Delay = Annotated[int, Field(ge=0, le=10)]


MOST_SCAN_AGE = 19
"""Largest possible `SensorConfig.oldest` [decisions]."""


class SensorConfig(Config):
    """Settings of sensor profiles, faults and noise, none by default; rewards and safety always use the true hits."""

    depth_additive: float = Field(0.0, ge=0, le=100)
    """Standard deviation of the depth at any range [m]."""
    depth_relative: float = Field(0.0, ge=0, le=1)
    """Standard deviation of the depth as a share of it, added to the others."""
    depth_quadratic: float = Field(0.0, ge=0, le=1)
    """Standard deviation of the depth per squared metre of it, as a stereo camera's [1/m], added to the others."""
    dropout: float = Field(0.0, ge=0, le=1)
    """Probability that a ray which hits is reported as a miss; with profiles, as unknown."""
    delayed: bool = False
    """Give each decision the observation of the one before; an episode's first is its own. Short for delay: [1, 1]."""
    profiles: tuple[SensorProfile, ...] = Field((), exclude_if=lambda profiles: not profiles)
    """Sensors, of which each episode draws one. What its rays do not measure is unknown: depth 0, not valid. Empty: an
    ideal sphere, whose missing rays are free to its range."""
    delay: tuple[_Delay, _Delay] = Field((0, 0), exclude_if=lambda delay: delay == (0, 0))
    """Least and most age of an observation [decisions]; each episode draws one of them."""
    period: int = Field(1, ge=1, le=10, exclude_if=lambda period: period == 1)
    """Decisions from one scan to the next; the last is shown until then."""

    @model_validator(mode="after")
    def _one_delay(self) -> Self:
        if self.delay[0] > self.delay[1]:
            raise ConfigError(f"delay {list(self.delay)}: the least delay is above the most; swap them")
        if self.delayed and self.delay != (0, 0):
            raise ConfigError("delayed and delay are both set; leave out delayed, which is delay [1, 1]")
        return self

    @property
    def limited(self) -> bool:
        """Whether observations may hold unknown rays."""
        return bool(self.profiles)

    @property
    def needs_odometry(self) -> bool:
        """Whether observations are too late or too narrow to correct a reckoned pose."""
        return self.oldest > 0 or self.limited

    @property
    def delays(self) -> tuple[int, int]:
        """Least and most delay [decisions]."""
        return (1, 1) if self.delayed else self.delay

    @property
    def oldest(self) -> int:
        """Largest age of an observation [decisions]."""
        return self.delays[1] + self.period - 1


class OdometryConfig(Config):
    """Drift of the pose that a body reckons; none by default."""

    scale: float = Field(0.0, ge=0, le=0.5)
    """Error of a flight's lengths, as a share of them."""
    gyro_degrees: float = Field(0.0, ge=0, le=90)
    """Bias of a flight's yaw rate [degrees/s]."""


class EnvConfig(Config):
    """Settings of `NavigationEnv`: observation, dynamics, reward and episode rules."""

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
    """Share of missing rays that ends an episode as void."""
    void_grace: int = Field(10, ge=0)
    """Decisions at the start of an episode in which void is not checked."""
    void_ends: Literal["truncated", "terminated"] = Field("truncated", exclude_if=lambda how: how == "truncated")
    """What the void does to an episode: truncated, its last value stands for what would follow; terminated, nothing
    follows, and who leaves the building gives up all floor that is not seen."""
    stagger: bool = True
    """Start the first episodes at different ages so that rows do not end together."""
    sensor: SensorConfig = SensorConfig()
    """Faults of the sensor."""
    dynamics: DynamicsConfig = DynamicsConfig()
    """Drone dynamics."""
    bodies: BodiesConfig = Field(BodiesConfig(), exclude_if=lambda bodies: not bodies.drawn)
    """Bodies that episodes draw."""
    reward: RewardConfig = RewardConfig()
    """Reward weights."""
    spawn: SpawnConfig = SpawnConfig()
    """Spawn pools."""
    task: Literal["explore", "point_goal"] = "explore"
    """Explore, or fly to a goal and stop there, which ends the episode."""
    goal: GoalConfig = GoalConfig()
    """Goals of point_goal."""

    @property
    def floor_clearance(self) -> float:
        """Minimum clearance of reachable floor and spawns [m]."""
        return max(self.dynamics.radius, *self.bodies.radius, 0.0) + FLOOR_CLEARANCE_MARGIN


# Bounds far beyond use keep a slip of the keyboard from becoming an hour of allocation.
_SceneSeed = Annotated[int, Field(ge=0, lt=2**31)]


class CompileConfig(Config):
    """Settings of scene compilation from a mesh to a `.gmdag` file."""

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
    decimate: float | None = Field(None, gt=0, le=1)
    """Merge triangles, moving the surface by about this much at most [voxel]; None keeps every triangle."""
    semantics: Literal["auto", "annotation", "vertex_color", "object", "material", "none"] = "auto"
    """Where a face's semantic comes from; `auto` takes the first there is of annotation, vertex colours with a
    legend, object name and material; `none` makes everything "surface"."""

    @model_validator(mode="after")
    def _power_of_two(self) -> Self:
        if self.resolution & (self.resolution - 1):
            lower = 1 << (self.resolution.bit_length() - 1)
            raise ConfigError(
                f"resolution {self.resolution} is not a power of two; nearest are {lower} and {2 * lower}"
            )
        return self


class CorpusConfig(Config):
    """Settings of the scene corpus: an explicit scene list, a root folder, or generated scenes."""

    scenes: tuple[str, ...] = ()
    """Explicit `.gmdag` or mesh files, folders of meshes, generated scenes (apartment:0-11), or a split of the
    benchmark (rooms-v1:train); takes precedence over everything else."""
    manifest: str | None = None
    """Corpus manifest (JSON); takes precedence over root."""
    root: str | None = None
    """Folder searched for meshes."""
    families: dict[str, tuple[_SceneSeed, ...]] = Field(default_factory=lambda: {"apartment": tuple(range(12))})
    """Generated families and their seeds, used when nothing else is named."""


def compile_resolution(azimuth_bins: int, elevation_bins: int) -> int:
    """Return the default compile resolution: the next power of two ≥ max(512, 2·Az, 8·El), at most 2048."""
    return min(1 << (max(512, 2 * azimuth_bins, 8 * elevation_bins) - 1).bit_length(), 2048)
