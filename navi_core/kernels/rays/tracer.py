"""The seam between a field and its kernels: the C++ library, or its numba twin.

Both walk the same wide hierarchy and agree to the bit, at four lanes of C++. `NAVI_TRACER` (or the argument of
`Field`) chooses: `native` insists on C++, `numba` on the twin, `auto` takes C++ where there is a compiler.
"""

import ctypes
import logging
import os
from collections.abc import Callable
from typing import Any, Protocol

import numba
import numpy as np
import numpy.typing as npt
import torch

from navi_core.errors import ConfigError
from navi_core.kernels.bvh.clearance import scene_distance, scene_within
from navi_core.kernels.native.library import NativeUnavailableError, load_library
from navi_core.kernels.rays.cuda import CudaTracer
from navi_core.kernels.rays.packed import HIERARCHY_TYPES, PackedField
from navi_core.kernels.rays.tile import cast_tiles, tile_layout
from navi_core.kernels.structs import (
    Drone,
    Drones,
    Flights,
    Lookahead,
    LookaheadFlight,
    Observed,
    Panoramas,
    Rays,
    Rewards,
    Scenes,
    Sensor,
    Step,
    data_pointer,
)

TRACERS = ("auto", "native", "numba", "cuda")
"""Names of the tracers on the CPU; "cuda" is the work of the CUDA kernels, a ray at a time."""
LANES = (0, 4, 8, 16)
"""Rays that the native tracer takes at once: 0 for what suits the CPU, 4 anywhere, 8 AVX2, 16 AVX-512."""

Float32 = npt.NDArray[np.float32]
Int32 = npt.NDArray[np.int32]
Bool = npt.NDArray[np.bool_]

# Numba's dispatchers carry no signature that a type checker could follow through packed arguments.
_CAST: Callable[..., npt.NDArray[np.int64]] = cast_tiles
_DISTANCE: Callable[..., None] = scene_distance
_WITHIN: Callable[..., None] = scene_within

logger = logging.getLogger(__name__)
_noticed = False


class Tracer(Protocol):
    """What a field asks of its kernels. All arrays are C-contiguous; outputs are written in place."""

    name: str

    def cast(
        self, origins: Float32, directions: Float32, scene: Int32, max_distance: float,
        depth: Float32, label: Int32, valid: Bool,
    ) -> None:  # fmt: skip
        """Cast rays; a row of scene −1 is left alone."""

    def distance(self, points: Float32, scene: Int32, out: Float32) -> None:
        """Write the distance of each point to the surface [m]."""

    def within(self, points: Float32, scene: Int32, radius: float, out: Bool) -> None:
        """Write whether the surface is nearer than `radius` [m]."""


def build_tracer(
    packed: PackedField, name: str | None = None, threads: int = 0, device: torch.device | None = None
) -> Tracer | CudaTracer:
    """Return the kernels for a field.

    Args:
        packed: The field's arrays; kept, not copied where they already fit.
        name: One of `TRACERS`; None reads NAVI_TRACER, else "auto".
        threads: Threads of a call; 0 follows numba's setting.
        device: The CPU by default. On a CUDA device the name plays no part.

    Raises:
        ConfigError: An unknown name, or CUDA kernels that cannot be built.
        NativeUnavailableError: "native" was asked for and cannot be had.
    """
    wanted = name or os.environ.get("NAVI_TRACER") or "auto"
    if wanted not in TRACERS:
        raise ConfigError(f"unknown tracer {wanted!r}; allowed: {', '.join(TRACERS)} (argument or NAVI_TRACER)")
    if device is not None and device.type == "cuda":
        return CudaTracer(packed, device)
    if wanted == "cuda":
        return CudaTracer(packed, torch.device("cpu"))
    if wanted == "numba":
        return NumbaTracer(packed)
    try:
        return NativeTracer(packed, threads)
    except NativeUnavailableError as error:
        if wanted == "native":
            raise
        _notice(error)
        return NumbaTracer(packed)


def _notice(error: NativeUnavailableError) -> None:
    global _noticed
    if not _noticed:
        logger.warning("rays are cast by the slower numba kernels: %s", error)
        _noticed = True


class NumbaTracer:
    """The numba twin: needs no compiler and checks the C++ independently."""

    name = "numba"

    def __init__(self, packed: PackedField) -> None:
        self._hierarchy = packed.hierarchy
        planes, child, corners, ids, *rest = packed.hierarchy
        self._flat = (planes.reshape(-1), child.reshape(-1), corners.reshape(-1), ids.reshape(-1), *rest)
        self.work = np.zeros(2, np.int64)
        """(2,) nodes opened and leaves tested by the tiles of the last call of `cast`."""

    def cast(
        self, origins: Float32, directions: Float32, scene: Int32, max_distance: float,
        depth: Float32, label: Int32, valid: Bool,
    ) -> None:  # fmt: skip
        """See `Tracer`."""
        layout = tile_layout(directions[0])
        self.work = _CAST(*self._flat, *layout, origins, directions, scene, max_distance, depth, label, valid)

    def distance(self, points: Float32, scene: Int32, out: Float32) -> None:
        """See `Tracer`."""
        planes, child, corners, ids, _, bases, _ = self._hierarchy
        _DISTANCE(planes, child, corners, ids, bases, points, scene, out)

    def within(self, points: Float32, scene: Int32, radius: float, out: Bool) -> None:
        """See `Tracer`."""
        planes, child, corners, ids, _, bases, _ = self._hierarchy
        _WITHIN(planes, child, corners, ids, bases, points, scene, radius, out)


