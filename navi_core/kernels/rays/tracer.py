"""Interface between a field and its ray-casting kernels (tracer): the C++ library, or its numba twin.

Both walk the same wide hierarchy and agree to the bit, at four lanes of C++. `NAVI_TRACER` (or the argument of
`Field`) chooses: `native` insists on C++, `numba` on the twin, `auto` takes C++ where there is a compiler.
"""

import ctypes
import logging
import os
from collections.abc import Callable
from functools import cache
from typing import Any, Protocol

import numba
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from navi_core.errors import ConfigError
from navi_core.kernels.bvh.hierarchy import closest_triangles
from navi_core.kernels.native.library import (
    Drone,
    Drones,
    Flights,
    Hierarchies,
    Lookahead,
    LookaheadFlight,
    NativeUnavailableError,
    Observed,
    Panoramas,
    Rays,
    Scenes,
    Sensor,
    Step,
    data_pointer,
    load_library,
)
from navi_core.kernels.rays.cuda import CudaTracer
from navi_core.kernels.rays.packed import PackedField
from navi_core.kernels.rays.tile import cast_tiles, tile_layout

TRACERS = ("auto", "native", "numba", "cuda")
"""Names of the CPU tracers; "cuda" emulates the CUDA kernels, a ray at a time."""
LANES = (0, 4, 8, 16)
"""SIMD lanes of the native tracer: 0 for what suits the CPU, 4 anywhere, 8 AVX2, 16 AVX-512."""

# Numba's dispatchers carry no signature that a type checker could follow through packed arguments.
_CAST: Callable[..., npt.NDArray[np.int64]] = cast_tiles
_CLOSEST: Callable[..., tuple[npt.NDArray[np.float64], npt.NDArray[np.int32]]] = closest_triangles

logger = logging.getLogger(__name__)


class Tracer(Protocol):
    """Interface of ray-casting kernels. All tensors are contiguous and on its device; outputs are written in place."""

    @property
    def name(self) -> str:
        """Name of the tracer: one of `TRACERS`, except "auto"."""

    def cast(
        self, origins: Tensor, directions: Tensor, scene: Tensor, max_distance: float, elevations: int,
        depth: Tensor, semantic: Tensor, valid: Tensor,
    ) -> None:  # fmt: skip
        """Cast R rays from each of B origins; arguments as of `CudaTracer.cast`. A row of scene −1 is skipped."""

    def distance(self, points: Tensor, scene: Tensor, out: Tensor) -> None:
        """Write the distance of each point to the surface [m]."""

    def within(self, points: Tensor, scene: Tensor, radius: float, out: Tensor) -> None:
        """Collision query: write a (Q,) bool mask of the points nearer than `radius` [m] to a surface."""


def build_tracer(
    packed: PackedField, name: str | None = None, threads: int = 0, device: torch.device | None = None
) -> Tracer:
    """Build the tracer (ray-casting kernels) of a field.

    Args:
        packed: The field's arrays; kept, not copied where they already fit.
        name: One of `TRACERS`; None reads NAVI_TRACER, else "auto".
        threads: Threads of a call; 0 follows numba's setting.
        device: The CPU by default. On a CUDA device the name plays no part.

    Raises:
        ConfigError: An unknown name, or CUDA kernels that cannot be built.
        NativeUnavailableError: "native" was requested and is not available.
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
        _notice(str(error))
        return NumbaTracer(packed)


@cache
def _notice(reason: str) -> None:
    """Log a warning, once for each reason why the C++ tracer is not used."""
    logger.warning("rays are cast by the slower numba kernels: %s", reason)


class NumbaTracer:
    """Numba implementation of `Tracer`: needs no compiler and checks the C++ independently."""

    name = "numba"

    def __init__(self, packed: PackedField) -> None:
        planes, child, corners, ids, _, bases, _ = packed.hierarchy
        self._boxes = planes, child, corners, ids, bases
        self._flat = (*(array.reshape(-1) for array in (planes, child, corners, ids)), *packed.hierarchy[4:])
        self.work = np.zeros(2, np.int64)
        """(2,) nodes opened and leaves tested by the tiles of the last call of `cast`."""

    def cast(
        self, origins: Tensor, directions: Tensor, scene: Tensor, max_distance: float, _elevations: int,
        depth: Tensor, semantic: Tensor, valid: Tensor, /
    ) -> None:  # fmt: skip
        """Cast rays and write depth, semantic id and validity; implements `Tracer.cast`."""
        layout, out = tile_layout(directions[0].numpy()), (part.numpy() for part in (depth, semantic, valid))
        rays = (part.numpy() for part in (origins, directions, scene))
        self.work = _CAST(*self._flat, *layout, *rays, max_distance, *out)

    def distance(self, points: Tensor, scene: Tensor, out: Tensor) -> None:
        """Write each point's distance to the nearest surface [m]; implements `Tracer.distance`."""
        out.numpy()[:] = np.sqrt(_CLOSEST(*self._boxes, points.numpy(), scene.numpy(), np.inf)[0])

    def within(self, points: Tensor, scene: Tensor, radius: float, out: Tensor) -> None:
        """Write whether a surface lies within a radius of each point; implements `Tracer.within`."""
        limit = radius * radius
        out.numpy()[:] = _CLOSEST(*self._boxes, points.numpy(), scene.numpy(), limit)[0] < limit


