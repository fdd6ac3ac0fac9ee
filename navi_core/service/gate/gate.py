"""The gate: a proposed motion is flown in the distance field before it is sent.

From each drone's pose and velocity the drone's own dynamics fly the action for `substeps` (0.5 s), all drones in one
batch. SEND where no collision is predicted and the expected reward is above θ, else WAIT: the drone hovers.

The simulated drone is at least as fast as the real one (`world/lookahead/flight.py`). `world/lookahead/terms.py`
computes the reward terms of its motion.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from navi_core.config import REWARD_TERMS, EnvConfig, GateConfig
from navi_core.errors import ConfigError
from navi_core.service.gate.drone_state import Situation
from navi_core.world import Field
from navi_core.world.lookahead.flight import Start
from navi_core.world.lookahead.terms import FlightOutlook, Past, sampled

__all__ = ["COMPONENTS", "GateVerdict", "RolloutGate"]

COMPONENTS: dict[str, tuple[str, ...]] = {
    "clearance": ("clearance",),
    "progress": ("progress",),
    "novelty": ("exploration", "view_gain"),
    "starvation": ("starvation",),
}
"""Components of the expected reward, and the environment's terms that each is made of."""
_PAID_ONCE = ("clearance", "inspection", "collision", "view_gain")
"""Terms that a horizon pays as a whole; the others are paid by every decision."""
_FITS = 0.06
"""Mean error of the normalised depth up to which a scene is the one that a drone is in."""


@dataclass(frozen=True)
class GateVerdict:
    """What the gate found for B proposed motions.

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
        """Return that of some of the motions: (N,) places, or (B,) bool."""
        return self._each(lambda part: part[index])

    def where(self, index: Tensor, other: GateVerdict) -> GateVerdict:
        """Return the verdict with that of N other motions in the places (N,)."""
        return self._each(lambda ours, theirs: ours.index_copy(0, index, theirs), other)

    def _each(self, change: Callable[..., Tensor], *others: GateVerdict) -> GateVerdict:
        names = ("send", "collides", "expected_reward", "velocity")
        verdicts = (self, *others)
        parts = {name: change(*(getattr(verdict, name) for verdict in verdicts)) for name in names}
        return GateVerdict(
            components={name: change(*(verdict.components[name] for verdict in verdicts)) for name in self.components},
            **parts,
        )


class RolloutGate:
    """Simulates proposed motions of many drones at once.

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
        drone = e.dynamics.model_copy(update={"radius": e.dynamics.radius + c.margin})
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

    def begin(self, situation: Situation) -> Tensor:
        """Begin episodes: forget what the drones have seen, and find the scenes that they are in.

        Returns:
            (B,) scene of each; −1 where none looks like the observation. Such a drone is told to wait.

        Raises:
            ConfigError: A drone beyond the capacity.
        """
        self._check(situation.rows)
        self._past.forget(situation.rows)
        best, found = torch.full((len(situation),), _FITS), torch.full((len(situation),), -1)
        told = sampled(situation.obs, situation.place)[:, 0]
        for scene in range(self.field.num_scenes):
            index = torch.full((len(situation),), scene)
            there = self._outlook.look(situation.position, situation.yaw, index)
            error = (there.obs[:, 0] - told).abs().mean(dim=(1, 2))
            best, found = torch.minimum(best, error), torch.where(error < best, index, found)
        self._scene[situation.rows] = found
        return found

    def remember(self, situation: Situation) -> None:
        """Count where drones are as visited, and what they see as seen: once a decision, before motions are judged.

        Raises:
            ConfigError: A drone beyond the capacity.
        """
        self._check(situation.rows)
        self._outlook.remember(self._past, situation.rows, self._start(situation))

    def judge(self, situation: Situation, action: Tensor) -> GateVerdict:
        """Simulate one motion of each drone, which leaves no trace.

        Args:
            situation: Of B drones, remembered already.
            action: (B, 4) proposed, clamped to [−1, 1] here.

        Raises:
            ConfigError: A drone beyond the capacity.
        """
        rows = situation.rows
        self._check(rows)
        verdict = self._judged(self._past, rows, self._start(situation), action)
        known = self.knows(rows)
        # Of a drone in no known scene nothing is expected; what is no number moves nobody.
        return replace(
            verdict,
            send=verdict.send & known & action.isfinite().all(dim=1),
            expected_reward=torch.where(known, verdict.expected_reward, 0.0),
            components={name: torch.where(known, part, 0.0) for name, part in verdict.components.items()},
        )

    def collides(self, situation: Situation, action: Tensor) -> Tensor:
        """Return (B,) bool: which motions would collide within the horizon. Cheaper than `judge`, which tells more."""
        return self._outlook.foresee(self._start(situation), action).collided

    def validate(self, position: Tensor, yaw: Tensor, velocity: Tensor, action: Tensor, scene: Tensor) -> GateVerdict:
        """Simulate motions of the past from their poses alone, as drones that have seen nothing before.

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

    def reaches(self, place: tuple[float, float, float]) -> bool:
        """Tell whether a drone can be at a place [m], in any of the scenes."""
        here = torch.tensor([place], dtype=torch.float32)
        return any(bool(where.contains(here)) for where in self._outlook.maps)

    def scenes(self, rows: Tensor) -> Tensor:
        """Return the (B,) scenes that `begin` found, −1 for none."""
        return self._scene[rows]

    def knows(self, rows: Tensor) -> Tensor:
        """Return (B,) bool: which drones are in a scene that `begin` found."""
        return self._scene[rows] >= 0

    def _start(self, situation: Situation) -> Start:
        """Return where flights begin, in the first scene for drones that are in none."""
        s = situation
        return Start(s.position, _turned(s.yaw), s.velocity, self._scene[s.rows].clamp(min=0), s.obs, s.place)

    def _judged(self, past: Past, rows: Tensor, start: Start, action: Tensor) -> GateVerdict:
        # What is no number is sent by nobody; here it hovers.
        foreseen, terms = self._outlook.fly(past, rows, start, action.nan_to_num(0.0))
        scaled = terms * self._scale
        components = dict(zip(COMPONENTS, (scaled @ self._parts).unbind(dim=1)))
        expected = scaled.sum(dim=1)
        send = ~foreseen.collided & (expected > self.config.threshold)
        return GateVerdict(send, foreseen.collided, expected, components, foreseen.velocity)

    def _check(self, rows: Tensor) -> None:
        if len(rows) and not (int(rows.min()) >= 0 and int(rows.max()) < len(self._scene)):
            raise ConfigError(f"rows {int(rows.min())} to {int(rows.max())}; this gate knows {len(self._scene)}")


def _turned(yaw: Tensor) -> Tensor:
    """Return yaws within one turn: from outside they come with any number of turns, and either sign."""
    return torch.remainder(yaw, 2.0 * math.pi)
