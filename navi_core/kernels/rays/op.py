"""Custom torch operators `navi::…` for ray casts and distance queries, usable in compiled programs.

A field is not a tensor; the operators name it by a number that `register_field` gives out. The field must
outlive the programs that use its number. `cast_rays_out` overwrites what it is given: a program that is compiled
or captured then needs no memory of its own.
"""

import itertools
import weakref
from collections.abc import Callable
from types import SimpleNamespace
from typing import Protocol

import torch

from navi_core.errors import SceneError

_DEVICES = ("cpu", "cuda")


class RayField(Protocol):
    """Interface of a field that the operators call; `world.Field` implements it."""

    @property
    def cast_rays(self) -> Callable[..., object]:
        """Cast R rays from each of B origins, as `Field.cast_rays`."""

    def distance(self, points: torch.Tensor, scene_index: torch.Tensor) -> torch.Tensor:
        """Return the distance from each point to the nearest surface."""

    def within(self, points: torch.Tensor, scene_index: torch.Tensor, radius: float) -> torch.Tensor:
        """Collision query: return a bool mask of the points nearer than `radius` [m] to a surface."""


_fields: weakref.WeakValueDictionary[int, RayField] = weakref.WeakValueDictionary()
_numbers = itertools.count(1)


def register_field(field: RayField) -> int:
    """Register a field and return the new number by which the operators look it up."""
    number = next(_numbers)
    _fields[number] = field
    return number


def _field(number: int) -> RayField:
    owner = _fields.get(number)
    if owner is None:
        raise SceneError(f"field {number} no longer exists; keep a reference to it while programs use it")
    return owner


@torch.library.custom_op("navi::cast_rays_out", mutates_args=("depth", "semantic", "valid"), device_types=_DEVICES)
def cast_rays_out(
    origins: torch.Tensor,
    directions: torch.Tensor,
    scene_index: torch.Tensor,
    field: int,
    max_distance: float,
    elevations: int,
    depth: torch.Tensor,
    semantic: torch.Tensor,
    valid: torch.Tensor,
) -> None:
    """Cast R rays from each of B origins into given output tensors (operator `navi::cast_rays_out`).

    Args:
        origins: (B, 3) float32 [m].
        directions: (R, 3) or (B, R, 3) float32 unit vectors.
        scene_index: (B,) scene of each row.
        field: Number from `register_field`.
        max_distance: Range [m].
        elevations: Elevations of a panorama, or 0; see `Field.cast_rays`.
        depth: (B, R) float32 out [m].
        semantic: (B, R) int32 out.
        valid: (B, R) bool out.

    Raises:
        SceneError: The field is gone, or a shape does not fit.
    """
    hits = SimpleNamespace(depth=depth, semantic=semantic, valid=valid)
    _field(field).cast_rays(origins, directions, scene_index, max_distance, out=hits, elevations=elevations)


@cast_rays_out.register_fake
def _(*_: object) -> None:
    return None


@torch.library.custom_op("navi::distance", mutates_args=(), device_types=_DEVICES)
def distance(points: torch.Tensor, scene_index: torch.Tensor, field: int) -> torch.Tensor:
    """Operator `navi::distance`: (B,) float32 distance [m] of (B, 3) points to the surface, as `Field.distance`."""
    return _field(field).distance(points, scene_index)


@distance.register_fake
def _(points: torch.Tensor, *_: object) -> torch.Tensor:
    return points.new_empty(points.shape[:1], dtype=torch.float32)


@torch.library.custom_op("navi::within", mutates_args=(), device_types=_DEVICES)
def within(points: torch.Tensor, scene_index: torch.Tensor, field: int, radius: float) -> torch.Tensor:
    """Operator `navi::within`: (B,) bool, is the surface nearer than `radius` [m]? As `Field.within`."""
    return _field(field).within(points, scene_index, radius)


@within.register_fake
def _(points: torch.Tensor, *_: object) -> torch.Tensor:
    return points.new_empty(points.shape[:1], dtype=torch.bool)
