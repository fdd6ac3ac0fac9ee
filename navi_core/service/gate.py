"""Safety gate: simulates a proposed motion in the distance field before it is sent.

The dynamics of the environment fly each action for `substeps` (0.5 s) from the drone's pose and velocity, all drones in
one batch. SEND where no collision is predicted and the expected reward is above θ, else WAIT: the drone hovers.

The simulated drone is at least as fast as the real one (`world/lookahead.py`, which also computes
the reward terms of its motion).

A policy would correct its course before the gate's horizon ends, but the gate simulates one action for all of it and
predicts a collision beside a wall. A deterministic policy would propose the same action again, and hover for ever.
Therefore `choose_action` tries a colliding motion again at lower speed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from navi_core.config import REWARD_TERMS, DynamicsConfig, EnvConfig, GateConfig
from navi_core.errors import ConfigError
from navi_core.world import Field
from navi_core.world.lookahead import FlightOutlook, Past, Start, sampled

COMPONENTS: dict[str, tuple[str, ...]] = {
    "clearance": ("clearance",),
    "progress": ("progress",),
    "novelty": ("exploration", "view_gain"),
    "starvation": ("starvation",),
}
"""Components of the expected reward, with the environment's reward terms that each sums."""
_PAID_ONCE = ("clearance", "inspection", "collision", "view_gain")
"""Reward terms that count once per horizon; the others are summed over its decisions."""
_FITS = 0.06
"""Largest mean absolute error of normalised depth, over rays that hit, at which an observation matches a scene."""
_LEAST_HITS = 4
"""Least number of the 24 x 6 coarse rays that must hit; a forward camera sees ten of them."""


@dataclass(frozen=True)
class DroneState:
    """State of a batch of B drones at one time step.

    Attributes:
        rows: (B,) numbers of the drones, below the gate's capacity, each at most once.
        position: (B, 3) [m].
        yaw: (B,) [rad].
        velocity: (B, 4) body velocity [m/s, rad/s].
        obs: (N, 3, Az, El) observations.
        obs_index: (B,) observation of each drone; None where there is one for each, in their order.
    """

    rows: Tensor
    position: Tensor
    yaw: Tensor
    velocity: Tensor
    obs: Tensor
    obs_index: Tensor | None = None

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: Tensor) -> DroneState:
        """Select drones by (M,) indices or a (B,) bool mask; their observations are not copied."""
        obs_index = torch.arange(len(self)) if self.obs_index is None else self.obs_index
        rows, position, yaw, velocity = (x[index] for x in (self.rows, self.position, self.yaw, self.velocity))
        return DroneState(rows, position, yaw, velocity, self.obs, obs_index[index])


@dataclass(frozen=True)
class GateVerdict:
    """Verdict of the safety gate on a batch of B proposed actions.

    Attributes:
        send: (B,) bool; else the drone waits.
        collides: (B,) bool, a collision within the horizon.
        expected_reward: (B,) per decision.
        components: (B,) by name, see `COMPONENTS`; with the weights' other terms they add up to the expected reward.
        velocity: (B, 4) body velocity after one decision of the motion [m/s, rad/s].
    """

    send: Tensor
    collides: Tensor
    expected_reward: Tensor
    components: dict[str, Tensor]
    velocity: Tensor

    def __getitem__(self, index: Tensor) -> GateVerdict:
        """Select verdicts by (N,) indices or a (B,) bool mask."""
        return self._each(lambda part: part[index])

    def where(self, index: Tensor, other: GateVerdict) -> GateVerdict:
        """Return a copy in which the verdicts at `index` (N,) are replaced by those of `other`."""
        return self._each(lambda mine, others: mine.index_copy(0, index, others), other)

    def _each(self, change: Callable[..., Tensor], *others: GateVerdict) -> GateVerdict:
        names = ("send", "collides", "expected_reward", "velocity")
        verdicts = (self, *others)
        parts = {name: change(*(getattr(verdict, name) for verdict in verdicts)) for name in names}
        return GateVerdict(
            components={name: change(*(verdict.components[name] for verdict in verdicts)) for name in self.components},
            **parts,
        )


