"""Batched ray casts and distance queries over many scenes; each row of a batch names its scene."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, cast

import numba
import numpy as np
import numpy.typing as npt
import torch

from navi_core.errors import ConfigError, SceneError
from navi_core.kernels.rays import op
from navi_core.kernels.rays.cuda import CudaTracer, cuda_device
from navi_core.kernels.rays.tracer import NativeTracer, build_tracer
from navi_core.scenes import Scene
from navi_core.world.arguments import described, known_ids, metres, scene_list, whole_number
from navi_core.world.packing import pack_field


def cos_sin(yaw: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return cosine and sine of yaws [rad] in their own precision, with the bits of the kernels.

    They are computed in double and rounded once, so that the kernels, whose mathematical library is another one, get
    the same bits.
    """
    exact = yaw.to(torch.float64)
    return exact.cos().to(yaw.dtype), exact.sin().to(yaw.dtype)


_LOG = logging.getLogger("navi.world")
UNKNOWN_SURFACE = "surface"
"""Name of semantic id 1: a surface without a name."""
_WHOLE = (torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8)
MOST_THREADS = 1024
"""Upper limit of kernel threads: a mistyped number must not take the process down."""


@cache
def _warn_fewer_threads(threads: int, most: int) -> None:
    """Log a warning, once for each thread count beyond the limit that numba was imported with."""
    _LOG.warning(
        "threads %d: kernels in numba take %d, the cores that this process is given (NUMBA_NUM_THREADS sets another "
        "number); those in C++ take %d",
        threads,
        most,
        threads,
    )


@dataclass(frozen=True)
class RayHits:
    """Hits of a batch of rays: depth, semantic id, validity.

    Attributes:
        depth: (B, R) float32 distance along the ray [m]; `max_distance` at a miss.
        semantic: (B, R) int32 corpus-wide id; 0 at a miss.
        valid: (B, R) bool, true at a hit.
    """

    depth: torch.Tensor
    semantic: torch.Tensor
    valid: torch.Tensor

    @classmethod
    def empty(cls, rows: int, rays: int, device: torch.device | None = None) -> RayHits:
        """Allocate uninitialised (rows, rays) hits, to be written by `Field.cast_rays(out=…)`."""
        return cls(*(torch.empty(rows, rays, dtype=d, device=device) for d in (torch.float32, torch.int32, torch.bool)))


