"""Display state of a viewer page, aggregated from a message stream, and the payload layouts of telemetry events.

A layout names the numbers of an event's payload, in their order. NaN stands for a number that a learner does not have.
A payload of a newer publisher may be longer than its layout; the rest is ignored.
"""

import math
import re
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from navi_core.config import GOAL_TERMS, REWARD_TERMS
from navi_core.record.thinned_curve import ThinnedCurve
from navi_core.service.observations import GOAL_EVENT, GoalTable
from navi_core.service.viewing.meanings import TERM_UNITS
from navi_core.service.viewing.meshes import MESH_NUMBERS, key_of
from navi_core.service.wire import Action, BatchStepResult, DistanceMatrix, Message, StepResult, TelemetryEvent

SCENE_EVENT = "actor.scene"
"""Event type of the selected drone's scene; sent before its first observation there."""
FEATURES_EVENT = "actor.inference.features"
"""Event type of a drone's encoder output; its hundreds of numbers are not listed on the page."""
PHASES = {
    "rollout": (
        "storage", "forward", "environment_step", "memory_query", "memory_append", "shaping_rnd", "bootstrap",
        "host_extraction", "telemetry_publication",
    ),
    "update": (
        "advantages", "minibatch_fetch", "minibatch_prep", "policy_evaluation", "loss", "backward", "gradient_clip",
        "optimizer_step", "rnd_step", "statistics", "progress_callback",
    ),
}  # fmt: skip
"""Timed stages of an update, by phase; a learner's other stages are summed as the last one, `other`."""
_LATER = ("floor", *MESH_NUMBERS)
"""Numbers of a scene event that earlier publishers do not send."""
LAYOUTS: dict[str, tuple[str, ...]] = {
    "step": (
        "reward", "speed", "collided", "episode_return", "episode_length", "seen_share", *REWARD_TERMS,
        *(f"weight/{name}" for name in REWARD_TERMS), *GOAL_TERMS,
    ),
    "update": (
        "step", "updates", "reward_ema", "reward_mean", "episode_return", "episode_length", "policy_loss", "value_loss",
        "entropy", "approx_kl", "clip_fraction", "explained_variance", "total_loss", "rnd_loss", "beta", "grad_norm",
        "learning_rate", "loss", "nll", "collision_rate", "void_rate", "intrinsic_reward", "loop_penalty",
        "epsilon", "td_mean", "td_var", "q_mean", *REWARD_TERMS, *GOAL_TERMS, "success_rate",
    ),
    "episode": ("episodes", "episode_return", "episode_length"),
    "perf": (
        "sps", "env_ms", "ppo_update_ms", "zero_wait_ratio",
        *(f"{phase}/{stage}" for phase, stages in PHASES.items() for stage in (*stages, "other")),
    ),
    "scene": (
        "scene", "scenes", "rows", "max_distance", "decision_hz", "low_x", "low_y", "low_z", "high_x", "high_y",
        "high_z", "corner_x", "corner_z", "metres_per_pixel", "height", *_LATER,
    ),
}  # fmt: skip
"""Payload layouts of training events, by the last word of the event type."""
_TRAINING = re.compile(r"actor\.training\.\w{1,32}\.(step|update|episode|perf)")


def training_event(event_type: str) -> str | None:
    """Return the `LAYOUTS` key of a training event; None for events of other publishers."""
    if event_type == SCENE_EVENT:
        return "scene"
    found = _TRAINING.fullmatch(event_type)
    return found[1] if found else None


def payload(layout: str, values: Mapping[str, float]) -> npt.NDArray[np.float32]:
    """Pack values into an event payload by its layout; missing values are NaN, unknown ones are left out."""
    return np.array([values.get(name, math.nan) for name in LAYOUTS[layout]], np.float32)


def named(layout: str, numbers: npt.NDArray[np.float32]) -> dict[str, float]:
    """Unpack a payload into values by name; a shorter payload has fewer."""
    return dict(zip(LAYOUTS[layout], numbers.tolist()))


