"""Live telemetry broadcast of a training to viewers; it does not change the training.

The environment is wrapped in a `WatchedEnv`, which reads the results of a step and writes nothing. Messages are built
for one drone, ten times a second, and only for subscribers. A thread repeats the last observation while an update runs,
as a sign of life.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import TYPE_CHECKING

from navi_core.config import WireConfig
from navi_core.service.observations import ObservationPublisher, SceneView, distance_matrix, goal_event
from navi_core.service.viewing.digest import PHASES, SCENE_EVENT, payload
from navi_core.service.viewing.feed import Announcement, PublisherNote, selected_drone
from navi_core.service.wire import TelemetryEvent
from navi_core.service.wire.sockets import Publisher
from navi_core.world import Environment, EnvironmentWrapper, NavigationEnv, StepBatch

if TYPE_CHECKING:
    import torch

    from navi_core.record.events import UpdateMade

ANY_PORT = "tcp://127.0.0.1:0"
_TELEMETRY = "telemetry_event_v2"
_LISTEN_SECONDS = 0.1
"""Polling interval of subscriptions and heartbeats [s]."""
_QUIET_SECONDS = 0.3
"""Time without a decision after which an update is assumed to run [s]."""


class TrainingBroadcast(AbstractContextManager["TrainingBroadcast"]):
    """Telemetry publisher of a training run; use it as a context manager.

    Args:
        name: The run's name.
        algorithm: Learner; part of the events' types.
        endpoint: Where to publish; port 0 takes any free one.
        limits: Rates and queues.

    Raises:
        ServiceError: The port is taken.

    Attributes:
        endpoint: Where it publishes.
        publisher: Publisher socket.
        viewers: Publishes observations at a limited rate.
    """

    def __init__(self, name: str, algorithm: str, endpoint: str = ANY_PORT, limits: WireConfig | None = None) -> None:
        self.name, self._prefix = name, f"actor.training.{algorithm}"
        self.publisher = Publisher(endpoint, limits, purpose="telemetry of the training", option="--publish")
        self.viewers = ObservationPublisher(self.publisher, limits)
        self.endpoint = self.publisher.endpoint
        self.lock = threading.Lock()
        self.watched = False
        """Whether observations have a subscriber; set by the thread, so that a decision polls no socket."""
        self._telemetry_watched = False
        self._env: WatchedEnv | None = None
        self._note = PublisherNote(self._announcement(1, [], {}))
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._listen, name="navi-broadcast", daemon=True)
        self._thread.start()

    def watch(self, env: Environment) -> Environment | WatchedEnv:
        """Wrap the environment for viewers; a reference task is returned unchanged."""
        if not isinstance(env, NavigationEnv):
            return env
        names = [scene.name for scene in env.field.scenes]
        self._note.change(self._announcement(env.num_envs, names, dict(env.field.vocabulary)))
        self._env = WatchedEnv(env, self)
        return self._env

    def show_update(self, update: UpdateMade) -> None:
        """Publish the metrics of an update as telemetry events; a subscriber of the run's events."""
        if not self._telemetry_watched:
            return
        metrics, steps = update.metrics, update.step
        values = {**metrics, "step": float(steps), "updates": float(update.updates)}
        self.event("update", steps, values)
        if "episode_return" in metrics:
            self.event("episode", steps, values)
        self.event("perf", steps, {**metrics, **_stages(update.stages)})

    def event(self, layout: str, step: int, values: Mapping[str, float], drone: int = 0, episode: int = 0) -> None:
        """Publish a telemetry event with a layout of `LAYOUTS`, if telemetry has a subscriber."""
        kind = SCENE_EVENT if layout == "scene" else f"{self._prefix}.{layout}"
        self.publish(TelemetryEvent(kind, episode, drone, step, payload(layout, values), time.time()))

    def publish(self, event: TelemetryEvent) -> None:
        """Publish a telemetry event under the lock."""
        with self.lock:
            self.publisher.publish(event)

    def close(self) -> None:
        """Stop the thread, close the socket and delete the service-discovery file."""
        self._done.set()
        self._thread.join(5.0)
        self.publisher.close()
        self._note.withdraw()

    def __exit__(self, *_: object) -> None:
        self.close()

    def _listen(self) -> None:
        while not self._done.wait(_LISTEN_SECONDS):
            with self.lock:
                self.watched = self.publisher.watched("distance_matrix_v2")
                self._telemetry_watched = self.publisher.watched(_TELEMETRY)
                wanted = selected_drone(self.publisher)
                if wanted is not None:
                    self.viewers.selected = wanted
                self.viewers.heartbeat()
            if self.watched and self._env is not None:
                self._env.catch_up()

    def _announcement(self, rows: int, scenes: list[str], vocabulary: dict[str, int]) -> Announcement:
        return Announcement(self.name, self.endpoint, os.getpid(), rows, scenes, vocabulary)


