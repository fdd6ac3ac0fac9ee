"""Conversion of observations and goals to wire messages and back; rate-limited publishing to viewers."""

import logging
import time
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from navi_core.config import WireConfig
from navi_core.config.service import FARTHEST
from navi_core.service.viewing.meshes import MeshStore, key_numbers
from navi_core.service.wire import OVERHEAD_SHAPE, DistanceMatrix, RobotPose, TelemetryEvent
from navi_core.service.wire.sockets import Publisher
from navi_core.world import NavigationEnv
from navi_core.world.floor.overhead import Overhead, OverheadMaps, floor_height, tint_seen

_TOPIC = "distance_matrix_v2"
_NOT_DRAWN = np.zeros((0, 0, OVERHEAD_SHAPE[2]), np.uint8)


def distance_matrix(
    obs: torch.Tensor,
    *,
    env_id: int,
    episode_id: int,
    step_id: int,
    position: torch.Tensor,
    yaw: float,
    before: torch.Tensor | None = None,
    age_seconds: float = 0.0,
) -> DistanceMatrix:
    """Build the wire message of one drone's observation, without the top-down image.

    Args:
        obs: (3, Az, El) float32: normalised depth, semantic id, valid.
        env_id: Number of the drone.
        episode_id: Number of the episode.
        step_id: Step id of the decision that led to this observation.
        position: (3,) [m].
        yaw: [rad].
        before: (3, Az, El) observation before, for the change of depth; None at the first of an episode.
        age_seconds: Age of a late observation; the pose is the present one [s].
    """
    now = time.time()
    depth = obs[0].numpy()[None]
    x, y, z = position.tolist()
    return DistanceMatrix(
        episode_id=episode_id,
        env_ids=np.array([env_id], np.int32),
        matrix_shape=(obs.shape[1], obs.shape[2]),
        depth=depth,
        delta_depth=np.zeros_like(depth) if before is None else depth - before[0].numpy()[None],
        semantic=obs[1].numpy()[None].astype(np.int32),
        valid_mask=obs[2].numpy()[None] > 0,
        overhead=_NOT_DRAWN,
        robot_pose=RobotPose(x, y, z, 0.0, 0.0, float(yaw), now),
        step_id=step_id,
        timestamp=now - age_seconds,
    )


def observation_of(matrix: DistanceMatrix) -> torch.Tensor:
    """Convert an observation message to a (B, 3, Az, El) float32 tensor."""
    rows, (azimuth, elevation) = len(matrix.env_ids), matrix.matrix_shape
    obs = np.empty((rows, 3, azimuth, elevation), np.float32)
    obs[:, 0], obs[:, 1], obs[:, 2] = matrix.depth, matrix.semantic, matrix.valid_mask
    return torch.from_numpy(obs)


