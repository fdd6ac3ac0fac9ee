"""Dynamics of the 4-DOF drone (forward, vertical, lateral, yaw), and dead reckoning from its own commands.

In flight a collision is checked at every physics substep. Dead reckoning integrates a pose without a map. The dynamics
are known, so the only surprise is a collision, which reverts a substep and stops the drone. A decision of n substeps
has 2ⁿ ways to be blocked. The drone finds out which one happened by matching scans: surfaces that it saw before must
lie where it sees them now.
"""

import math
from dataclasses import dataclass
from functools import cache

import numba
import numpy as np
import numpy.typing as npt
import torch

from navi_core.config import DynamicsConfig
from navi_core.kernels.native.library import Drone, Flights, data_pointer
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
        self._limits = torch.tensor([*config.max_speed, config.max_yaw_rate], dtype=torch.float32, device=field.device)
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
    ) -> Motion:
        """Integrate one decision (environment step) of B drones and return the new motion state.

        Args:
            position: (B, 3) [m].
            yaw: (B,) [rad].
            velocity: (B, 4) of the substep before.
            action: (B, 4), clamped to [−1, 1] here.
            front_distance: (B,) from `front_distance`, of the observation the action answers [m].
            scene_index: (B,).
        """
        step = self._step_tensors if self._tracer is None else self._step_native
        return step(position, yaw, velocity, action, front_distance, scene_index)

    def for_kernels(self) -> Drone:
        """Return the ctypes struct of the drone's dynamics for the C++ kernels; valid as long as these dynamics."""
        c = self.config
        return Drone(
            limits=data_pointer(self._limits, torch.float32),
            limiter_distance=c.limiter_distance,
            limiter_floor=c.limiter_floor,
            smoothing=c.smoothing,
            keep=1.0 - c.smoothing,
            substep=c.substep,
            radius=c.radius,
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
    ) -> Motion:
        c = self.config
        limit = (front_distance / c.limiter_distance).clamp(c.limiter_floor, 1.0)
        command = action.clamp(-1.0, 1.0) * self._limits
        command = torch.cat([command[:, :3] * limit[:, None], command[:, 3:]], dim=1)
        collided = torch.zeros_like(yaw, dtype=torch.bool)
        attempted = torch.zeros_like(yaw)
        for _ in range(c.steps_per_decision):
            moved = c.smoothing * command + (1.0 - c.smoothing) * velocity
            turned = torch.remainder(yaw + moved[:, 3] * c.substep, 2.0 * math.pi)
            target = position + body_to_world(moved, turned) * c.substep
            blocked = self.field.within(target, scene_index, c.radius)
            speed = linear_speed(moved)
            collided |= blocked
            attempted = torch.where(blocked, torch.maximum(attempted, speed), attempted)
            # A reverted substep keeps the whole former pose, yaw included.
            position = torch.where(blocked[:, None], position, target)
            yaw = torch.where(blocked, yaw, turned)
            velocity = torch.where(blocked[:, None], 0.0, moved)
        return Motion(position, yaw, velocity, collided, attempted)


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    """Convert a tensor to contiguous float32, as the kernels read it."""
    return tensor.detach().to(torch.float32).contiguous()


def _owned(tensor: torch.Tensor) -> torch.Tensor:
    """Return a contiguous float32 copy that the kernels may write to."""
    return tensor.detach().to(torch.float32, copy=True, memory_format=torch.contiguous_format)


PERIOD = 2.0 * math.pi

_TRUSTED_MISFIT = 0.02
"""Mean scan-matching error below which collision-free flight is accepted without a search [m]."""
_SUBSTEPS_TRIED = 6
"""Most substeps searched one by one for a collision; further ones are blocked together."""
_NEAR_SURFACE = 0.35
"""Clearance beyond radius and path length below which a collision is considered possible [m]."""

Floats = npt.NDArray[np.float64]


@numba.njit(cache=True)
def integrate(
    pose: Floats,
    velocity: Floats,
    command: Floats,
    blocked: int,
    substeps: int,
    dt: float,
    smoothing: float,
    out_pose: Floats,
    out_velocity: Floats,
) -> None:
    """Integrate pose and velocity over one decision (numba), as `Dynamics.step` does, with given blocked substeps.

    Args:
        pose: (4,) x, y, z [m], yaw [rad].
        velocity: (4,) forward, vertical, lateral [m/s], yaw rate [rad/s].
        command: (4,) commanded velocity, limiter applied.
        blocked: Bit k set: substep k is reverted.
        substeps: Substeps of a decision.
        dt: Their duration [s].
        smoothing: Share of the command in the new velocity.
        out_pose: (4,) written.
        out_velocity: (4,) written.
    """
    x, y, z, yaw = pose[0], pose[1], pose[2], pose[3]
    f, v, s, w = velocity[0], velocity[1], velocity[2], velocity[3]
    keep = 1.0 - smoothing
    for k in range(substeps):
        f = smoothing * command[0] + keep * f
        v = smoothing * command[1] + keep * v
        s = smoothing * command[2] + keep * s
        w = smoothing * command[3] + keep * w
        if (blocked >> k) & 1:
            f = v = s = w = 0.0
            continue
        yaw = (yaw + w * dt) % PERIOD
        sin, cos = math.sin(yaw), math.cos(yaw)
        x += (s * cos - f * sin) * dt
        y += v * dt
        z += (-f * cos - s * sin) * dt
    out_pose[0], out_pose[1], out_pose[2], out_pose[3] = x, y, z, yaw
    out_velocity[0], out_velocity[1], out_velocity[2], out_velocity[3] = f, v, s, w


