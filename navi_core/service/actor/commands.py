"""From what a policy answers to what is sent: no number hovers, who is stuck is disturbed, the gate is asked last."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

import torch
from torch import Tensor

from navi_core.config import ActorConfig
from navi_core.pilots.recovery import Recovery
from navi_core.service.gate.action_candidates import Proposal, propose
from navi_core.service.gate.drone_state import Situation
from navi_core.service.gate.gate import RolloutGate
from navi_core.service.metrics import ServiceMetrics
from navi_core.service.policies.served_model import ServedModel
from navi_core.service.policies.sessions import Session, draw_keys

__all__ = ["Commands"]

_LOG = logging.getLogger("navi.service")


class Commands:
    """Makes commands of the actions of some drones.

    Args:
        model: What is served.
        config: Recovery, sampling, sessions, seed.
        gate: Judges each motion, its rows are the sessions' slots; None sends every one.
        metrics: What is counted and timed.
    """

    def __init__(
        self, model: ServedModel, config: ActorConfig, gate: RolloutGate | None, metrics: ServiceMetrics
    ) -> None:
        self._config, self._gate, self._metrics = config, gate, metrics
        self._unsound: set[int] = set()
        self.serve(model)

    def serve(self, model: ServedModel) -> None:
        """Go on with another model; nobody is stuck with it yet."""
        self._name, self._recovery = model.name, None
        wanted = model.runner.config.recovery if self._config.recovery is None else self._config.recovery
        # Sampled flights come free by themselves.
        if wanted and not self._config.sample:
            self._recovery = Recovery(self._config.max_sessions, model.decision_hz, self._config.seed)

    def forget(self, env_id: int) -> None:
        """Let go what is known of a drone that is gone."""
        self._unsound.discard(env_id)

    def of(
        self, group: Sequence[Session], obs: Tensor, reset: Tensor, action: Tensor
    ) -> tuple[Tensor, Proposal | None]:
        """Return the (N, 4) commands of some drones, and what the gate said, None without one.

        Args:
            group: N drones; those that the gate judged are told how fast they will be.
            obs: (N, 3, Az, El).
            reset: (N,) bool, an episode begins.
            action: (N, 4) as the policy answered.
        """
        command = self._free(group, reset, self._sound(group, action))
        for session in group:
            session.velocity_before = session.velocity
        if self._gate is None:
            return command, None
        proposal = self._judged(self._gate, group, obs, reset, command)
        return proposal.command, proposal

    def _sound(self, group: Sequence[Session], action: Tensor) -> Tensor:
        """Let drones hover whose action is no number, after an observation that was none, and begin anew."""
        sound = action.isfinite().all(dim=1)
        if bool(sound.all()):
            if self._unsound:
                self._unsound -= {session.env_id for session in group}
            return action
        unsound = int((~sound).sum())
        self._metrics.count("unsound_total", unsound, about="actions that were no numbers; the drone hovered")
        for session, well in zip(group, sound.tolist()):
            if well:
                self._unsound.discard(session.env_id)
                continue
            session.begins = True
            if session.env_id not in self._unsound:
                self._unsound.add(session.env_id)
                _LOG.warning("drone %d: %s answers with NaN or Inf; it hovers", session.env_id, self._name)
        return torch.where(sound[:, None], action, 0.0)

    def _free(self, group: Sequence[Session], reset: Tensor, action: Tensor) -> Tensor:
        """Disturb the actions of drones that are stuck, where that is wanted."""
        if self._recovery is None:
            return action
        slots = torch.tensor([session.slot for session in group])
        here = torch.tensor([session.pose for session in group])
        keys, step = draw_keys(group)
        free = self._recovery.act(action, here, reset, keys, step, slots)
        stuck = int(self._recovery.stuck[slots].sum())
        if stuck:
            self._metrics.count("recovered_total", stuck, about="actions that were disturbed to free a drone")
        return free

    def _judged(
        self, gate: RolloutGate, group: Sequence[Session], obs: Tensor, reset: Tensor, action: Tensor
    ) -> Proposal:
        """Ask the gate, and count what it says."""
        start = time.perf_counter()
        situation = Situation(
            rows=torch.tensor([session.slot for session in group]),
            position=torch.tensor([session.position for session in group]),
            yaw=torch.tensor([session.matrix.robot_pose.yaw for session in group]),
            velocity=torch.stack([session.velocity for session in group]),
            obs=obs,
        )
        if bool(reset.any()):
            gate.begin(situation[reset])
        proposal = propose(gate, situation, action, gate.config.slower)
        for session, velocity in zip(group, proposal.velocity):
            session.velocity = velocity
        self._metrics.latency("gate_ms", time.perf_counter() - start, about="one batch of simulated motions")
        waits = int((~proposal.flown.send).sum())
        slowed = len(group) - waits - int(proposal.drawn.send.sum())
        self._metrics.count("gate_send_total", len(group) - waits, about="motions that the gate let through")
        self._metrics.count("gate_wait_total", waits, about="motions that the gate held back")
        self._metrics.count("gate_slowed_total", slowed, about="motions that were sent slower than proposed")
        return proposal
