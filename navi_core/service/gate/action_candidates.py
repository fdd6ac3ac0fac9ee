"""What is proposed to the gate: a policy's motions, and where one would collide, the same motion slower.

A policy flies its next decision, not the next half second: what it proposes beside a wall it would change in time, and
the gate, which holds the motion, foresees a collision. Who flies the typical action proposes the same again from the
same place, and would hover there for ever.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from navi_core.service.gate.drone_state import Situation
from navi_core.service.gate.gate import GateVerdict, RolloutGate

__all__ = ["Proposal", "propose"]


@dataclass(frozen=True)
class Proposal:
    """What became of the motions proposed to the gate for B drones.

    Attributes:
        drawn: Of the motions as they were proposed; sent only where one is flown as it is.
        flown: Of the motions as they are flown, perhaps slower; one that is not sent hovers.
        command: (B, 4) actions to be flown.
        velocity: (B, 4) how fast the drones will be [m/s, rad/s].
    """

    drawn: GateVerdict
    flown: GateVerdict
    command: Tensor
    velocity: Tensor


def propose(gate: RolloutGate, situation: Situation, action: Tensor, slower: Sequence[float] = ()) -> Proposal:
    """Judge the actions of some drones, and find what they fly instead where those would collide.

    Args:
        gate: Knows the drones since `begin`; it remembers the situation.
        situation: Of B drones.
        action: (B, 4) proposed.
        slower: Shares of their translation with which motions that would collide are proposed again; the first that
            would not is judged, and one that promises little waits only where hovering promises more. Empty: what is
            proposed passes as it is, or hovers.
    """
    gate.remember(situation)
    drawn = flown = gate.judge(situation, action)
    command = action
    if slower:
        known = gate.knows(situation.rows) & action.isfinite().all(dim=1)
        left = (drawn.collides & known).nonzero().squeeze(1)
        some = situation[left]
        found, tried = _slowed(gate, some, action[left], slower)
        changed = left[found]
        if len(changed):
            command = action.index_copy(0, changed, tried[found])
            flown = drawn.where(changed, gate.judge(some, tried)[found])
        flown = _compared(gate, flown, situation, known)
        drawn = replace(drawn, send=flown.send.index_fill(0, changed, False))
    goes = flown.send[:, None]
    # Who hovers has all but stopped after one decision.
    return Proposal(drawn, flown, torch.where(goes, command, 0.0), torch.where(goes, flown.velocity, 0.0))


def _slowed(gate: RolloutGate, situation: Situation, action: Tensor, slower: Sequence[float]) -> tuple[Tensor, Tensor]:
    """Return (N,) which motions do not collide slower, and (N, 4) the fastest of each that does not, else hovering."""
    action, chosen = action.clamp(-1.0, 1.0), torch.zeros_like(action)
    found = torch.zeros(len(action), dtype=torch.bool)
    for share in slower:
        if bool(found.all()):
            break
        # All are tried every time: that is quicker than to take fewer of their observations each time.
        tried = action * torch.tensor([share, share, share, 1.0])
        free = ~gate.collides(situation, tried) & ~found
        chosen[free], found = tried[free], found | free
    return found, chosen


def _compared(gate: RolloutGate, verdict: GateVerdict, situation: Situation, known: Tensor) -> GateVerdict:
    """Let motions go that promise little, where hovering promises no more; not those that are not `known` (B,)."""
    low = (~verdict.send & ~verdict.collides & known).nonzero().squeeze(1)
    if not len(low):
        return verdict
    hover = gate.judge(situation[low], torch.zeros(len(low), 4))
    goes = ~(hover.expected_reward > verdict.expected_reward[low])
    return replace(verdict, send=verdict.send.index_copy(0, low, goes))
