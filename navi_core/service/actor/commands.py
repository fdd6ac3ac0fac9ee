"""Commands of a policy's actions: NaN hovers, stuck drones are disturbed, the gate decides last."""

import logging
import time
from collections.abc import Sequence

import torch
from torch import Tensor

from navi_core.config import ActorConfig
from navi_core.pilots.recovery import Recovery
from navi_core.service.gate.action_candidates import ActionChoice, choose_action
from navi_core.service.gate.gate import DroneState, RolloutGate
from navi_core.service.metrics import ServiceMetrics
from navi_core.service.policies.served_model import ServedModel
from navi_core.service.policies.sessions import Session, draw_keys

_LOG = logging.getLogger("navi.service")


class Commands:
    """Turns the actions of some drones into commands.

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
        self._non_finite: set[int] = set()
        self.serve(model)

    def serve(self, model: ServedModel) -> None:
        """Continue with another model; no drone is stuck with it yet."""
        self._name, self._recovery = model.name, None
        wanted = model.runner.config.recovery if self._config.recovery is None else self._config.recovery
        # Sampled flights come free by themselves.
        if wanted and not self._config.sample:
            self._recovery = Recovery(self._config.max_sessions, model.decision_hz, self._config.seed)

    def forget(self, env_id: int) -> None:
        """Drop the state of a drone whose session ended."""
        self._non_finite.discard(env_id)

    def of(
        self, group: Sequence[Session], obs: Tensor, reset: Tensor, action: Tensor
    ) -> tuple[Tensor, ActionChoice | None]:
        """Return the (N, 4) commands of some drones, and the gate's choice, None without a gate.

        Args:
            group: N drones; with a gate their velocities are updated.
            obs: (N, 3, Az, El).
            reset: (N,) bool, an episode begins.
            action: (N, 4) from the policy.
        """
        command = self._recovered(group, reset, self._finite(group, action))
        for session in group:
            session.velocity_before = session.velocity
        if self._gate is None:
            return command, None
        choice = self._gated(self._gate, group, obs, reset, command)
        return choice.command, choice

    def _finite(self, group: Sequence[Session], action: Tensor) -> Tensor:
        """Let drones with a non-finite action hover and begin anew."""
        finite = action.isfinite().all(dim=1)
        if bool(finite.all()):
            if self._non_finite:
                self._non_finite -= {session.env_id for session in group}
            return action
        self._metrics.count(
            "unsound_total", int((~finite).sum()), about="actions that were no numbers; the drone hovered"
        )
        for session, is_finite in zip(group, finite.tolist()):
            if is_finite:
                self._non_finite.discard(session.env_id)
                continue
            session.begins = True
            if session.env_id not in self._non_finite:
                self._non_finite.add(session.env_id)
                _LOG.warning("drone %d: %s answers with NaN or Inf; it hovers", session.env_id, self._name)
        return torch.where(finite[:, None], action, 0.0)

    def _recovered(self, group: Sequence[Session], reset: Tensor, action: Tensor) -> Tensor:
        """Disturb the actions of stuck drones, where recovery is on."""
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
        """Ask the gate, and count its verdicts."""
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