class RolloutGate:
    """Safety gate: simulates the proposed actions of many drones in one batch, and decides whether each is sent.

    Args:
        field: Scenes that the drones may be in, on the CPU.
        env: The environment's observation, dynamics and reward.
        config: Horizon, threshold, margin.
        capacity: Drones whose visited cells and seen floor are remembered.

    Raises:
        SceneError: A scene without free space.
    """

    def __init__(
        self, field: Field, env: EnvConfig | None = None, config: GateConfig | None = None, capacity: int = 256
    ) -> None:
        self.field, self.env, self.config = field, env or EnvConfig(), config or GateConfig()
        e, c = self.env, self.config
        drone = _largest(e, c.margin)
        self._outlook = FlightOutlook(field, e, drone, c.substeps)
        self._past = self._outlook.past(capacity)
        decisions = c.substeps / e.dynamics.steps_per_decision
        self._scene = torch.full((capacity,), -1)
        self._scale = torch.tensor(
            [c.weights.get(name, 0.0) / (decisions if name in _PAID_ONCE else 1) for name in REWARD_TERMS]
        )

        self._parts = torch.tensor(
            [[float(name in parts) for parts in COMPONENTS.values()] for name in REWARD_TERMS], dtype=torch.float32
        )

    def begin(self, drones: DroneState) -> Tensor:
        """Begin episodes: clear the drones' coverage maps, and localise each drone in a scene by its depth image.

        Returns:
            (B,) scene of each; −1 where none matches the observation, or hardly a ray hits. Such a drone waits.

        Raises:
            ConfigError: A drone beyond the capacity.
        """
        self._check(drones.rows)
        self._past.forget(drones.rows)
        best, found = torch.full((len(drones),), _FITS), torch.full((len(drones),), -1)
        depth, _, valid = sampled(drones.obs, drones.obs_index).unbind(1)
        # Rays that a limited sensor does not measure, or not that far, say nothing about the scene.
        hit = valid > 0
        count = hit.sum(dim=(1, 2))
        for scene in range(self.field.num_scenes):
            index = torch.full((len(drones),), scene)
            there = self._outlook.look(drones.position, drones.yaw, index)
            error = ((there.obs[:, 0] - depth).abs() * hit).sum(dim=(1, 2)) / count.clamp(min=1)
            error = torch.where(count < _LEAST_HITS, torch.inf, error)
            best, found = torch.minimum(best, error), torch.where(error < best, index, found)
        self._scene[drones.rows] = found
        return found

    def remember(self, drones: DroneState) -> None:
        """Update the drones' coverage maps (visited cells, seen floor): once a decision, before motions are judged.

        Raises:
            ConfigError: A drone beyond the capacity.
        """
        self._check(drones.rows)
        self._outlook.remember(self._past, drones.rows, self._start(drones))

    def judge(self, drones: DroneState, action: Tensor) -> GateVerdict:
        """Simulate one action of each drone and return the verdicts; the gate's maps are not changed.

        Args:
            drones: State of B drones, remembered already.
            action: (B, 4) proposed, clamped to [−1, 1] here.

        Raises:
            ConfigError: A drone beyond the capacity.
        """
        rows = drones.rows
        self._check(rows)
        verdict = self._judged(self._past, rows, self._start(drones), action)
        known = self.knows(rows)
        # A drone in no known scene expects nothing, and a non-finite action is not sent.
        return replace(
            verdict,
            send=verdict.send & known & action.isfinite().all(dim=1),
            expected_reward=torch.where(known, verdict.expected_reward, 0.0),
            components={name: torch.where(known, part, 0.0) for name, part in verdict.components.items()},
        )

    def collides(self, drones: DroneState, action: Tensor) -> Tensor:
        """Predict collisions within the horizon, (B,) bool; cheaper than `judge`."""
        return self._outlook.foresee(self._start(drones), action).collided

    def validate(self, position: Tensor, yaw: Tensor, velocity: Tensor, action: Tensor, scene: Tensor) -> GateVerdict:
        """Re-evaluate past actions from their poses alone, with empty coverage maps.

        Args:
            position: (B, 3) [m].
            yaw: (B,) [rad].
            velocity: (B, 4) [m/s, rad/s].
            action: (B, 4).
            scene: (B,) scene of each.
        """
        yaw = _turned(yaw)
        start = Start(position, yaw, velocity, scene, self._outlook.look(position, yaw, scene).obs)
        rows, past = torch.arange(len(start)), self._outlook.past(len(start))
        self._outlook.remember(past, rows, start)
        return self._judged(past, rows, start, action)

    def reaches(self, position: tuple[float, float, float]) -> bool:
        """Return whether a position [m] lies in the reachable free space of any scene."""
        point = torch.tensor([position], dtype=torch.float32)
        return any(bool(space.contains(point)) for space in self._outlook.maps)

    def scenes(self, rows: Tensor) -> Tensor:
        """Return the scene index of each drone (B,) found by `begin`, −1 for none."""
        return self._scene[rows]

    def knows(self, rows: Tensor) -> Tensor:
        """Return a (B,) bool mask: drones whose scene `begin` found."""
        return self._scene[rows] >= 0

    def _start(self, drones: DroneState) -> Start:
        """Build the start states of the simulated flights; drones without a scene start in the first one."""
        s = drones
        return Start(s.position, _turned(s.yaw), s.velocity, self._scene[s.rows].clamp(min=0), s.obs, s.obs_index)

    def _judged(self, past: Past, rows: Tensor, start: Start, action: Tensor) -> GateVerdict:
        # A non-finite action is never sent; here it hovers.
        foreseen, terms = self._outlook.fly(past, rows, start, action.nan_to_num(0.0))
        scaled = terms * self._scale
        components = dict(zip(COMPONENTS, (scaled @ self._parts).unbind(dim=1)))
        expected = scaled.sum(dim=1)
        send = ~foreseen.collided & (expected > self.config.threshold)
        return GateVerdict(send, foreseen.collided, expected, components, foreseen.velocity)

    def _check(self, rows: Tensor) -> None:
        if len(rows) and not (int(rows.min()) >= 0 and int(rows.max()) < len(self._scene)):
            raise ConfigError(f"rows {int(rows.min())} to {int(rows.max())}; this gate knows {len(self._scene)}")