class ObservationPublisher:
    """Rate-limited publisher of one drone's observations to viewers; costs nothing without viewers.

    A run offers each step; a message is built only for subscribers, and if the last one is old enough. During long
    pauses (an update) `heartbeat` repeats the last one, as a sign of life.

    Args:
        publisher: Publisher socket.
        limits: `observation_hz` and `heartbeat_seconds`.
        clock: Returns seconds; replaced in tests.

    Attributes:
        selected: Drone that is published.
    """

    def __init__(
        self, publisher: Publisher, limits: WireConfig | None = None, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.publisher = publisher
        self._limits = limits or WireConfig()
        self._clock = clock
        self._next = -float("inf")
        self._last: DistanceMatrix | None = None
        self._sent_at = -float("inf")
        self.selected = 0

    def due(self) -> bool:
        """Return whether an observation offered now would be sent: rate limit and subscribers allow it."""
        return self._clock() >= self._next and self.publisher.watched(_TOPIC)

    def offer(self, build: Callable[[int], DistanceMatrix]) -> bool:
        """Publish the selected drone's observation if it is due; return whether it was sent.

        Args:
            build: Builds the message of a drone; called only if it is due.
        """
        if not self.due():
            return False
        self._last = build(self.selected)
        now = self._clock()
        # Counted from the last due time, so that the mean rate holds; no burst after a pause.
        period = 1.0 / self._limits.observation_hz
        self._next = max(self._next + period, now) if now - self._next < period else now + period
        self._sent_at = now
        return self.publisher.publish(self._last)

    def heartbeat(self) -> bool:
        """Republish the last observation if none was sent for `heartbeat_seconds`; return whether it was."""
        if self._last is None or self._clock() - self._sent_at < self._limits.heartbeat_seconds:
            return False
        self._sent_at = self._clock()
        return self.publisher.publish(self._last)


_MAP_EVERY = 5
"""Observations per top-down map."""


class SceneView:
    """Renderer of top-down scene maps for viewers.

    Args:
        env: Only read.
    """

    def __init__(self, env: NavigationEnv) -> None:
        self._env, self._maps = env, OverheadMaps(env.field, env.floors)
        self._meshes = MeshStore()
        self._at: tuple[int, int, Overhead] | None = None
        self._asked = 0

    def look(self, row: int, height: float) -> tuple[dict[str, float], npt.NDArray[np.uint8]] | None:
        """Return the scene event's values and the (256, 256, 3) top-down map; None if the last map is still valid.

        Every map comes with its scene event: a viewer may have joined since the last one.

        Args:
            row: Row of the drone.
            height: Height of the drone [m].
        """
        env = self._env
        scene, episode = (int(env.counters[name][row]) for name in ("scene", "episode"))
        view = self._maps.at(scene, height)
        key, turn = (row, episode, view), self._asked
        self._asked += 1
        if key == self._at and turn % _MAP_EVERY:
            return None
        self._at = key
        low, high = env.field.bounds(scene)
        values = {
            "scene": scene, "scenes": env.field.num_scenes, "rows": env.num_envs,
            "max_distance": env.config.max_distance, "decision_hz": env.config.dynamics.decision_hz,
            "low_x": low[0], "low_y": low[1], "low_z": low[2], "high_x": high[0], "high_y": high[1], "high_z": high[2],
            "corner_x": view.corner[0], "corner_z": view.corner[1], "metres_per_pixel": view.metres_per_pixel,
            "height": view.height,
            "floor": floor_height(env.field, scene, height, env.floors[scene]),
            **key_numbers(self._meshes.key(env.field.scenes[scene])),
        }  # fmt: skip
        return values, tint_seen(view, env.view.seen[row].cpu().numpy())


GOAL_EVENT = "environment.goal"
"""Event type of a drone's goal in an episode, payload x, y, z [m]; sent before its first observation there."""

_LOG = logging.getLogger("navi.service")
_CAPACITY = 4096
"""Most drones whose goals are kept; as many as a server serves."""


def goal_event(env: NavigationEnv, row: int, *, env_id: int, episode_id: int, step_id: int) -> TelemetryEvent | None:
    """Build the telemetry event with the goal of a row's present episode; None in an environment without goals.

    Args:
        env: Environment with goals, or without.
        row: Row of the drone.
        env_id: Number of the drone on the wire.
        episode_id: Number of its episode there.
        step_id: Step id of the drone's last decision.
    """
    if env.goals is None:
        return None
    goal = env.goals.at(row, env.counters["scene"]).cpu().numpy()
    return TelemetryEvent(GOAL_EVENT, episode_id, env_id, step_id, goal, time.time())


class GoalTable:
    """Lookup table of goals by drone, each valid for one episode.

    Args:
        common: x, y, z [m] of one goal for all drones and episodes; None: environments publish them.
    """

    def __init__(self, common: tuple[float, float, float] | None = None) -> None:
        self._common = None if common is None else torch.tensor(common)
        self._goals: dict[int, tuple[int, Tensor]] = {}
        self._warned = False

    def update(self, event: TelemetryEvent) -> bool:
        """Store a drone's goal from an event; return False if it is no goal event or the position is out of bounds."""
        if event.event_type != GOAL_EVENT or event.payload.shape != (3,):
            return False
        goal = torch.tensor(event.payload.tolist())
        if not bool((goal.abs() <= FARTHEST).all()):
            return False
        self._goals.pop(event.env_id, None)
        self._goals[event.env_id] = (event.episode_id, goal)
        if len(self._goals) > _CAPACITY:
            # The least recently updated one.
            del self._goals[next(iter(self._goals))]
        return True

    def goal_of(self, matrix: DistanceMatrix) -> Tensor | None:
        """Return the goal of an observation's drone and episode, (3,) [m]; None if it is unknown."""
        if self._common is not None:
            return self._common
        drone = int(matrix.env_ids[0]) if len(matrix.env_ids) else -1
        episode, goal = self._goals.get(drone, (0, None))
        return goal if episode == matrix.episode_id else None

    def warn_missing(self, env_id: int) -> None:
        """Log one warning that a drone's goal is not published."""
        if not self._warned:
            self._warned = True
            _LOG.warning(
                "drone %d waits for a goal that no environment publishes: serve one with goals (navi environment "
                "--task point_goal), or give one for all drones (navi serve --goal X,Y,Z)",
                env_id,
            )