SERVICE_LAYOUTS: dict[str, tuple[str, ...]] = {
    "actor.inference.perf": ("p50_ms", "p99_ms", "drones", "decisions"),
    "actor.inference.gate": (
        "send", "collides", "expected_reward", "clearance", "progress", "novelty", "starvation",
    ),
    "actor.inference.step": ("reward", "episode_return", "ended"),
    "actor.inference.episode": ("episode_return", "episode_length", "done"),
    "environment.sdfdag.perf": ("p50_ms", "p99_ms", "rays_per_second", "rows"),
    "actor.heartbeat": ("drones", "decisions", "seconds_up"),
    "environment.heartbeat": ("drones", "decisions", "seconds_up"),
}  # fmt: skip
"""Payload layouts of a service's events that viewers list, as docs/reference/wire.md has them."""


MAX_POINTS = 800
"""Most points of a metric curve."""
MAX_TRAJECTORY = 20_000
_GAP = (math.nan, math.nan, math.nan)
_FARTHEST_STEP = 2.0
"""Farthest flight in one decision [m]."""
MAX_SESSIONS = 256
MAX_KINDS = 64
MAX_NUMBERS = 64
_FORGET_SECONDS = 30.0
"""Silence after which a session or an event is not shown any more [s]."""


@dataclass
class Session:
    """Display state of one drone of a service."""

    steps: int = 0
    """Step id of the last message."""
    episode_return: float = math.nan
    """Return of the episode so far."""
    reward: float = math.nan
    """Reward of the last decision."""
    gate: str | None = None
    """Gate verdict on the last motion: SEND or WAIT; None without one."""
    expected: float = math.nan
    """Reward per decision that the gate expects of the last motion."""
    heard: float = 0.0
    """Time of the last message, monotonic [s]."""


