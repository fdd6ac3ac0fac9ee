"""The actor server: a policy that answers the observations of many drones.

Observations that wait together are answered by one forward pass. In step mode an action goes out as a request, whose
answer brings the reward and the next observation; a request without an answer is sent again with its step id, and
the environment flies it once. Published observations make drones known, and wake those whose answer was lost.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch

from navi_core.config import ActorConfig
from navi_core.errors import ConfigError, WireError
from navi_core.pilots.draws import draw_normal
from navi_core.service.actor.commands import Commands
from navi_core.service.gate.gate import GateVerdict, RolloutGate
from navi_core.service.goals import GOAL_EVENT, GoalsHeard
from navi_core.service.learning.flight_learning import FlightLearning
from navi_core.service.observations import observation_of
from navi_core.service.policies.served_model import ServedModel
from navi_core.service.policies.sessions import Session, SessionTable, draw_keys
from navi_core.service.server import Server
from navi_core.service.wire import (
    MOST_STEP_ID,
    Action,
    BatchStepRequest,
    BatchStepResult,
    DistanceMatrix,
    Fault,
    Message,
    Publisher,
    StepResult,
    Subscriber,
    TelemetryEvent,
    decode,
    encode,
)
from navi_core.service.wire.sockets import connect, open_socket, readable

__all__ = ["ActorServer"]

_LOG = logging.getLogger("navi.service")
_TOPICS = ("distance_matrix_v2", "step_result_v2", "telemetry_event_v2")
_BACK_OFF = 0.5
"""Pause after a request was refused or could not be sent [s]."""
_QUIET_SECONDS = 1.0
"""Refusals are told of this often at most [s]; all are counted."""


class ActorServer(Server):
    """Serves a policy over the wire.

    Args:
        model: What is served.
        config: Endpoints, mode, sessions, runtime.
        successor: Returns a model that is to take over, None while there is none.
        gate: Judges each motion before it is sent; its capacity is at least `max_sessions`.
        learning: Learns from what is flown; its gate is `gate`.

    Raises:
        ServiceError: A port is taken.

    Attributes:
        publisher: Publishes actions and telemetry.
        sessions: The drones.
        model: What is served now.
        decisions: Made so far.
    """

    def __init__(
        self,
        model: ServedModel,
        config: ActorConfig | None = None,
        *,
        successor: Callable[[], ServedModel | None] = lambda: None,
        gate: RolloutGate | None = None,
        learning: FlightLearning | None = None,
    ) -> None:
        import zmq

        self.config = c = config or ActorConfig()
        self.model, self._successor = model, successor
        self._learning = learning
        self.publisher = Publisher(c.publish, c.wire, purpose="actions and telemetry of the actor")
        super().__init__("actor", c.http, c.wire)
        self.warn_if_open(self.publisher.endpoint)
        self._subscriber = Subscriber(c.subscribe, _TOPICS, c.wire)
        self._poller = zmq.Poller()
        self._poller.register(self._subscriber.socket, zmq.POLLIN)
        self._dealer = None
        if c.mode == "step":
            self._dealer = open_socket(zmq.DEALER, c.wire)
            # What is asked of an environment that is gone must not wait for the next one at its place.
            self._dealer.setsockopt(zmq.IMMEDIATE, 1)
            connect(self._dealer, c.step_endpoint, "environment to step")
            self._poller.register(self._dealer, zmq.POLLIN)
        self.sessions = SessionTable(
            model.runner, c.max_sessions, model.shaper, model.curiosity, max_distance=model.max_distance
        )
        self._commands = Commands(model, c, gate, self.metrics)
        self._goals = GoalsHeard(c.goal)
        self._misfit: ServedModel | None = None
        self._ready: dict[int, Session] = {}
        self.decisions = 0
        self._told = self._apart_until = self._warned = 0.0
        self._turned = time.monotonic()
        if learning is not None:
            learning.start()

    def turn(self, wait_ms: int) -> None:
        """Take what arrived, decide, send."""
        if not self._ready:
            self._poller.poll(wait_ms)
        self._take()
        self._take_over()
        self._send_again()
        group = self._next_group()
        if group:
            self._decide(group)
        now = time.monotonic()
        slept, self._turned = now - self._turned, now
        if slept > self._limits.peer_timeout_seconds:
            # This process stood still (a frozen container, a paused machine), and nobody was silent.
            for session in self.sessions:
                session.seen_at += slept
        for session in self.sessions.forget(self.config.idle_seconds, now):
            self._ready.pop(session.env_id, None)
            self._commands.forget(session.env_id)
            if self._learning is not None:
                self._learning.forget(session.env_id)
        self.metrics.gauge("sessions", len(self.sessions), about="drones served")
        self.heartbeat(self.publisher, len(self.sessions), self.decisions)
        if now - self._told >= self._limits.heartbeat_seconds:
            self._told = now
            self._perf()
            if self._learning is not None:
                self._learning.tell(self.metrics)
            since = {
                session.env_id: session.waits_since for session in self.sessions if session.waits_since is not None
            }
            self.metrics.gauge("without_goal", len(since), about="drones whose goal was not told yet")
            for env_id, moment in since.items():
                if now - moment > 2 * self._limits.heartbeat_seconds:
                    self._goals.warn(env_id)

    def drain(self) -> None:
        """Wait for the answers to what was asked; nothing new is decided."""
        until = time.monotonic() + self._limits.peer_timeout_seconds
        while any(session.request is not None for session in self.sessions) and time.monotonic() < until:
            if self.config.mode == "stream" or not self._poller.poll(100):
                break
            self._take()
        self.event(self.publisher, "actor.drained", (self.decisions,))

    def close(self) -> None:
        """Close sockets and pages."""
        super().close()
        if self._learning is not None:
            self._learning.close()
        self._subscriber.close()
        self.publisher.close()
        if self._dealer is not None:
            self._dealer.close(linger=0)

    def status(self) -> dict[str, Any]:
        """Return what /status tells: also the model, the sessions, and training and buffer."""
        told = super().status() | {"model": self.model.name, "sessions": len(self.sessions)}
        return told | ({} if self._learning is None else self._learning.status())

    def _take(self) -> None:
        """Read answers and observations, a queue's length of each at most."""
        import zmq

        for message in self._subscriber.waiting():
            if isinstance(message, DistanceMatrix):
                self._saw(message)
            elif isinstance(message, TelemetryEvent) and message.event_type == GOAL_EVENT:
                if self._goals.hear(message):
                    self._aim(message.env_id)
                else:
                    self.metrics.count("malformed_total")
            elif isinstance(message, BatchStepResult) and self.config.mode == "stream":
                for result in message.results:
                    self._came(result)
        if self._dealer is None:
            return
        for _ in range(self._limits.queue_length):
            if not readable(self._dealer):
                return
            frames = self._dealer.recv_multipart(zmq.NOBLOCK)
            try:
                message = decode(frames[1:] if frames[:1] == [b""] else frames, self._limits)
            except WireError as error:
                self.metrics.count("malformed_total", about="messages that broke the format")
                _LOG.warning("an answer of the environment was not understood: %s", error)
                continue
            self._answered(message)

    def _answered(self, message: Message) -> None:
        """Take the answer to a request."""
        if isinstance(message, Fault):
            self.metrics.count("faults_total", about="requests that the environment refused")
            if time.monotonic() > self._warned + _QUIET_SECONDS:
                self._warned = time.monotonic()
                _LOG.warning("the environment refused a request (%s): %s", message.code, message.message)
            self._pause(self.sessions)
            for session in self.sessions:
                # It is there, and flew none of those.
                session.shown = session.shown or session.matrix
            # It says nothing of which drone: one that cannot be flown must not keep the others of its batch.
            self._apart_until = time.monotonic() + 10 * self._limits.peer_timeout_seconds
            return
        if not isinstance(message, BatchStepResult):
            return
        current = {result.env_id for result in message.results if self._came(result)}
        for matrix in message.observations:
            if len(matrix.env_ids) == 1 and int(matrix.env_ids[0]) in current:
                self._observe(matrix)

    def _came(self, result: StepResult) -> bool:
        """Take the outcome of a decision; False where it is not the one that is waited for."""
        session = self.sessions.get(result.env_id)
        if session is None or session.request is None:
            return False
        if self.config.mode == "step" and session.request.step_id != result.step_id:
            return False
        session.request = None
        if self.config.mode == "step":
            # The answer went to this actor alone; whoever watches learns of it here.
            numbers = (result.reward, result.episode_return, result.done or result.truncated)
            place = {"episode_id": result.episode_id, "step_id": result.step_id}
            self.event(self.publisher, "actor.inference.step", numbers, env_id=result.env_id, **place)
        if self._learning is not None:
            self._learning.came(result)
        self.metrics.latency("answer_ms", time.monotonic() - session.asked_at, about="request to answer")
        return True

    def _saw(self, matrix: DistanceMatrix) -> None:
        """Take a published observation: of a new drone, of one that streams, or of one whose answer was lost."""
        if len(matrix.env_ids) != 1:
            self.metrics.count("malformed_total")
            return
        session = self.sessions.get(int(matrix.env_ids[0]))
        if session is not None and self.config.mode == "step":
            session.seen_at = time.monotonic()
            if session.request is not None:
                if session.seen_at - session.asked_at > self._limits.peer_timeout_seconds / 2:
                    # One that came before may have been overtaken by the answer that was answered last.
                    session.shown = matrix
                return
            if session.env_id in self._ready:
                return
            waits, earlier = session.waits_since, matrix.step_id < session.matrix.step_id
            if waits is not None and earlier and session.seen_at - waits < self._limits.peer_timeout_seconds:
                # Overtaken by the answer that brought what it waits with; later, its environment was started again.
                return
        self._observe(matrix)

    def _observe(self, matrix: DistanceMatrix) -> None:
        """Make an observation the next one to be answered."""
        now, config = time.monotonic(), self.model.runner.config
        if matrix.matrix_shape != (config.azimuth_bins, config.elevation_bins):
            self.metrics.count("misfits_total", about="observations of another size than the policy's")
            if self._misfit is not self.model:
                self._misfit = self.model
                _LOG.warning(
                    "drone %d sees %dx%d, %s wants %dx%d: it is not flown; start its environment with --like %s",
                    int(matrix.env_ids[0]), *matrix.matrix_shape, self.model.name,
                    config.azimuth_bins, config.elevation_bins, self.model.name,
                )  # fmt: skip
            return
        env_id = int(matrix.env_ids[0])
        session = self.sessions.get(env_id)
        if session is None:
            session = self.sessions.open(matrix, now)
            if session is None:
                self.metrics.count("turned_away_total", about="observations of drones beyond max_sessions")
                return
        elif session.matrix.episode_id != matrix.episode_id:
            session.begins = True
            session.velocity = torch.zeros(4)
        session.matrix, session.seen_at, session.goal = matrix, now, self._goals.of(matrix)
        if config.goal and session.goal is None:
            session.waits_since = session.waits_since or now
        else:
            session.waits_since = None
            self._ready[env_id] = session

    def _aim(self, env_id: int) -> None:
        """Let a drone that waits for its goal be answered, if that is the one it waits for."""
        session = self.sessions.get(env_id)
        if session is not None and session.waits_since is not None and self._goals.of(session.matrix) is not None:
            self._observe(session.matrix)

    def _next_group(self) -> list[Session]:
        """Return the drones to be answered now: those of one group, the longest waiting first."""
        if not self._ready:
            return []
        groups = self.config.groups
        which = next(iter(self._ready.values())).slot % groups
        group = [session for session in self._ready.values() if session.slot % groups == which]
        for session in group:
            del self._ready[session.env_id]
        return group

    def _decide(self, group: list[Session]) -> None:
        """Answer the observations of some drones by one forward pass."""
        start = time.perf_counter()
        obs = torch.cat([observation_of(session.matrix) for session in group])
        state, aux, reset = self.sessions.gather(group, obs)
        runner = self.model.runner if self._learning is None else self._learning.runner()
        decision = runner.decide(obs, aux, state, reset, self._noise(group))
        took = time.perf_counter() - start
        command, proposal = self._commands.of(group, obs, reset, decision.action)
        self._send(group, command.numpy().astype(np.float32, copy=False))
        # What nobody waits for comes behind it: the drones fly meanwhile.
        self.sessions.scatter(group, reset, decision.state, decision.latent)
        if proposal is not None:
            self._show(group, proposal.flown)
        if self._learning is not None:
            self._learning.decided(group, obs, aux, state, reset, decision, proposal)
        self.decisions += len(group)
        self.metrics.latency("inference_ms", took, about="one batch of decisions")
        self.metrics.count("decisions_total", len(group), about="decisions made")

    def _show(self, group: list[Session], verdict: GateVerdict) -> None:
        """Tell whoever watches what the gate said of what is flown."""
        if self.publisher.watched("telemetry_event_v2"):
            parts = torch.stack([verdict.send, verdict.collides, verdict.expected_reward, *verdict.components.values()])
            for session, numbers in zip(group, parts.T.numpy()):
                place = {"episode_id": session.matrix.episode_id, "step_id": _after(session.matrix.step_id)}
                self.event(self.publisher, "actor.inference.gate", numbers, env_id=session.env_id, **place)

    def _noise(self, group: list[Session]) -> torch.Tensor | None:
        """Return (N, 4) draws: functions of seed, drone and decision."""
        if not self.config.sample:
            return None
        keys, step = draw_keys(group)
        return draw_normal(self.config.seed, keys, torch.zeros_like(keys), step, axes=4)

    def _send(self, group: list[Session], commands: np.ndarray) -> None:
        """In step mode ask for the actions to be flown; publish them."""
        now = time.time()
        actions = []
        for session, command in zip(group, commands):
            linear, angular = np.ascontiguousarray(command[None, :3]), np.zeros((1, 3), np.float32)
            angular[0, 2] = command[3]
            env_ids, step_id = np.array([session.env_id], np.int32), _after(session.matrix.step_id)
            action = Action(env_ids, linear, angular, self.model.name, step_id, now)
            session.request, session.asked_at, session.shown = action, time.monotonic(), None
            session.decisions += 1
            actions.append(action)
        if self.config.mode == "step":
            self._ask(group)
        for action in actions:
            self.publisher.publish(action)

    def _ask(self, group: list[Session]) -> None:
        """Ask for what some drones are to do."""
        import zmq

        assert self._dealer is not None
        actions = [session.request for session in group if session.request is not None]
        request = BatchStepRequest(tuple(actions), actions[0].step_id, time.time())
        try:
            self._dealer.send_multipart([b"", *encode(request)], zmq.NOBLOCK, copy=False)
        except zmq.Again:
            # No environment, or it does not read: the request is sent again soon.
            self.metrics.count("unsent_total", about="requests that could not be sent")
            self._pause(group)

    def _send_again(self) -> None:
        """Repeat requests whose answer does not come; their step id says that they are the same.

        Only of drones that are heard of: an environment that is not there will, once it was started again, not be where
        these were decided.
        """
        if self.config.mode != "step":
            return
        now = time.monotonic()
        late = []
        for session in self.sessions:
            if session.request is None or session.shown is None:
                continue
            if now - session.asked_at <= self._limits.peer_timeout_seconds:
                continue
            if session.outlived:
                session.request = None
                self._observe(session.shown)
            else:
                late.append(session)
        if late:
            self.metrics.count("repeated_total", len(late), about="requests sent again")
            for session in late:
                session.asked_at, session.shown = now, None
            for some in [[session] for session in late] if now < self._apart_until else [late]:
                self._ask(some)

    def _pause(self, sessions: Iterable[Session]) -> None:
        """Let the requests of some drones be sent again after a short while."""
        soon = time.monotonic() - self._limits.peer_timeout_seconds + _BACK_OFF
        for session in sessions:
            session.asked_at = min(session.asked_at, soon)

    def _take_over(self) -> None:
        """Let a successor serve from the next decision on; sessions stay."""
        model = self._successor()
        if model is None:
            return
        if self._learning is not None:
            try:
                self._learning.adopt(model)
            except ConfigError as error:
                # A champion that cannot be learned on ends neither the service nor its learning.
                _LOG.warning("%s does not take over from %s: %s", model.name, self.model.name, error)
                return
        kept = self.sessions.renew(model.runner, model.shaper, model.curiosity, max_distance=model.max_distance)
        _LOG.info("%s takes over from %s; memory %s", model.name, self.model.name, "kept" if kept else "begins anew")
        self.model = model
        self._commands.serve(model)
        for session in self.sessions:
            # One policy flies to goals and waits for them, another does not.
            if self._ready.pop(session.env_id, None) is not None or session.waits_since is not None:
                self._observe(session.matrix)
        self.metrics.count("swaps_total", about="models that took over")

    def _perf(self) -> None:
        numbers = self.metrics.as_dict()
        self.event(
            self.publisher,
            "actor.inference.perf",
            (
                numbers.get("inference_ms_p50", 0),
                numbers.get("inference_ms_p99", 0),
                len(self.sessions),
                self.decisions,
            ),
            step_id=self.decisions,
        )


def _after(step_id: int) -> int:
    """Return the step id of the next decision, another one: after the last comes the first."""
    return step_id + 1 if step_id + 1 < MOST_STEP_ID else 0