class WatchedEnv(EnvironmentWrapper):
    """Environment wrapper that publishes one drone to a broadcast's viewers; everything else passes through.

    Args:
        env: Environment of the training.
        broadcast: Broadcast that publishes the training.

    Attributes:
        decisions: Decisions of this process.
        shown: Observations published to viewers.
        seconds: Processor time of building and sending them [s].
    """

    def __init__(self, env: NavigationEnv, broadcast: TrainingBroadcast) -> None:
        super().__init__(env)
        self._env, self._broadcast = env, broadcast
        self.decisions = self.shown = 0
        self.seconds = 0.0
        self._latest: StepBatch | None = None
        self._flown_at = time.monotonic()
        self._shown_at = (-1, -1)
        self._still = threading.Lock()
        """Mutex: held while the environment steps, and while another thread reads it."""
        self._before: tuple[int, int, torch.Tensor] | None = None
        self._view = SceneView(env)
        self._weights = {f"weight/{name}": value for name, value in env.config.reward.resolved().items()}

    def step(self, actions: torch.Tensor) -> StepBatch:
        """Step the environment, and publish the selected drone if an observation is due."""
        with self._still:
            # The collector holds the same observations until the next step: no extra memory.
            batch = self._latest = self._env.step(actions)
            self.decisions += 1
            self._flown_at = time.monotonic()
            if self._broadcast.watched:
                self._show(batch)
        return batch

    def catch_up(self) -> None:
        """Republish the last state during an update, to viewers that joined or selected another drone since."""
        row = self._row()
        if time.monotonic() - self._flown_at < _QUIET_SECONDS or self._shown_at == (self.decisions, row):
            return
        if self._latest is not None and self._still.acquire(blocking=False):
            try:
                self._show(self._latest)
            finally:
                self._still.release()

    def _row(self) -> int:
        return min(max(self._broadcast.viewers.selected, 0), self._env.num_envs - 1)

    def _show(self, batch: StepBatch) -> None:
        broadcast, row = self._broadcast, self._row()
        before, self._before = self._before, (row, self.decisions, batch.obs[row].clone())
        with broadcast.lock:
            due = broadcast.viewers.due()
        if not due:
            return
        began = time.thread_time()
        self._build(batch, row, before)
        self.seconds += time.thread_time() - began

    def _build(self, batch: StepBatch, row: int, before: tuple[int, int, torch.Tensor] | None) -> None:
        """Build and publish the telemetry events and the observation of a drone."""
        broadcast, env = self._broadcast, self._env
        counters = {name: int(value[row]) for name, value in env.counters.items()}
        pose = env.poses()
        position = pose["position"][row].cpu()
        look = self._view.look(row, float(position[1]))
        if look is not None:
            broadcast.event("scene", self.decisions, look[0], row, counters["episode"])
        goal = goal_event(env, row, env_id=row, episode_id=counters["episode"], step_id=self.decisions)
        if goal is not None:
            broadcast.publish(goal)
        values = {name: float(value[row]) for name, value in batch.info["reward_terms"].items()} | self._weights
        values |= {
            "reward": float(batch.reward[row]),
            "collided": float(batch.info["collision"][row]),
            "seen_share": float(env.view.seen[row].sum()) / float(env.floors[counters["scene"]].storeys.sum()),
        }
        values |= {name: float(batch.info[name][row]) for name in ("speed", "episode_return", "episode_length")}
        broadcast.event("step", self.decisions, values, row, counters["episode"])
        follows = before is not None and before[:2] == (row, self.decisions - 1) and counters["length"] > 0
        matrix = distance_matrix(
            batch.obs[row].cpu(),
            env_id=row,
            episode_id=counters["episode"],
            step_id=self.decisions,
            position=position,
            yaw=float(pose["yaw"][row]),
            before=before[2].cpu() if before is not None and follows else None,
        )
        if look is not None:
            matrix = replace(matrix, overhead=look[1])
        with broadcast.lock:
            if broadcast.viewers.offer(lambda _: matrix):
                self.shown += 1
                self._shown_at = (self.decisions, row)


def _stages(phases: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """Flatten stage timings to milliseconds by phase/stage; unknown stages are summed as `other`, parts skipped."""
    values: dict[str, float] = {}
    for phase, stages in phases.items():
        for stage, milliseconds in stages.items():
            if "/" in stage:
                continue
            known = stage if stage in PHASES.get(phase, ()) else "other"
            values[f"{phase}/{known}"] = values.get(f"{phase}/{known}", 0.0) + milliseconds
    return values