class NativeTracer:
    """The C++ kernels.

    Args:
        packed: The field's arrays.
        threads: Threads of a call; 0 follows numba's setting.
        lanes: One of `LANES`; a path that the CPU lacks gives way to the widest it has.

    Raises:
        NativeUnavailableError: The library cannot be built or loaded.
    """

    name = "native"

    def __init__(self, packed: PackedField, threads: int = 0, lanes: int = 0) -> None:
        self._library = load_library()
        self._threads = threads
        self._lanes = lanes
        self._arrays: list[npt.NDArray[Any]] = []
        self._hierarchy = self._pointers(packed.hierarchy, HIERARCHY_TYPES)
        self._packed = packed

    @property
    def lanes(self) -> int:
        """Rays taken at once: 16, 8 or 4."""
        widest = int(self._library.navi_lanes())
        return min(self._lanes or widest, widest)

    def cast(
        self, origins: Float32, directions: Float32, scene: Int32, max_distance: float,
        depth: Float32, label: Int32, valid: Bool, turns: Float32 | None = None,
    ) -> None:  # fmt: skip
        """See `Tracer`; `turns` (B, 2): cosine and sine of a yaw by which each row's directions are turned."""
        rays = _rays(origins, directions, scene, max_distance, depth, label, valid)
        turn = None if turns is None else turns.ctypes.data
        threads = self._thread_count()
        self._library.navi_cast(self._hierarchy, ctypes.byref(rays), turn, threads, self._lanes)

    def distance(self, points: Float32, scene: Int32, out: Float32) -> None:
        """See `Tracer`."""
        self._library.navi_distance(
            self._hierarchy, points.ctypes.data, scene.ctypes.data, len(points), out.ctypes.data, self._thread_count()
        )

    def within(self, points: Float32, scene: Int32, radius: float, out: Bool) -> None:
        """See `Tracer`."""
        self._library.navi_within(
            self._hierarchy, points.ctypes.data, scene.ctypes.data, len(points), radius, out.ctypes.data,
            self._thread_count(),
        )  # fmt: skip

    def read_panoramas(self, sensor: Sensor, panoramas: Panoramas) -> None:
        """Read panoramas from their hits, to the bits of a step."""
        parts = (ctypes.byref(part) for part in (sensor, panoramas))
        self._library.navi_read_panoramas(*parts, self._thread_count(), self._lanes)

    def fly(self, drone: Drone, flights: Flights) -> None:
        """Fly one decision in every row of `flights`."""
        self._library.navi_fly(self._hierarchy, ctypes.byref(drone), ctypes.byref(flights), self._thread_count())

    def fly_ahead(self, drone: Drone, flights: Flights, held: LookaheadFlight) -> None:
        """Fly the held action of every row of `flights` to its end."""
        parts = (ctypes.byref(part) for part in (drone, flights, held))
        self._library.navi_fly_ahead(self._hierarchy, *parts, self._thread_count())

    def explore(
        self, rewards: Rewards, position: torch.Tensor, yaw: torch.Tensor, scene: torch.Tensor, stamp: torch.Tensor
    ) -> torch.Tensor:
        """Count the visits of B rows of a table, and return their (B,) exploration terms without clearance."""
        terms = torch.empty(len(yaw))
        reals = (data_pointer(part, torch.float32) for part in (position, yaw))
        wholes = (data_pointer(part, torch.int64) for part in (scene, stamp))
        self._library.navi_explore(ctypes.byref(rewards), *reals, *wholes, terms.data_ptr(), len(yaw))
        return terms

    def scenes(self) -> Scenes:
        """Return this tracer's scenes as the C++ kernels know them; valid as long as the tracer."""
        return Scenes(hierarchies=ctypes.addressof(self._hierarchy), count=len(self._packed.frame))

    def remember(self, lookahead: Lookahead, drones: Drones, observed: Observed) -> None:
        """Count where drones are as visited, and what they see as seen."""
        parts = (ctypes.byref(part) for part in (lookahead, drones, observed))
        self._library.navi_remember(*parts, self._thread_count())

    def lookahead_terms(
        self,
        lookahead: Lookahead,
        drone: Drone,
        flights: Flights,
        held: LookaheadFlight,
        drones: Drones,
        terms: torch.Tensor,
    ) -> None:
        """Fly the held action of every row of `flights` to its end, and write the (B, 10) reward terms of that."""
        parts = (ctypes.byref(part) for part in (lookahead, drone, flights, held, drones))
        out = data_pointer(terms, torch.float32)
        self._library.navi_lookahead_terms(*parts, out, self._thread_count(), self._lanes)

    def step(self, step: Step) -> int:
        """Fly one decision of an environment.

        Returns:
            How many episodes ended, or -1 - the first row whose action is no number; then nothing has moved.
        """
        return int(self._library.navi_step(ctypes.byref(step), self._thread_count(), self._lanes))

    def _thread_count(self) -> int:
        return self._threads or numba.get_num_threads()

    def _pointers(self, arrays: tuple[npt.NDArray[Any], ...], types: tuple[type, ...]) -> ctypes.Array[ctypes.c_void_p]:
        """Return a C struct of pointers to the arrays, and keep the arrays alive."""
        kept: list[npt.NDArray[Any]] = [
            np.ascontiguousarray(array, dtype) for array, dtype in zip(arrays, types, strict=True)
        ]
        self._arrays += kept
        return (ctypes.c_void_p * len(kept))(*(array.ctypes.data for array in kept))


def _rays(
    origins: Float32, directions: Float32, scene: Int32, max_distance: float,
    depth: Float32, label: Int32, valid: Bool,
) -> Rays:  # fmt: skip
    rows, rays = depth.shape
    return Rays(
        origins.ctypes.data, directions.ctypes.data, scene.ctypes.data, rows, rays, int(len(directions) == 1),
        max_distance, depth.ctypes.data, label.ctypes.data, valid.ctypes.data,
    )  # fmt: skip
