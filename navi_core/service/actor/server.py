"""Actor server: serves a policy that answers the observations of many drones with batched inference.

Observations that wait together are answered by one forward pass. In step mode an action is sent as a request, whose
answer brings the reward and the next observation; an unanswered request is repeated with its step id, and the
environment flies it once. Published observations introduce drones, and wake those whose answer was lost.
"""

import logging
import time
from collections.abc import Callable

import numpy as np
import torch

from navi_core.config import ActorConfig
from navi_core.errors import ConfigError
from navi_core.pilots.pilot import draw_normal
from navi_core.service.actor.commands import Commands, StepClient
from navi_core.service.gate import GateVerdict, RolloutGate
from navi_core.service.learning.flight_learning import FlightLearning
from navi_core.service.observations import GOAL_EVENT, GoalTable, observation_of
from navi_core.service.policies.served_model import ServedModel
from navi_core.service.policies.sessions import Session, SessionTable, draw_keys
from navi_core.service.server import Server
from navi_core.service.viewing.digest import FEATURES_EVENT
from navi_core.service.viewing.feed import selected_drone
from navi_core.service.wire import (
    MOST_STEP_ID,
    Action,
    BatchStepResult,
    DistanceMatrix,
    Fault,
    Message,
    StepResult,
    TelemetryEvent,
)
from navi_core.service.wire.sockets import Publisher, Subscriber, poller_of

_LOG = logging.getLogger("navi.service")
_TOPICS = ("distance_matrix_v2", "step_result_v2", "telemetry_event_v2")