@dataclass
class Digest:
    """Display state of a viewer page, updated by wire messages.

    Attributes:
        names: Semantic names by id, where they are known.
        row: Shown drone; None: the first one that is published.
    """

    names: dict[int, str] = field(default_factory=dict)
    row: int | None = None
    matrix: DistanceMatrix | None = None
    """Newest observation of the shown drone."""
    picture: npt.NDArray[np.uint8] | None = None
    """Top-down map, (256, 256, 3)."""
    scene: dict[str, float] = field(default_factory=dict)
    """Values of the last scene event."""
    goals: GoalTable = field(default_factory=GoalTable)
    step: dict[str, float] = field(default_factory=dict)
    """Values of the shown drone's last step event."""
    perf: dict[str, float] = field(default_factory=dict)
    curve: ThinnedCurve = field(default_factory=lambda: ThinnedCurve(MAX_POINTS))
    """Thinned curves of the update metrics over the decisions of the run."""
    trajectory: list[tuple[float, float, float]] = field(default_factory=list)
    """Positions of the episode [m]; NaN where the drone was set elsewhere."""
    sessions: dict[int, Session] = field(default_factory=dict)
    others: dict[str, tuple[float, dict[str, float]]] = field(default_factory=dict)
    """Time (monotonic [s]) and values of the last event of other publishers, by event type."""
    latency: dict[str, ThinnedCurve] = field(default_factory=dict)
    """Quantiles of latency by event type, over the time since the first [s]."""
    _began: dict[str, float] = field(default_factory=dict)
    gate: Counter[bool] = field(default_factory=Counter)
    """Motions that the gate sent (True) and held back, as heard."""
    changed: set[str] = field(default_factory=set)
    """Kinds of page messages to be resent (dirty set)."""
    fresh_at: float = -math.inf
    """Time of the last new decision, monotonic [s]."""
    alive_at: float = -math.inf
    """Time of the last message, monotonic [s]."""

    def update(self, message: Message) -> None:
        """Update the display state with one wire message."""
        self.alive_at = time.monotonic()
        if isinstance(message, DistanceMatrix):
            self._observation(message)
        elif isinstance(message, TelemetryEvent):
            self._event(message)
        elif isinstance(message, StepResult):
            self._result(message)
        elif isinstance(message, BatchStepResult):
            for result in message.results:
                self._result(result)
        elif isinstance(message, Action):
            for env_id in message.env_ids.tolist():
                if (session := self._session(env_id)) is not None:
                    session.steps = message.step_id

    def _event(self, event: TelemetryEvent) -> None:
        kind = training_event(event.event_type)
        if kind is not None:
            self._training(kind, event)
        elif event.event_type == GOAL_EVENT:
            self.goals.update(event)
        elif event.event_type != FEATURES_EVENT:
            self._service(event)

    @property
    def max_distance(self) -> float:
        """Range of the sensor [m], from the scene event, else that of all presets."""
        return self.scene.get("max_distance", 100.0)

    def frame(self) -> tuple[dict[str, Any], DistanceMatrix] | None:
        """Return the newest observation and its facts for display; None before the first."""
        matrix = self.matrix
        if matrix is None:
            return None
        pose, step = matrix.robot_pose, self.step
        drone = int(matrix.env_ids[0]) if len(matrix.env_ids) else 0
        # Without a training's step event, the results of the service are shown.
        session = self.sessions.get(drone, Session())
        terms = {name: step[name] for name in REWARD_TERMS if name in step}
        terms |= {name: step[name] for name in GOAL_TERMS if math.isfinite(step.get(name, math.nan))}
        facts = {
            "pose": [pose.x, pose.y, pose.z, pose.yaw],
            "max_distance": self.max_distance,
            "step": matrix.step_id,
            "drone": drone,
            "speed": step.get("speed", math.nan),
            "reward": step.get("reward", session.reward),
            "terms": terms,
            # Goal terms include their weight.
            "weights": {name: step.get(f"weight/{name}", float(name in GOAL_TERMS)) for name in terms} or None,
            "units": TERM_UNITS,
            "collided": step.get("collided", 0.0) > 0.5,
            "episode_return": step.get("episode_return", session.episode_return),
        }
        if "seen_share" in step:
            facts["seen_share"] = step["seen_share"]
        goal = self.goals.goal_of(matrix)
        facts["goal"] = None if goal is None else goal.tolist()
        return facts, matrix

    def scene_facts(self) -> dict[str, Any]:
        """Return bounds [m] and mesh key of the shown scene for display; empty before the first scene event."""
        if not self.scene:
            return {}
        low, high = ([self.scene[f"{end}_{axis}"] for axis in "xyz"] for end in ("low", "high"))
        return {"low": low, "high": high, "mesh": key_of(self.scene)}

    def stages(self) -> dict[str, list[tuple[str, float]]]:
        """Return the stage timings of the last update by phase [ms]."""
        return {
            phase: [
                (name, self.perf[key])
                for name in (*names, "other")
                if (key := f"{phase}/{name}") in self.perf and self.perf[key] > 0
            ]
            for phase, names in PHASES.items()
        }

    def recent_sessions(self) -> list[dict[str, Any]]:
        """Return the display rows of sessions with recent messages."""
        now = time.monotonic()
        return [
            {
                "session": number,
                "steps": s.steps,
                "episode_return": s.episode_return,
                "reward": s.reward,
                "gate": s.gate,
                "expected": s.expected,
            }
            for number, s in sorted(self.sessions.items())
            if now - s.heard < _FORGET_SECONDS
        ]

    def recent_others(self) -> dict[str, dict[str, float]]:
        """Return the values of recent events of other publishers, by event type."""
        now = time.monotonic()
        return {name: values for name, (heard, values) in self.others.items() if now - heard < _FORGET_SECONDS}

    def _observation(self, matrix: DistanceMatrix) -> None:
        if len(matrix.env_ids) != 1:
            return
        drone = int(matrix.env_ids[0])
        if self.row is None:
            # A service publishes all of its drones; the first one is shown until another is selected.
            self.row = drone
        if drone != self.row:
            return
        before = self.matrix
        if matrix.overhead.size:
            self.picture = matrix.overhead
            self.changed.add("map")
        moved = before is None or (before.step_id, before.episode_id) != (matrix.step_id, matrix.episode_id)
        if moved:
            self.fresh_at = time.monotonic()
        if before is None or before.episode_id != matrix.episode_id or int(before.env_ids[0]) != drone:
            self.trajectory.clear()
            self.changed.add("trajectory")
        pose = matrix.robot_pose
        if moved:
            here = (pose.x, pose.y, pose.z)
            if self._teleported(before, matrix, here):
                self.trajectory.append(_GAP)
                self.changed.add("trajectory")
            self.trajectory.append(here)
            del self.trajectory[:-MAX_TRAJECTORY]
        self.matrix = matrix
        self.changed.add("frame")

    def _teleported(
        self, before: DistanceMatrix | None, matrix: DistanceMatrix, here: tuple[float, float, float]
    ) -> bool:
        """Return whether the drone is farther from its last position than it can have flown since."""
        if before is None or not self.trajectory:
            return False
        flown = _FARTHEST_STEP * max(1, matrix.step_id - before.step_id)
        return math.dist(self.trajectory[-1], here) > max(_FARTHEST_STEP, flown)

    def _training(self, kind: str, event: TelemetryEvent) -> None:
        values = named(kind, event.payload)
        if kind == "step":
            if self.row is None or event.env_id == self.row:
                self.step = values
        elif kind == "scene" and _is_scene(values):
            self.scene = values
            self.changed |= {"map", "scene"}
        elif kind == "perf":
            self.perf = values
            self.changed.add("training")
        elif kind == "update":
            # Payloads are single precision, exact up to 16 million decisions; the event's step id is exact.
            if math.isfinite(values.pop("step", math.nan)):
                self.curve.take(float(event.step_id), values)
            self.changed.add("training")

    def _service(self, event: TelemetryEvent) -> None:
        names = SERVICE_LAYOUTS.get(event.event_type, ())
        numbers = event.payload.tolist()[:MAX_NUMBERS]
        values = {(names[n] if n < len(names) else f"[{n}]"): value for n, value in enumerate(numbers)}
        if event.event_type in self.others or len(self.others) < MAX_KINDS:
            self.others[event.event_type] = time.monotonic(), values
        if "p99_ms" in values:
            curve = self.latency.setdefault(event.event_type, ThinnedCurve(MAX_POINTS))
            began = self._began.setdefault(event.event_type, event.timestamp)
            curve.take(event.timestamp - began, values)
        if "send" in values:
            self.gate[values["send"] > 0.5] += 1
        session = self._session(event.env_id) if event.event_type.startswith("actor.inference.") else None
        if session is not None:
            session.steps = max(session.steps, event.step_id)
            session.reward = values.get("reward", session.reward)
            session.episode_return = values.get("episode_return", session.episode_return)
            if "send" in values:
                session.gate = "SEND" if values["send"] > 0.5 else "WAIT"
                session.expected = values.get("expected_reward", math.nan)
        self.changed.add("service")

    def _result(self, result: StepResult) -> None:
        session = self._session(result.env_id)
        if session is not None:
            session.steps, session.reward = result.step_id, result.reward
            session.episode_return = result.episode_return

    def _session(self, number: int) -> Session | None:
        if number not in self.sessions and len(self.sessions) >= MAX_SESSIONS:
            now = time.monotonic()
            self.sessions = {n: s for n, s in self.sessions.items() if now - s.heard < _FORGET_SECONDS}
        if number < 0 or (number not in self.sessions and len(self.sessions) >= MAX_SESSIONS):
            return None
        session = self.sessions.setdefault(number, Session())
        session.heard = time.monotonic()
        self.changed.add("service")
        return session


def _is_scene(values: Mapping[str, float]) -> bool:
    """Return whether a scene event is complete, finite and drawable."""
    whole = {*LAYOUTS["scene"]} - {*_LATER} <= {*values} and all(math.isfinite(value) for value in values.values())
    return whole and 0 < values["max_distance"] <= 1e6 and values["metres_per_pixel"] > 0
