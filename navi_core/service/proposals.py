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

__all__ = ["propose", "velocity_after"]


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
        rows, position, yaw, velocity, action, obs: Of N drones, as `RolloutGate.judge` takes them.
        slower: Shares of their translation with which motions that would collide are proposed again; the first that
            would not is judged, and one that promises little waits only where hovering promises more. Empty: what is
            proposed passes as it is, or hovers.
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
