"""Action candidates of the gate: the policy's motion and, where that would collide, the same motion slower.

A policy would correct its course before the gate's horizon ends, but the gate simulates one action for all of it and
predicts a collision beside a wall. A deterministic policy would propose the same action again, and hover for ever.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from navi_core.service.gate.gate import DroneState, GateVerdict, RolloutGate


@dataclass(frozen=True)
class ActionChoice:
    """Actions of B drones after the gate.

    Attributes:
        proposed: Verdict on the proposed motions; `send` only where a motion is flown unchanged.
        flown: Verdict on the flown motions, perhaps slower; a drone whose motion is not sent hovers.
        command: (B, 4) actions to be flown.
        velocity: (B, 4) body velocity after the decision [m/s, rad/s].
    """

    proposed: GateVerdict
    flown: GateVerdict
    command: Tensor
    velocity: Tensor


def choose_action(gate: RolloutGate, drones: DroneState, action: Tensor, slower: Sequence[float] = ()) -> ActionChoice:
    """Judge the actions of some drones, and replace those that would collide by slower ones.

    Args:
        gate: Knows the drones since `begin`; it remembers their state.
        drones: State of B drones.
        action: (B, 4) proposed.
        slower: Shares of the translation with which a colliding motion is tried again; the first that does not
            collide is judged. A motion of low reward then waits only where hovering earns more. Empty: a proposed
            motion passes unchanged, or hovers.
    """
    gate.remember(drones)
    proposed = flown = gate.judge(drones, action)
    command = action
    if slower:
        known = gate.knows(drones.rows) & action.isfinite().all(dim=1)
        index = (proposed.collides & known).nonzero().squeeze(1)
        colliding = drones[index]
        found, slowed = _fastest_free(gate, colliding, action[index], slower)
        changed = index[found]
        if len(changed):
            command = action.index_copy(0, changed, slowed[found])
            flown = proposed.where(changed, gate.judge(colliding, slowed)[found])
        flown = _compared_with_hover(gate, flown, drones, known)
        proposed = replace(proposed, send=flown.send.index_fill(0, changed, False))
    sent = flown.send[:, None]
    # A hovering drone has all but stopped after one decision.
    return ActionChoice(proposed, flown, torch.where(sent, command, 0.0), torch.where(sent, flown.velocity, 0.0))


def _fastest_free(
    gate: RolloutGate, drones: DroneState, action: Tensor, slower: Sequence[float]
) -> tuple[Tensor, Tensor]:
    """Return (N,) bool, a slower motion does not collide, and (N, 4) the fastest such motion, else hovering."""
    action, chosen = action.clamp(-1.0, 1.0), torch.zeros_like(action)
    found = torch.zeros(len(action), dtype=torch.bool)
    for share in slower:
        if bool(found.all()):
            break
        # All are tried every time: that is quicker than selecting the observations of fewer.
        tried = action * torch.tensor([share, share, share, 1.0])
        free = ~gate.collides(drones, tried) & ~found
        chosen[free], found = tried[free], found | free
    return found, chosen


def _compared_with_hover(gate: RolloutGate, verdict: GateVerdict, drones: DroneState, known: Tensor) -> GateVerdict:
    """Send motions of low reward where hovering earns no more; only those that are `known` (B,)."""
    low = (~verdict.send & ~verdict.collides & known).nonzero().squeeze(1)
    if not len(low):
        return verdict
    hover = gate.judge(drones[low], torch.zeros(len(low), 4))
    sent = ~(hover.expected_reward > verdict.expected_reward[low])
    return replace(verdict, send=verdict.send.index_copy(0, low, sent))
