"""Dynamics of the 4-DOF drone (forward, vertical, lateral, yaw): first-order response, limits, collisions, bodies.

A collision is checked at every physics substep; it reverts the substep and stops the drone. A pose without a map:
`world.reckoning`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

import torch

from navi_core.config import DynamicsConfig, EnvConfig
from navi_core.kernels.native.library import Drone, Flights, data_pointer
from navi_core.world.counter_random import Purpose, uniform
from navi_core.world.field import Field, cos_sin


@dataclass(frozen=True)
class Motion:
    """Drone state after one decision (environment step): pose, velocity, collision.

    Attributes:
        position: (B, 3) [m].
        yaw: (B,) [rad] in [0, 2π).
        velocity: (B, 4) forward, vertical, lateral [m/s], yaw rate [rad/s].
        collided: (B,) bool, true where at least one substep was reverted.
        attempted_speed: (B,) largest linear speed of a reverted substep [m/s]; 0 without collision.
    """

    position: torch.Tensor
    yaw: torch.Tensor
    velocity: torch.Tensor
    collided: torch.Tensor
    attempted_speed: torch.Tensor


def body_to_world(velocity: torch.Tensor, yaw: torch.Tensor) -> torch.Tensor:
    """Rotate body velocities (B, ≥3: forward, vertical, lateral) into the world frame: (B, 3) [m/s]."""
    forward, vertical, lateral = velocity[:, 0], velocity[:, 1], velocity[:, 2]
    c, s = cos_sin(yaw)
    return torch.stack([lateral * c - forward * s, vertical, -forward * c - lateral * s], dim=1)


def linear_speed(velocity: torch.Tensor) -> torch.Tensor:
    """Return the (B,) linear speed [m/s] of body or world velocities (B, ≥3)."""
    squared = velocity[:, 0] ** 2 + velocity[:, 1] ** 2 + velocity[:, 2] ** 2
    # Torch's float32 root may be an ulp off; rounded from double it is the kernels'.
    return squared.to(torch.float64).sqrt().to(velocity.dtype)


@cache
def limiter_bins(azimuth_bins: int, elevation_bins: int, band_degrees: float) -> tuple[int, int, int]:
    """Return the azimuth and elevation bins of a panorama that the speed limiter reads.

    Args:
        azimuth_bins: Az.
        elevation_bins: El.
        band_degrees: Half-width of its elevation band [degrees].

    Returns:
        Azimuth bins on each side of the heading's seam, first and last+1 elevation bin.
    """
    angle = torch.linspace(math.pi / 2, -math.pi / 2, elevation_bins, dtype=torch.float64).abs()
    # A band narrower than the bins still looks through those nearest to the horizon.
    widest = max(math.radians(band_degrees), float(angle.min()))
    band = (angle <= widest + 1e-9).nonzero()
    return max(azimuth_bins // 8, 1), int(band[0]), int(band[-1]) + 1


def front_distance(
    depth: torch.Tensor, valid: torch.Tensor, azimuth_bins: int, bins: tuple[int, int, int]
) -> torch.Tensor:
    """Return the (B,) nearest valid depth within `limiter_bins` [m], infinite where no ray hits.

    Args:
        depth: (B, Az·El) [m].
        valid: (B, Az·El) bool.
        azimuth_bins: Az.
        bins: From `limiter_bins`.
    """
    sector, low, high = bins
    d = torch.where(valid, depth, torch.inf).view(len(depth), azimuth_bins, -1)[:, :, low:high]
    return torch.minimum(d[:, :sector].amin(dim=(1, 2)), d[:, azimuth_bins - sector :].amin(dim=(1, 2)))


class Dynamics:
    """Drone dynamics: integrate actions over the physics substeps of a decision, with collision checks.

    Args:
        field: Scenes whose clearance is queried.
        config: Limits, smoothing, substeps, radius.
        kernels: Fly by the C++ kernels where the field has them, else by tensor operations; the bits are the same.
    """

    def __init__(self, field: Field, config: DynamicsConfig, *, kernels: bool = True) -> None:
        self._tracer = field.native if kernels else None
        self.field = field
        self.config = config
        self.radii: tuple[float, ...] = (config.radius,)
        """Radii that bodies of rows may have, as float32 holds them [m]."""
        self._limits = torch.tensor([*config.max_speed, config.max_yaw_rate], dtype=torch.float32, device=field.device)
        linear, yaw = config.changes
        self._changes = torch.tensor([linear, linear, linear, yaw], dtype=torch.float32, device=field.device)
        self._lids = None
        if config.height_limit is not None:
            lids = [field.lid(scene, config.height_limit) for scene in range(field.num_scenes)]
            self._lids = torch.tensor(lids, dtype=torch.float32, device=field.device)
        self._drone = self.for_kernels() if self._tracer is not None else None

    def front_distance(self, depth: torch.Tensor, valid: torch.Tensor, azimuth_bins: int) -> torch.Tensor:
        """Return the (B,) nearest valid depth ahead [m], infinite where no ray hits.

        Ahead is the first and last Az//8 azimuth bins, at elevations within the limiter's band.

        Args:
            depth: (B, Az·El) [m].
            valid: (B, Az·El) bool.
            azimuth_bins: Az.
        """
        elevations = depth.shape[1] // azimuth_bins
        bins = limiter_bins(azimuth_bins, elevations, self.config.limiter_elevation_degrees)
        return front_distance(depth, valid, azimuth_bins, bins)

    def step(
        self,
        position: torch.Tensor,
        yaw: torch.Tensor,
        velocity: torch.Tensor,
        action: torch.Tensor,
        front_distance: torch.Tensor,
        scene_index: torch.Tensor,
        bodies: torch.Tensor | None = None,
    ) -> Motion:
        """Integrate one decision (environment step) of B drones and return the new motion state.

        Args:
            position: (B, 3) [m].
            yaw: (B,) [rad].
            velocity: (B, 4) of the substep before.
            action: (B, 4), clamped to [−1, 1] here.
            front_distance: (B,) from `front_distance`, of the observation the action answers [m].
            scene_index: (B,).
            bodies: (B, 3) factor of the limits, radius [m], smoothing of each row; None: the drone's own.
        """
        step = self._step_tensors if self._tracer is None else self._step_native
        return step(position, yaw, velocity, action, front_distance, scene_index, bodies)

    def for_kernels(self) -> Drone:
        """Return the ctypes struct of the drone's dynamics for the C++ kernels; valid as long as these dynamics."""
        c = self.config
        return Drone(
            limits=data_pointer(self._limits, torch.float32),
            limiter_distance=c.limiter_distance,
            limiter_floor=c.limiter_floor,
            smoothing=c.smoothing,
            keep=1.0 - c.smoothing,
            linear_change=c.changes[0],
            yaw_change=c.changes[1],
            substep=c.substep,
            radius=c.radius,
            lids=None if self._lids is None else data_pointer(self._lids, torch.float32),
            lid=math.inf,
            substeps=c.steps_per_decision,
        )

    def _step_native(
        self,
        position: torch.Tensor,
        yaw: torch.Tensor,
        velocity: torch.Tensor,
        action: torch.Tensor,
        front_distance: torch.Tensor,
        scene_index: torch.Tensor,
        bodies: torch.Tensor | None,
    ) -> Motion:
        position, yaw, velocity = (_owned(x) for x in (position, yaw, velocity))
        motion = Motion(position, yaw, velocity, torch.empty_like(yaw, dtype=torch.bool), torch.empty_like(yaw))
        real = {"action": _plain(action), "front_distance": _plain(front_distance), "position": position, "yaw": yaw}
        real |= {"velocity": velocity, "attempted": motion.attempted_speed}
        rows = self.field.rows(scene_index, len(yaw))
        flights = Flights(
            **{name: data_pointer(x, torch.float32) for name, x in real.items()},
            scene=data_pointer(rows, torch.int32),
            collided=data_pointer(motion.collided, torch.bool),
            bodies=None if bodies is None else data_pointer(bodies, torch.float32),
            rows=len(yaw),
        )
        assert self._tracer is not None
        assert self._drone is not None
        self._tracer.fly(self._drone, flights)
        return motion

    def _step_tensors(
        self,
        position: torch.Tensor,
        yaw: torch.Tensor,
        velocity: torch.Tensor,
        action: torch.Tensor,
        front_distance: torch.Tensor,
        scene_index: torch.Tensor,
        bodies: torch.Tensor | None,
    ) -> Motion:
        c = self.config
        limit = (front_distance / c.limiter_distance).clamp(c.limiter_floor, 1.0)
        limits = self._limits
        share: float | torch.Tensor = c.smoothing
        keep: float | torch.Tensor = 1.0 - c.smoothing
        if bodies is not None:
            limits, share = limits * bodies[:, :1], bodies[:, 2:]
            keep = (1.0 - bodies[:, 2:].to(torch.float64)).to(torch.float32)
        command = action.clamp(-1.0, 1.0) * limits
        command = torch.cat([command[:, :3] * limit[:, None], command[:, 3:]], dim=1)
        collided = torch.zeros_like(yaw, dtype=torch.bool)
        attempted = torch.zeros_like(yaw)
        for _ in range(c.steps_per_decision):
            moved = share * command + keep * velocity
            moved = torch.minimum(torch.maximum(moved, velocity - self._changes), velocity + self._changes)
            turned = torch.remainder(yaw + moved[:, 3] * c.substep, 2.0 * math.pi)
            target = position + body_to_world(moved, turned) * c.substep
            if self._lids is not None:
                top = torch.maximum(self._lids[scene_index.to(torch.int64)], position[:, 1])
                over = target[:, 1] > top
                height = torch.where(over, top, target[:, 1])
                target = torch.stack([target[:, 0], height, target[:, 2]], dim=1)
                rise = torch.where(over, 0.0, moved[:, 1])
                moved = torch.stack([moved[:, 0], rise, moved[:, 2], moved[:, 3]], dim=1)
            blocked = self._blocked(target, scene_index, bodies)
            speed = linear_speed(moved)
            collided |= blocked
            attempted = torch.where(blocked, torch.maximum(attempted, speed), attempted)
            # A reverted substep keeps the whole former pose, yaw included.
            position = torch.where(blocked[:, None], position, target)
            yaw = torch.where(blocked, yaw, turned)
            velocity = torch.where(blocked[:, None], 0.0, moved)
        return Motion(position, yaw, velocity, collided, attempted)

    def _blocked(self, target: torch.Tensor, scene: torch.Tensor, bodies: torch.Tensor | None) -> torch.Tensor:
        """Return the (B,) mask of rows whose surface lies within their radius."""
        if bodies is None:
            return self.field.within(target, scene, self.config.radius)
        blocked = torch.zeros(len(target), dtype=torch.bool, device=target.device)
        for radius in self.radii:
            near = self.field.within(target, scene, radius)
            blocked |= near & (bodies[:, 1] == radius)
        return blocked


