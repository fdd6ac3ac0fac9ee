"""What is proposed to the gate: a policy's motions, and where one would collide, the same motion slower.

A policy flies its next decision, not the next half second: what it proposes beside a wall it would change in time, and
the gate, which holds the motion, foresees a collision. Who flies the typical action proposes the same again from the
same place, and would hover there for ever.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from navi_core.service.gate import GateVerdict, RolloutGate
from navi_core.service.sessions import Session

__all__ = ["ask_gate", "propose", "velocity_after"]


def propose(
    gate: RolloutGate,
    rows: Tensor,
    position: Tensor,
    yaw: Tensor,
    velocity: Tensor,
    action: Tensor,
    obs: Tensor,
    slower: Sequence[float] = (),
) -> tuple[GateVerdict, Tensor]:
    """Judge the actions of some drones; returns the verdict and the actions to be flown, hovering where they wait.

    Args:
        gate: Knows the rows since `begin`.
        rows: (N,) numbers of the drones, each at most once.
        position: (N, 3) [m].
        yaw: (N,) [rad].
        velocity: (N, 4) [m/s, rad/s].
        action: (N, 4) proposed.
        obs: (N, 3, Az, El).
        slower: Shares of their translation with which motions that would collide are proposed again; the first that
            would not is judged.
    """
    moving = (rows, position, yaw, velocity)
    left = gate.collides(*moving, action, obs).nonzero().squeeze(1) if slower else rows[:0]
    wanted, action = action, action.clone()
    for share in slower:
        if not len(left):
            break
        tried = wanted[left].clamp(-1.0, 1.0) * torch.tensor([share, share, share, 1.0])
        free = ~gate.collides(rows[left], position[left], yaw[left], velocity[left], tried, obs[left])
        action[left[free]] = tried[free]
        left = left[~free]
    verdict = gate.judge(*moving, action, obs)
    if slower:
        verdict = _compared(gate, verdict, moving, obs)
    return verdict, torch.where(verdict.send[:, None], action, 0.0)


def ask_gate(
    gate: RolloutGate,
    group: Sequence[Session],
    obs: Tensor,
    reset: Tensor,
    action: Tensor,
    slower: Sequence[float] = (),
) -> tuple[GateVerdict, Tensor]:
    """`propose` for sessions, which are told how fast they will be.

    Args:
        gate: Its rows are the sessions' slots.
        group: N drones.
        obs: (N, 3, Az, El).
        reset: (N,) bool, an episode begins.
        action: (N, 4) proposed.
        slower: As `propose` takes them.
    """
    slots = torch.tensor([session.slot for session in group])
    position = torch.tensor([session.position for session in group])
    yaw = torch.tensor([session.matrix.robot_pose.yaw for session in group])
    velocity = torch.stack([session.velocity for session in group])
    if bool(reset.any()):
        gate.begin(slots[reset], position[reset], yaw[reset], obs[reset])
    verdict, command = propose(gate, slots, position, yaw, velocity, action, obs, slower)
    for session, now in zip(group, velocity_after(verdict)):
        session.velocity = now
    return verdict, command


def _compared(gate: RolloutGate, verdict: GateVerdict, moving: tuple[Tensor, ...], obs: Tensor) -> GateVerdict:
    """Let motions go that promise little, where hovering promises no more."""
    low = (~verdict.send & ~verdict.collides & (gate.scenes(moving[0]) >= 0)).nonzero().squeeze(1)
    if not len(low):
        return verdict
    rows, position, yaw, velocity = (part[low] for part in moving)
    hover = gate.judge(rows, position, yaw, velocity, torch.zeros(len(low), 4), obs[low], remember=False)
    goes = ~(hover.expected_reward > verdict.expected_reward[low])
    return replace(verdict, send=verdict.send.index_copy(0, low, goes))


def velocity_after(verdict: GateVerdict) -> Tensor:
    """Return (N, 4) how fast drones will be [m/s, rad/s]; one that hovers has all but stopped after one decision."""
    return torch.where(verdict.send[:, None], verdict.velocity, 0.0)