def _largest(env: EnvConfig, margin: float) -> DynamicsConfig:
    """Return the dynamics with the largest radius and speed limits of the environment's bodies, and a margin [m]."""
    d, bodies = env.dynamics, env.bodies
    fastest = {
        "max_speed": tuple(bodies.speed[1] * limit for limit in d.max_speed),
        "max_yaw_rate": bodies.speed[1] * d.max_yaw_rate,
    }
    return d.model_copy(update={"radius": max((d.radius, *bodies.radius)) + margin, **fastest})


def _turned(yaw: Tensor) -> Tensor:
    """Wrap yaw angles to [0, 2π) rad: the wire allows any number of turns, of either sign."""
    return torch.remainder(yaw, 2.0 * math.pi)


@dataclass(frozen=True)
class ActionChoice:
    """Commands of a batch of B drones after the safety gate, with the verdicts.

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
    """Filter actions through the safety gate; actions that would collide are replaced by slower ones.

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
    """Find each action's first collision-free scaling by `slower`: (N,) bool found, (N, 4) actions, hover if not."""
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
    """Override rejections for low reward unless hovering's expected reward is higher; of drones `known` (B,) alone."""
    low = (~verdict.send & ~verdict.collides & known).nonzero().squeeze(1)
    if not len(low):
        return verdict
    hover = gate.judge(drones[low], torch.zeros(len(low), 4))
    sent = ~(hover.expected_reward > verdict.expected_reward[low])
    return replace(verdict, send=verdict.send.index_copy(0, low, sent))