class Bodies:
    """Bodies of an environment's rows, drawn anew for each episode: functions of (seed, row, episode).

    Args:
        config: Ranges, and the drone's own body.
        rows: (B,) int64 keys of the rows.

    Attributes:
        current: (B, 3) factor of the limits, radius [m], smoothing, updated in place; None where all are the drone's.
    """

    def __init__(self, config: EnvConfig, rows: torch.Tensor) -> None:
        self._config, self._rows = config, rows
        self.radii = torch.tensor(config.bodies.radius or (config.dynamics.radius,), device=rows.device)
        self.current = torch.ones(len(rows), 3, device=rows.device) if config.bodies.drawn else None

    def take(self, seed: int, episode: torch.Tensor) -> None:
        """Set the bodies to those of the episodes (B,)."""
        if self.current is None:
            return
        c, own = self._config.bodies, self._config.dynamics.smoothing
        draw = [uniform(seed, Purpose.BODY, self._rows, episode, part) for part in range(3)]
        low, high = c.smoothing or (own, own)
        radius = self.radii[(draw[1] * len(self.radii)).to(torch.int64)]
        speed = c.speed[0] + draw[0] * (c.speed[1] - c.speed[0])
        smoothing = low + draw[2] * (high - low)
        self.current.copy_(torch.stack([speed.to(radius), radius, smoothing.to(radius)], dim=1))

    def subset(self, rows: torch.Tensor) -> Bodies:
        """Return the bodies of a subset of the rows, with a copy of their state."""
        subset = Bodies(self._config, self._rows[rows])
        if self.current is not None:
            subset.current = self.current[rows]
        return subset


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    """Convert a tensor to contiguous float32, as the kernels read it."""
    return tensor.detach().to(torch.float32).contiguous()


def _owned(tensor: torch.Tensor) -> torch.Tensor:
    """Return a contiguous float32 copy that the kernels may write to."""
    return tensor.detach().to(torch.float32, copy=True, memory_format=torch.contiguous_format)
