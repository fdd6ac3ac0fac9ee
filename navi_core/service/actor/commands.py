"""Post-processing of policy actions into drone commands, and the client that requests environment steps.

NaN hovers, stuck drones are disturbed, the gate decides last. A request is repeated under its step id until the
environment answers it.
"""

import logging
import time
from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import Tensor

from navi_core.config import ActorConfig, WireConfig
from navi_core.errors import WireError
from navi_core.pilots.reactive import Recovery
from navi_core.service.gate import ActionChoice, DroneState, RolloutGate, choose_action
from navi_core.service.policies.served_model import ServedModel
from navi_core.service.policies.sessions import Session, SessionTable, draw_keys
from navi_core.service.server import ServiceMetrics
from navi_core.service.wire import BatchStepRequest, Fault, Message, decode, encode
from navi_core.service.wire.sockets import Socket

_LOG = logging.getLogger("navi.service")


class Commands:
    """Action post-processor: turns policy actions into commands by NaN check, recovery, end of the flight and gate.

    Args:
        model: Served model.
        config: Recovery, sampling, sessions, seed.
        gate: Judges each motion, its rows are the sessions' slots; None sends every one.
        metrics: Counters and timers.
    """

    def __init__(
        self, model: ServedModel, config: ActorConfig, gate: RolloutGate | None, metrics: ServiceMetrics
    ) -> None:
        self._config, self._gate, self._metrics = config, gate, metrics
        self.serve(model)

    def serve(self, model: ServedModel) -> None:
        """Switch to another model and reset the stuck recovery."""
        self._name, self._recovery = model.name, None
        wanted = model.runner.config.recovery if self._config.recovery is None else self._config.recovery
        after = self._config.done_after
        self._done_after = model.runner.config.done_after if after is None else after
        # Sampled flights come free by themselves.
        if wanted and not self._config.sample:
            self._recovery = Recovery(self._config.max_sessions, model.decision_hz, self._config.seed)

    def of(
        self, group: Sequence[Session], obs: Tensor, reset: Tensor, action: Tensor, table: SessionTable
    ) -> tuple[Tensor, ActionChoice | None]:
        """Return the (N, 4) commands for the policy's actions, and the gate's choice (None without a gate).

        Args:
            group: N drones; with a gate their velocities are updated.
            obs: (N, 3, Az, El).
            reset: (N,) bool, an episode begins.
            action: (N, 4) from the policy.
            table: Sessions of the drones, with their shield.
        """
        action = self._recovered(group, reset, self._finite(group, action))
        command = table.shielded(group, obs, table.hovering(group, action, self._done_after))
        for session in group:
            session.velocity_before = session.velocity
        if self._gate is None:
            return command, None
        choice = self._gated(self._gate, group, obs, reset, command)
        return choice.command, choice

    def _finite(self, group: Sequence[Session], action: Tensor) -> Tensor:
        """Replace non-finite actions by zero (hover) and reset the recurrent state of these drones."""
        finite = action.isfinite().all(dim=1)
        for session, is_finite in zip(group, finite.tolist()):
            if not is_finite:
                session.begins = True
                self._metrics.count("unsound_total", about="actions that were no numbers; the drone hovered")
                if session.is_finite:
                    _LOG.warning("drone %d: %s answers with NaN or Inf; it hovers", session.env_id, self._name)
            session.is_finite = is_finite
        return torch.where(finite[:, None], action, 0.0)

    def _recovered(self, group: Sequence[Session], reset: Tensor, action: Tensor) -> Tensor:
        """Apply stuck recovery, if it is on: detect stuck drones from their poses and perturb their actions."""
        if self._recovery is None:
            return action
        slots = torch.tensor([session.slot for session in group])
        pose = torch.tensor([session.pose for session in group])
        keys, step = draw_keys(group)
        recovered = self._recovery.act(action, pose, reset, keys, step, slots)
        stuck = int(self._recovery.stuck[slots].sum())
        if stuck:
            self._metrics.count("recovered_total", stuck, about="actions that were disturbed to free a drone")
        return recovered

    def _gated(
        self, gate: RolloutGate, group: Sequence[Session], obs: Tensor, reset: Tensor, action: Tensor
    ) -> ActionChoice:
        """Filter the actions through the safety gate, and count its verdicts."""
        start = time.perf_counter()
        drones = DroneState(
            rows=torch.tensor([session.slot for session in group]),
            position=torch.tensor([session.position for session in group]),
            yaw=torch.tensor([session.matrix.robot_pose.yaw for session in group]),
            velocity=torch.stack([session.velocity for session in group]),
            obs=obs,
        )
        if bool(reset.any()):
            gate.begin(drones[reset])
        choice = choose_action(gate, drones, action, gate.config.slower)
        for session, velocity in zip(group, choice.velocity):
            session.velocity = velocity
        self._metrics.latency("gate_ms", time.perf_counter() - start, about="one batch of simulated motions")
        waits = int((~choice.flown.send).sum())
        slowed = len(group) - waits - int(choice.proposed.send.sum())
        self._metrics.count("gate_send_total", len(group) - waits, about="motions that the gate let through")
        self._metrics.count("gate_wait_total", waits, about="motions that the gate held back")
        self._metrics.count("gate_slowed_total", slowed, about="motions that were sent slower than proposed")
        return choice