@numba.njit(cache=True)
def _misfit(before: Floats, now: Floats, old: Floats, new: Floats) -> float:
    """Compute the scan-matching residual of two scans: mean range error [m], each cut at 0.5 m; −1 below 8 pairs.

    Args:
        before: (4,) pose of the old scan.
        now: (4,) supposed pose of the new one.
        old: (Az,) horizontal ranges [m], ≤ 0 at a miss.
        new: (Az,) the same, of the new scan.
    """
    bins = old.shape[0]
    total, count = 0.0, 0
    for i in range(bins):
        if old[i] <= 0.0 or old[i] > 8.0:
            continue
        angle = PERIOD * i / bins - before[3]
        px = before[0] + old[i] * math.sin(angle) - now[0]
        pz = before[2] - old[i] * math.cos(angle) - now[2]
        reach = math.hypot(px, pz)
        bearing = ((math.atan2(px, -pz) + now[3]) % PERIOD) / PERIOD * bins
        j = int(bearing) % bins
        a, b = new[j], new[(j + 1) % bins]
        # Across an edge there is no surface between two bins to compare with.
        if a <= 0.0 or b <= 0.0 or abs(a - b) > 0.3 * min(a, b):
            continue
        share = bearing - math.floor(bearing)
        # A plane's inverse range is nearly linear in the bearing.
        expected = 1.0 / ((1.0 - share) / a + share / b)
        total += min(abs(expected - reach), 0.5)
        count += 1
    return total / count if count >= 8 else -1.0


@numba.njit(cache=True)
def advance(
    pose: Floats,
    velocity: Floats,
    command: Floats,
    old: Floats,
    new: Floats,
    clearance: float,
    radius: float,
    substeps: int,
    dt: float,
    smoothing: float,
) -> None:
    """Update one row's dead-reckoned pose and velocity by one decision; scan matching decides about collisions.

    Args:
        pose: (4,) updated.
        velocity: (4,) updated.
        command: (4,) commanded velocity, limiter applied.
        old: (Az,) horizontal ranges before the decision, ≤ 0 for a miss [m].
        new: (Az,) those after it.
        clearance: Nearest surface seen before the decision [m].
        radius: Radius of the drone [m].
        substeps: Substeps of a decision.
        dt: Their duration [s].
        smoothing: Share of the command in the new velocity.
    """
    start, speed = pose.copy(), velocity.copy()
    best_pose, best_velocity = np.empty(4), np.empty(4)
    integrate(start, speed, command, 0, substeps, dt, smoothing, best_pose, best_velocity)
    way = math.sqrt((best_pose[0] - start[0]) ** 2 + (best_pose[1] - start[1]) ** 2 + (best_pose[2] - start[2]) ** 2)
    if clearance < radius + way + _NEAR_SURFACE:
        best = _misfit(start, best_pose, old, new)
        if best > _TRUSTED_MISFIT:
            tried_pose, tried_velocity = np.empty(4), np.empty(4)
            bits = min(substeps, _SUBSTEPS_TRIED)
            for pattern in range(1, 1 << bits):
                blocked = pattern
                if substeps > bits and (pattern >> (bits - 1)) & 1:
                    blocked |= ((1 << (substeps - bits)) - 1) << bits
                integrate(start, speed, command, blocked, substeps, dt, smoothing, tried_pose, tried_velocity)
                misfit = _misfit(start, tried_pose, old, new)
                # A collision must explain the scan clearly better than free flight does.
                if 0.0 <= misfit < 0.8 * best:
                    best = misfit
                    best_pose[:], best_velocity[:] = tried_pose, tried_velocity
    pose[:], velocity[:] = best_pose, best_velocity


@numba.njit(cache=True)
def reckon(
    pose: Floats,
    velocity: Floats,
    command: Floats,
    old: Floats,
    new: Floats,
    clearance: Floats,
    moving: npt.NDArray[np.bool_],
    radius: float,
    substeps: int,
    dt: float,
    smoothing: float,
) -> None:
    """Update the dead-reckoned poses of the rows (B, …) that are `moving`: `advance`, each row by itself."""
    for b in range(pose.shape[0]):
        if moving[b]:
            advance(
                pose[b], velocity[b], command[b], old[b], new[b], clearance[b], radius, substeps, dt, smoothing
            )  # fmt: skip