class NativeTracer:
    """C++ implementation of `Tracer`, with the programs of environment step and lookahead.

    Args:
        packed: The field's arrays.
        threads: Threads of a call; 0 follows numba's setting.
        lanes: One of `LANES`; a path that the CPU lacks gives way to the widest it has.

    Raises:
        NativeUnavailableError: The library cannot be built or loaded.
    """

    name = "native"

    def __init__(self, packed: PackedField, threads: int = 0, lanes: int = 0) -> None:
        self._library, self._packed = load_library(), packed
        self._threads, self._lanes = threads, lanes
        self._hierarchies = Hierarchies(*(array.ctypes.data for array in packed.hierarchy))

    @property
    def lanes(self) -> int:
        """Number of SIMD lanes (rays traced at once): 16, 8 or 4."""
        widest = int(self._library.navi_lanes())
        return min(self._lanes or widest, widest)

    def cast(
        self, origins: Tensor, directions: Tensor, scene: Tensor, max_distance: float, _elevations: int,
        depth: Tensor, semantic: Tensor, valid: Tensor, turns: Tensor | None = None,
    ) -> None:  # fmt: skip
        """Cast rays, as `Tracer.cast`; `turns` (B, 2): cosine and sine of a yaw that rotates each row's directions."""
        rays = Rays.of(origins, directions, scene, max_distance, depth, semantic, valid)
        turn = None if turns is None else turns.data_ptr()
        self._call("cast", self._hierarchies, rays, turn, lanes=True)

    def distance(self, points: Tensor, scene: Tensor, out: Tensor) -> None:
        """Write each point's distance to the nearest surface [m]; implements `Tracer.distance`."""
        self._call("distance", self._hierarchies, points.data_ptr(), scene.data_ptr(), len(points), out.data_ptr())

    def within(self, points: Tensor, scene: Tensor, radius: float, out: Tensor) -> None:
        """Write whether a surface lies within a radius of each point; implements `Tracer.within`."""
        where = points.data_ptr(), scene.data_ptr(), len(points)
        self._call("within", self._hierarchies, *where, radius, out.data_ptr())

    def scenes(self) -> Scenes:
        """Return the ctypes struct of the scenes; valid as long as the tracer."""
        return Scenes(hierarchies=ctypes.addressof(self._hierarchies), count=len(self._packed.frame))

    def read_panoramas(self, sensor: Sensor, panoramas: Panoramas) -> None:
        """Compute the observations and features of panoramas from their ray hits, bit-equal to those of a step."""
        self._call("read_panoramas", sensor, panoramas, lanes=True)

    def fly(self, drone: Drone, flights: Flights) -> None:
        """Integrate the dynamics of one decision in every row of `flights`."""
        self._call("fly", self._hierarchies, drone, flights)

    def fly_ahead(self, drone: Drone, flights: Flights, held: LookaheadFlight) -> None:
        """Simulate the held action of every row of `flights` to its end."""
        self._call("fly_ahead", self._hierarchies, drone, flights, held)

    def remember(self, lookahead: Lookahead, drones: Drones, observed: Observed) -> None:
        """Update visit counts and coverage maps of the given drones from their current poses and observations."""
        self._call("remember", lookahead, drones, observed)

    def lookahead_terms(
        self, lookahead: Lookahead, drone: Drone, flights: Flights, held: LookaheadFlight, drones: Drones, terms: Tensor
    ) -> None:
        """Simulate the held action of every row of `flights` to its end, and write the (B, 10) reward terms there."""
        out = data_pointer(terms, torch.float32)
        self._call("lookahead_terms", lookahead, drone, flights, held, drones, out, lanes=True)

    def step(self, step: Step) -> int:
        """Run one environment step, all rows.

        Returns:
            Number of ended episodes, or -1 - the first row with a non-finite action; then nothing has moved.
        """
        return int(self._call("step", step, lanes=True))

    def _call(self, name: str, *arguments: ctypes.Structure | float | None, lanes: bool = False) -> Any:  # noqa: ANN401 (as the function returns)
        """Call a library function with structs by reference, the thread count, and the lanes where it takes them."""
        given = (ctypes.byref(part) if isinstance(part, ctypes.Structure) else part for part in arguments)
        threads = self._threads or numba.get_num_threads()
        return getattr(self._library, f"navi_{name}")(*given, threads, *([self._lanes] if lanes else []))