_BACK_OFF_SECONDS = 0.5
"""Back-off after a request was refused or could not be sent [s]."""
_WARN_SECONDS = 1.0
"""Shortest interval between two warnings of refusals [s]; all refusals are counted."""


class StepClient:
    """Step client: ZeroMQ DEALER socket that requests environment steps for an actor.

    Args:
        endpoint: Endpoint of the environment server.
        limits: Queue, message and time limits of the wire.
        metrics: Counters of the actor.

    Attributes:
        socket: To be polled for answers.
    """

    def __init__(self, endpoint: str, limits: WireConfig, metrics: ServiceMetrics) -> None:
        self._limits, self._metrics = limits, metrics
        self._single_until = self._warned = 0.0
        # Requests to an environment that is gone must not wait for the next one at its address.
        self.socket = Socket("DEALER", limits, "environment to step", IMMEDIATE=1)
        self.socket.connect(endpoint)

    def answers(self) -> Iterator[Message]:
        """Yield the decoded replies that have arrived, at most a queue length."""
        for frames in self.socket.arrived(self._limits.queue_length):
            try:
                message = decode(frames[1:] if frames[:1] == [b""] else frames, self._limits)
            except WireError as error:
                self._metrics.count("malformed_total", about="messages that broke the format")
                _LOG.warning("an answer of the environment cannot be decoded: %s", error)
                continue
            yield message

    def send(self, group: list[Session]) -> None:
        """Send the pending step requests of a group of drones as one batch."""
        actions = [session.request for session in group if session.request is not None]
        request = BatchStepRequest(tuple(actions), actions[0].step_id, time.time())
        if not self.socket.send([b"", *encode(request)]):
            # No environment, or it does not read: the request is sent again soon.
            self._metrics.count("unsent_total", about="requests that could not be sent")
            self._back_off(group)

    def refused(self, fault: Fault, sessions: Iterable[Session]) -> None:
        """Handle a fault reply: back off, and send each drone's request alone for a while.

        A fault names no drone: one drone that cannot be flown must not block the others of its batch.
        """
        self._metrics.count("faults_total", about="requests that the environment refused")
        now = time.monotonic()
        if now > self._warned + _WARN_SECONDS:
            self._warned = now
            _LOG.warning("the environment refused a request (%s): %s", fault.code, fault.message)
        self._single_until = now + 10 * self._limits.peer_timeout_seconds
        sessions = list(sessions)
        self._back_off(sessions)
        for session in sessions:
            # The environment lives, and flew none of these.
            session.published = session.published or session.matrix

    def resend_late(self, sessions: Iterable[Session]) -> list[Session]:
        """Resend step requests whose reply is late (retry); the environment deduplicates them by step id.

        Only requests of publishing drones are resent: a restarted environment has other drones at other poses.

        Returns:
            Drones whose environment was restarted; their requests are dropped.
        """
        now = time.monotonic()
        late: list[Session] = []
        restarted: list[Session] = []
        for session in sessions:
            if session.request is None or session.published is None:
                continue
            if now - session.requested_at > self._limits.peer_timeout_seconds:
                (restarted if session.is_environment_restarted else late).append(session)
        for session in restarted:
            session.request = None
        if late:
            self._metrics.count("repeated_total", len(late), about="requests sent again")
            for session in late:
                session.requested_at, session.published = now, None
            for group in [[session] for session in late] if now < self._single_until else [late]:
                self.send(group)
        return restarted

    def _back_off(self, sessions: Iterable[Session]) -> None:
        """Schedule the requests for a resend after a short back-off."""
        soon = time.monotonic() - self._limits.peer_timeout_seconds + _BACK_OFF_SECONDS
        for session in sessions:
            session.requested_at = min(session.requested_at, soon)