class Field:
    """Geometry of a list of scenes for batched queries: ray casts, surface distance, clearance.

    Scenes answer exactly for their triangles; those of a version 1 file are made of its distances and lie within a
    voxel of the surface. Both kinds may live in one field.

    A field takes and returns tensors of its device. On CUDA nothing waits for the device, so values
    are not looked at: a row whose scene does not exist, or that holds a number that is not finite,
    meets nothing (a miss, an infinite distance, not within). On the CPU such rows are refused.

    Args:
        scenes: At least one scene.
        device: "cpu", or "cuda" and "cuda:N" where torch sees a GPU.
        threads: Threads of the kernels at most; 0 keeps numba's setting, by default every core. Few rays are cast
            by one thread: the C++ kernels wake another one for each 8,192 of a call.
        vocabulary: Corpus-wide semantic ids by name. By default they are made of the scenes' own
            names: 1 is the unknown surface, the rest follow sorted by name.
        tracer: On the CPU "native" (C++), "numba", "auto": C++ if a compiler is found, or
            "cuda": the work of the CUDA kernels, a ray at a time, to check a program for CUDA without a
            GPU. None reads NAVI_TRACER, else "auto". CUDA has its own kernels.

    Raises:
        ConfigError: No scene, a device without kernels, or kernels that cannot be built.
    """

    def __init__(
        self,
        scenes: Sequence[Scene],
        device: str | torch.device = "cpu",
        threads: int = 0,
        vocabulary: Mapping[str, int] | None = None,
        tracer: str | None = None,
    ) -> None:
        self.scenes = scene_list(scenes)
        try:
            self.device = torch.device(device)
        except (RuntimeError, TypeError):
            raise ConfigError(f"unknown device {device!r}; allowed: 'cpu', 'cuda', 'cuda:N'") from None
        if self.device.type not in ("cpu", "cuda"):
            raise ConfigError(f"no ray kernels for device {str(device)!r}; allowed: 'cpu', 'cuda'")
        whole_number("threads", threads, 0, MOST_THREADS)
        if self.device.type == "cuda":
            self.device = cuda_device(self.device)
        if threads:
            most: int = numba.config.NUMBA_NUM_THREADS  # type: ignore[attr-defined]
            numba.set_num_threads(min(threads, most))
            if threads > most:
                _warn_fewer_threads(threads, most)
        self.vocabulary = known_ids(vocabulary) if vocabulary is not None else _vocabulary(self.scenes)
        self.semantic_names = {number: name for name, number in self.vocabulary.items()}
        self._made = (str(self.device), threads, self.vocabulary, tracer)
        self.packed = pack_field(self.scenes, self.vocabulary)
        """The arrays that the kernels read."""
        self._tracer = build_tracer(self.packed, tracer, threads, self.device)
        self._on_host = not isinstance(self._tracer, CudaTracer)
        self.number = op.register_field(self)
        """Number by which the operators `navi::…` find this field."""
        # The first call starts the kernels' thread pool, which resets the number of torch's threads where both
        # share an OpenMP runtime; sums would then round differently from one run to the next.
        torch_threads = torch.get_num_threads()
        self.within(torch.zeros(1, 3, device=self.device), torch.zeros(1, dtype=torch.int32, device=self.device), 0.1)
        torch.set_num_threads(torch_threads)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the field as its constructor arguments: the kernels hold addresses and are rebuilt on load."""
        return type(self), (self.scenes, *self._made)

    def __deepcopy__(self, memo: dict[int, Any]) -> Field:
        """Return the field itself, as it is immutable."""
        return self

    @property
    def tracer(self) -> str:
        """Name of the tracer (ray-casting kernels) in use: "native", "numba" or "cuda"."""
        return self._tracer.name

    @property
    def native(self) -> NativeTracer | None:
        """The C++ tracer, for callers that pass it whole programs; None where other kernels are in use."""
        return self._tracer if isinstance(self._tracer, NativeTracer) else None

    @property
    def nbytes(self) -> int:
        """Memory size of the arrays that the kernels in use read [bytes]; the scenes themselves are not counted."""
        return self.packed.nbytes

    @property
    def num_scenes(self) -> int:
        """Number of scenes S."""
        return len(self.scenes)

    def bounds(self, index: int) -> npt.NDArray[np.float64]:
        """Return the (2, 3) axis-aligned bounds [m] of a scene's surface (not of its padded cube)."""
        whole_number("scene index", index, 0, self.num_scenes - 1)
        return np.asarray(self.scenes[index].mesh_bounds, np.float64)

    def lid(self, index: int, limit: float) -> float:
        """Return the height [m] above which no drone rises in a scene, see `DynamicsConfig.height_limit`."""
        low, high = self.bounds(index)[:, 1]
        return float(min(low + limit, high))

    def volume(self, index: int) -> float:
        """Return the volume of a scene's axis-aligned bounding box [m³]."""
        low, high = self.bounds(index)
        return float(np.prod(np.maximum(high - low, 1e-6)))

    def cast_rays(
        self,
        origins: torch.Tensor,
        directions: torch.Tensor,
        scene_index: torch.Tensor,
        max_distance: float = 100.0,
        out: RayHits | None = None,
        elevations: int = 0,
        yaw: torch.Tensor | None = None,
    ) -> RayHits:
        """Cast R rays from each of B origins and return the first hits.

        Args:
            origins: (B, 3) [m].
            directions: (R, 3), the same for all rows, or (B, R, 3); unit vectors.
            scene_index: (B,) scene of each row.
            max_distance: Range [m].
            out: Hits of an earlier call with the same shape, to be overwritten; saves fresh memory.
            elevations: Elevations of a panorama whose rays lie azimuth by azimuth. A hint: CUDA then gives
                neighbouring rays to neighbouring threads. 0 where the rays have no order.
            yaw: (B,) by which each row's directions are turned, counter-clockwise seen from above [rad]; the C++
                tracer turns shared directions without writing them out for every row. None: as they are.

        Returns:
            Hits of shape (B, R); `out` where it was given.

        Raises:
            SceneError: A shape or device does not fit; on the CPU also a scene index out of range and
                numbers that are not finite.
        """
        reach = float(max_distance) if torch.compiler.is_compiling() else metres(max_distance, "max_distance")
        turns = None
        if yaw is not None:
            if not isinstance(yaw, torch.Tensor) or yaw.shape != (len(origins),) or not yaw.is_floating_point():
                raise SceneError(f"yaw is {described(yaw)}, expected a tensor of floats ({len(origins)},)")
            turns = torch.stack(cos_sin(yaw), dim=1)
            if torch.compiler.is_compiling() or self.native is None:
                directions, turns = _turned(directions, turns), None
        if torch.compiler.is_compiling():
            hits = out or RayHits.empty(len(origins), directions.shape[-2], origins.device)
            to = hits.depth, hits.semantic, hits.valid
            op.cast_rays_out(origins, directions, scene_index, self.number, reach, elevations, *to)
            return hits
        origin = self._points(origins, "origins")
        scene = self.rows(scene_index, len(origin))
        ray = self._directions(directions, len(origin))
        hits = self._outputs((len(origin), ray.shape[1]), out)
        if self._on_host and not math.isfinite(
            float(origin.sum()) + float(ray.sum()) + (0.0 if turns is None else float(turns.sum()))
        ):
            raise SceneError("origins or directions hold NaN or infinite numbers; no ray can be walked from there")
        if turns is None or self.native is None:
            self._tracer.cast(origin, ray, scene, reach, elevations, hits.depth, hits.semantic, hits.valid)
        else:
            self.native.cast(origin, ray, scene, reach, elevations, hits.depth, hits.semantic, hits.valid, turns)
        return hits

    def distance(self, points: torch.Tensor, scene_index: torch.Tensor) -> torch.Tensor:
        """Return the unsigned distance from each point to the nearest surface.

        Args:
            points: (B, 3) [m].
            scene_index: (B,) scene of each point.

        Returns:
            (B,) float32 [m], exact for the triangles.
        """
        if torch.compiler.is_compiling():
            return cast(torch.Tensor, op.distance(points, scene_index, self.number))
        point = self._finite(self._points(points, "points"))
        scene = self.rows(scene_index, len(point))
        out = torch.empty(len(point), dtype=torch.float32, device=self.device)
        self._tracer.distance(point, scene, out)
        return out

    def within(self, points: torch.Tensor, scene_index: torch.Tensor, radius: float) -> torch.Tensor:
        """Collision query: (B,) bool, is the surface nearer than `radius` [m], 0 or more? Arguments as `distance`."""
        if torch.compiler.is_compiling():
            return cast(torch.Tensor, op.within(points, scene_index, self.number, float(radius)))
        reach = metres(radius, "radius")
        point = self._finite(self._points(points, "points"))
        out = torch.empty(len(point), dtype=torch.bool, device=self.device)
        self._tracer.within(point, self.rows(scene_index, len(point)), reach, out)
        return out

    def _points(self, points: torch.Tensor, name: str) -> torch.Tensor:
        if not isinstance(points, torch.Tensor) or points.ndim != 2 or points.shape[1] != 3:
            raise SceneError(f"{name} is {described(points)}, expected a tensor (B, 3)")
        return self._here(points, name).to(torch.float32).contiguous()

    def _finite(self, points: torch.Tensor) -> torch.Tensor:
        """Validate on the CPU that points are finite and return them; on a device they are not looked at."""
        if self._on_host and not np.isfinite(points.numpy()).all():
            raise SceneError("points hold NaN or infinite numbers; nothing has a distance from there")
        return points

    def _directions(self, directions: torch.Tensor, rows: int) -> torch.Tensor:
        ray = directions[None] if isinstance(directions, torch.Tensor) and directions.ndim == 2 else directions
        fits = isinstance(ray, torch.Tensor) and ray.ndim == 3 and ray.shape[2] == 3 and ray.shape[0] in (1, rows)
        if not fits:
            raise SceneError(f"directions is {described(directions)}, expected a tensor (R, 3) or ({rows}, R, 3)")
        return self._here(ray, "directions").to(torch.float32).contiguous()

    def rows(self, scene_index: torch.Tensor, rows: int) -> torch.Tensor:
        """Validate the scene indices of B rows and return them as (B,) int32.

        Raises:
            SceneError: Another number of rows, or (on the CPU) a scene that is not there.
        """
        if not isinstance(scene_index, torch.Tensor) or scene_index.dtype not in _WHOLE:
            raise SceneError(f"scene_index is {described(scene_index)}, expected a tensor of whole numbers ({rows},)")
        scene = self._here(scene_index, "scene_index").reshape(-1)
        if len(scene) != rows:
            raise SceneError(f"scene_index has {len(scene)} entries for {rows} rows")
        if rows and self._on_host:
            low, high = int(scene.numpy().min()), int(scene.numpy().max())
            if low < 0 or high >= self.num_scenes:
                raise SceneError(f"scene index {low}..{high} outside 0..{self.num_scenes - 1}")
        return scene.to(torch.int32).contiguous()

    def _here(self, tensor: torch.Tensor, name: str) -> torch.Tensor:
        if tensor.device != self.device:
            raise SceneError(f"{name} on {tensor.device}, the field on {self.device}; move it with .to(field.device)")
        if tensor.is_complex() or tensor.layout != torch.strided:
            raise SceneError(f"{name} is {tensor.layout} {tensor.dtype}, expected a dense tensor of real numbers")
        return tensor.detach()

    def _outputs(self, shape: tuple[int, int], out: RayHits | None) -> RayHits:
        if out is None:
            return RayHits.empty(*shape, self.device)
        if not all(isinstance(getattr(out, part, None), torch.Tensor) for part in ("depth", "semantic", "valid")):
            raise SceneError(f"out is {described(out)}, expected RayHits.empty(rows, rays)")
        for tensor, dtype in ((out.depth, torch.float32), (out.semantic, torch.int32), (out.valid, torch.bool)):
            fits = tuple(tensor.shape) == shape and tensor.dtype == dtype and tensor.device == self.device
            if not fits or not tensor.is_contiguous():
                raise SceneError(
                    f"outputs {tuple(tensor.shape)} {tensor.dtype} on {tensor.device} do not fit {shape} {dtype} "
                    f"on {self.device}, or are not contiguous"
                )
        return out


def _turned(directions: torch.Tensor, turns: torch.Tensor) -> torch.Tensor:
    """Rotate ray directions (R, 3) or (B, R, 3) by yaws, given as (B, 2) cosine and sine; returns (B, R, 3)."""
    # Yaw turns −Z towards −X: (x, z) → (x·cos ψ + z·sin ψ, −x·sin ψ + z·cos ψ).
    cos, sin = turns[:, 0, None], turns[:, 1, None]
    x, y, z = directions.expand(len(turns), -1, -1).unbind(-1)
    return torch.stack([x * cos + z * sin, y, z * cos - x * sin], dim=-1)


def _vocabulary(scenes: Sequence[Scene]) -> dict[str, int]:
    names = sorted({name for scene in scenes for name in scene.semantic_names.values()} - {UNKNOWN_SURFACE})
    return {UNKNOWN_SURFACE: 1} | {name: number for number, name in enumerate(names, start=2)}