class ActorServer(Server):
    """Policy server: serves one model to many drones over the wire protocol.

    Args:
        model: Served first.
        config: Endpoints, mode, sessions, runtime.
        successor: Returns a model to swap in, or None.
        gate: Judges each motion before it is sent; its capacity is at least `max_sessions`.
        learning: Learns from the flights; its gate is `gate`.

    Raises:
        ServiceError: A port is taken.

    Attributes:
        publisher: Publishes actions and telemetry.
        sessions: Sessions of the drones.
        model: Served now.
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
        self.config = c = config or ActorConfig()
        self.model, self._successor, self._learning = model, successor, learning
        publisher = Publisher(c.publish, c.wire, purpose="actions and telemetry of the actor", option="--pub")
        super().__init__("actor", c.http, publisher, c.wire)
        self._subscriber = Subscriber(c.subscribe, _TOPICS, c.wire)
        self._parts.callback(self._subscriber.close)
        self._requests = StepClient(c.step_endpoint, c.wire, self.metrics) if c.mode == "step" else None
        peers = [self._subscriber.socket]
        if self._requests is not None:
            self._parts.callback(self._requests.socket.close)
            peers.append(self._requests.socket)
        self._poller = poller_of(*peers)
        self.sessions = SessionTable(
            model.runner, c.max_sessions, model.shaper, model.curiosity, max_distance=model.max_distance,
            decision_hz=model.decision_hz, dynamics=model.dynamics,
        )  # fmt: skip
        self._commands = Commands(model, c, gate, self.metrics)
        self._goals = GoalTable(c.goal)
        self._misfit: ServedModel | None = None
        self._ready: dict[int, Session] = {}
        self.decisions = 0
        self._selected: int | None = None
        self._features_due = 0.0
        self._turned = time.monotonic()
        if learning is not None:
            self._parts.callback(learning.close)
            learning.trainer.start()

    def turn(self, wait_ms: int) -> None:
        """Run one iteration of the server loop: receive messages, infer actions, send them."""
        if not self._ready:
            self._poller.poll(wait_ms)
        self._receive()
        self._swap_model()
        if self._requests is not None:
            for session in self._requests.resend_late(self.sessions):
                assert session.published is not None
                self._queue_observation(session.published)
        group = self._next_group()
        if group:
            self._decide(group)
        self._end_silent_sessions()
        if self.heartbeat(len(self.sessions), self.decisions):
            self._report()

    def drain(self) -> None:
        """Drain for shutdown: wait for the replies to sent requests; nothing new is decided."""
        until = time.monotonic() + self._limits.peer_timeout_seconds
        while any(session.request is not None for session in self.sessions) and time.monotonic() < until:
            if self.config.mode == "stream" or not self._poller.poll(100):
                break
            self._receive()
        self.publish_event("actor.drained", (self.decisions,))

    def status(self) -> dict[str, object]:
        """Return the status page's data: model, sessions, and continuous training with its buffer."""
        status = super().status() | {"model": self.model.name, "sessions": len(self.sessions)}
        return status | ({} if self._learning is None else self._learning.status())

    def _receive(self) -> None:
        """Receive and dispatch the messages that have arrived, at most a queue length of each kind."""
        for message in self._subscriber.waiting():
            if isinstance(message, DistanceMatrix):
                self._handle_observation(message)
            elif isinstance(message, TelemetryEvent) and message.event_type == GOAL_EVENT:
                self._handle_goal(message)
            elif isinstance(message, BatchStepResult) and self.config.mode == "stream":
                for result in message.results:
                    self._handle_result(result)
        for message in self._requests.answers() if self._requests is not None else ():
            self._handle_answer(message)

    def _handle_answer(self, message: Message) -> None:
        """Handle the environment's reply to a step request: results with observations, or a fault."""
        if isinstance(message, Fault):
            assert self._requests is not None
            self._requests.refused(message, self.sessions)
        elif isinstance(message, BatchStepResult):
            current = {result.env_id for result in message.results if self._handle_result(result)}
            for matrix in message.observations:
                if len(matrix.env_ids) == 1 and int(matrix.env_ids[0]) in current:
                    self._queue_observation(matrix)

    def _handle_result(self, result: StepResult) -> bool:
        """Handle the result of one environment step; return False if it is not the awaited one."""
        session = self.sessions.get(result.env_id)
        if session is None or session.request is None:
            return False
        where = {"env_id": result.env_id, "episode_id": result.episode_id, "step_id": result.step_id}
        if self.config.mode == "step":
            if session.request.step_id != result.step_id:
                return False
            # The answer went to this actor alone; viewers receive it here.
            numbers = (result.reward, result.episode_return, result.done or result.truncated)
            self.publish_event("actor.inference.step", numbers, **where)
        session.request = None
        session.episode_length += 1
        if result.done or result.truncated:
            numbers = (result.episode_return, session.episode_length, result.done)
            self.publish_event("actor.inference.episode", numbers, **where)
        if self._learning is not None:
            self._learning.complete(result)
        self.metrics.latency("answer_ms", time.monotonic() - session.requested_at, about="request to answer")
        return True

    def _handle_observation(self, matrix: DistanceMatrix) -> None:
        """Handle a published observation: of a new drone, of a streaming one, or of one whose reply was lost."""
        if len(matrix.env_ids) != 1:
            self.metrics.count("malformed_total")
            return
        session = self.sessions.get(int(matrix.env_ids[0]))
        if session is not None and self.config.mode == "step":
            session.heard_at = time.monotonic()
            if session.request is not None:
                if session.heard_at - session.requested_at > self._limits.peer_timeout_seconds / 2:
                    # An earlier one may have been overtaken by the answer that was handled last.
                    session.published = matrix
                return
            if session.env_id in self._ready:
                return
            waits, earlier = session.waits_since, matrix.step_id < session.matrix.step_id
            if waits is not None and earlier and session.heard_at - waits < self._limits.peer_timeout_seconds:
                # Overtaken by the answer whose observation waits for a goal. Later, its environment was restarted.
                return
        self._queue_observation(matrix)

    def _handle_goal(self, event: TelemetryEvent) -> None:
        """Handle a goal event; a drone that waits for this goal is queued."""
        if not self._goals.update(event):
            self.metrics.count("malformed_total")
            return
        session = self.sessions.get(event.env_id)
        if session is not None and session.waits_since is not None and self._goals.goal_of(session.matrix) is not None:
            self._queue_observation(session.matrix)

    def _queue_observation(self, matrix: DistanceMatrix) -> None:
        """Queue an observation as its drone's next inference input; opens a session for a new drone."""
        now, config = time.monotonic(), self.model.runner.config
        env_id = int(matrix.env_ids[0])
        if matrix.matrix_shape != (config.azimuth_bins, config.elevation_bins):
            self.metrics.count("misfits_total", about="observations of another size than the policy's")
            if self._misfit is not self.model:
                self._misfit = self.model
                _LOG.warning(
                    "drone %d sees %dx%d, %s wants %dx%d: it is not flown; start its environment with --like %s",
                    env_id, *matrix.matrix_shape, self.model.name,
                    config.azimuth_bins, config.elevation_bins, self.model.name,
                )  # fmt: skip
            return
        session = self.sessions.get(env_id)
        if session is None:
            session = self.sessions.open(matrix, now)
            if session is None:
                self.metrics.count("turned_away_total", about="observations of drones beyond max_sessions")
                return
        elif session.matrix.episode_id != matrix.episode_id:
            session.begins = True
            session.episode_length = 0
            session.velocity = torch.zeros(4)
        session.matrix, session.heard_at, session.goal = matrix, now, self._goals.goal_of(matrix)
        if config.goal and session.goal is None:
            session.waits_since = session.waits_since or now
        else:
            session.waits_since = None
            self._ready[env_id] = session

    def _next_group(self) -> list[Session]:
        """Dequeue the next inference batch: the ready drones of one group, the longest waiting first."""
        if not self._ready:
            return []
        groups = self.config.groups
        which = next(iter(self._ready.values())).slot % groups
        group = [session for session in self._ready.values() if session.slot % groups == which]
        for session in group:
            del self._ready[session.env_id]
        return group

    def _decide(self, group: list[Session]) -> None:
        """Infer and send the actions of a batch of drones with one forward pass."""
        start = time.perf_counter()
        obs = torch.cat([observation_of(session.matrix) for session in group])
        state, aux, reset = self.sessions.gather(group, obs)
        runner = self.model.runner if self._learning is None else self._learning.runner()
        noise = None
        if self.config.sample:
            # Functions of seed, drone and decision.
            keys, step = draw_keys(group)
            noise = draw_normal(self.config.seed, keys, torch.zeros_like(keys), step, axes=4)
        decision = runner.decide(obs, aux, state, reset, noise)
        seconds = time.perf_counter() - start
        command, choice = self._commands.of(group, obs, reset, decision.action, self.sessions)
        self._send_actions(group, command.numpy().astype(np.float32, copy=False))
        # The drones fly meanwhile: what follows delays none of them.
        self.sessions.scatter(group, reset, decision.state, decision.latent)
        if choice is not None:
            self._publish_verdicts(group, choice.flown)
        self._publish_features(group, decision.latent)
        if self._learning is not None:
            self._learning.add(group, obs, aux, state, reset, decision, choice)
        self.decisions += len(group)
        self.metrics.latency("inference_ms", seconds, about="one batch of decisions")
        self.metrics.count("decisions_total", len(group), about="decisions made")

    def _send_actions(self, group: list[Session], commands: np.ndarray) -> None:
        """Publish the actions (N, 4); in step mode also request them as steps from the environment."""
        now = time.time()
        actions = []
        for session, command in zip(group, commands):
            linear, angular = np.ascontiguousarray(command[None, :3]), np.zeros((1, 3), np.float32)
            angular[0, 2] = command[3]
            env_ids, step_id = np.array([session.env_id], np.int32), _next_step_id(session.matrix.step_id)
            action = Action(env_ids, linear, angular, self.model.name, step_id, now)
            session.request, session.requested_at, session.published = action, time.monotonic(), None
            session.decisions += 1
            actions.append(action)
        if self._requests is not None:
            self._requests.send(group)
        for action in actions:
            self.publisher.publish(action)

    def _publish_verdicts(self, group: list[Session], verdict: GateVerdict) -> None:
        """Publish the gate's verdicts on the flown motions as telemetry events."""
        if self.publisher.watched("telemetry_event_v2"):
            parts = torch.stack([verdict.send, verdict.collides, verdict.expected_reward, *verdict.components.values()])
            for session, numbers in zip(group, parts.T.numpy()):
                self.publish_event("actor.inference.gate", numbers, **_where(session))

    def _publish_features(self, group: list[Session], latent: torch.Tensor) -> None:
        """Publish the encoder's features of one drone at `observation_hz`: the selected one, else the first."""
        now = time.monotonic()
        if now < self._features_due or not self.publisher.watched("telemetry_event_v2"):
            return
        wanted = selected_drone(self.publisher)
        self._selected = self._selected if wanted is None else wanted
        ids = [session.env_id for session in group]
        if self._selected is None or self._selected in ids:
            self._features_due = now + 1.0 / self._limits.observation_hz
            index = 0 if self._selected is None else ids.index(self._selected)
            self.publish_event(FEATURES_EVENT, latent[index], **_where(group[index]))

    def _swap_model(self) -> None:
        """Hot-swap the served model if a successor is ready; sessions are kept."""
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
        kept = self.sessions.renew(
            model.runner, model.shaper, model.curiosity, max_distance=model.max_distance,
            decision_hz=model.decision_hz, dynamics=model.dynamics,
        )  # fmt: skip
        _LOG.info("%s takes over from %s; memory %s", model.name, self.model.name, "kept" if kept else "begins anew")
        self.model = model
        self._commands.serve(model)
        for session in self.sessions:
            # One policy flies to goals and waits for them, another does not.
            if self._ready.pop(session.env_id, None) is not None or session.waits_since is not None:
                self._queue_observation(session.matrix)
        self.metrics.count("swaps_total", about="models that took over")

    def _end_silent_sessions(self) -> None:
        """Expire the sessions of drones that were silent for `idle_seconds`."""
        now = time.monotonic()
        slept, self._turned = now - self._turned, now
        if slept > self._limits.peer_timeout_seconds:
            # This process stood still (a frozen container, a paused machine), and no drone was silent.
            for session in self.sessions:
                session.heard_at += slept
        for session in self.sessions.forget(self.config.idle_seconds, now):
            self._ready.pop(session.env_id, None)
            if self._learning is not None:
                self._learning.forget(session.env_id)
        self.metrics.gauge("sessions", len(self.sessions), about="drones served")

    def _report(self) -> None:
        """Update gauges, publish latency quantiles as telemetry, and warn of missing goals."""
        numbers = self.metrics.as_dict()
        quantiles = (numbers.get("inference_ms_p50", 0), numbers.get("inference_ms_p99", 0))
        values = (*quantiles, len(self.sessions), self.decisions)
        self.publish_event("actor.inference.perf", values, step_id=self.decisions)
        if self._learning is not None:
            self._learning.update_gauges(self.metrics)
        waits = {session.env_id: session.waits_since for session in self.sessions if session.waits_since is not None}
        self.metrics.gauge("without_goal", len(waits), about="drones without a goal")
        for env_id, since in waits.items():
            if time.monotonic() - since > 2 * self._limits.heartbeat_seconds:
                self._goals.warn_missing(env_id)


def _where(session: Session) -> dict[str, int]:
    """Return the message ids of a drone's decision: environment id, episode id and step id."""
    matrix = session.matrix
    return {
        "env_id": session.env_id,
        "episode_id": matrix.episode_id,
        "step_id": _next_step_id(matrix.step_id),
    }


def _next_step_id(step_id: int) -> int:
    """Return the step id after the given one; wraps to 0 after the last."""
    return step_id + 1 if step_id + 1 < MOST_STEP_ID else 0
