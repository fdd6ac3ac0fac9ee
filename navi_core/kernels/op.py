"""`navi::cast_rays` as a torch custom operator, so that compiled programs may cast rays.

A field is not a tensor; the operator names it by a number that `register_field` gives out. The field
must outlive the programs that use its number.
"""

from __future__ import annotations

import itertools
import weakref
from typing import Any

import torch

from navi_core.errors import SceneError

__all__ = ["cast_rays", "register_field"]

_fields: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
_numbers = itertools.count(1)


def register_field(field: Any) -> int:
    """Return a new number under which the operator finds a field (anything with `cast_rays` as `world.Field`)."""
    number = next(_numbers)
    _fields[number] = field
    return number


@torch.library.custom_op("navi::cast_rays", mutates_args=(), device_types="cpu")
def cast_rays(
    origins: torch.Tensor, directions: torch.Tensor, scene_index: torch.Tensor, field: int, max_distance: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Cast R rays from each of B origins.

    Args:
        origins: (B, 3) float32 [m].
        directions: (R, 3) or (B, R, 3) float32 unit vectors.
        scene_index: (B,) scene of each row.
        field: Number from `register_field`.
        max_distance: Range [m].

    Returns:
        depth (B, R) float32 [m], semantic (B, R) int32, valid (B, R) bool.

    Raises:
        SceneError: The field is gone, or a shape does not fit.
    """
    owner = _fields.get(field)
    if owner is None:
        raise SceneError(f"field {field} no longer exists; keep a reference to it while programs use it")
    hits = owner.cast_rays(origins, directions, scene_index, max_distance)
    return hits.depth, hits.semantic, hits.valid


@cast_rays.register_fake
def _(
    origins: torch.Tensor, directions: torch.Tensor, scene_index: torch.Tensor, field: int, max_distance: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    shape = (origins.shape[0], directions.shape[-2])
    return (
        origins.new_empty(shape, dtype=torch.float32),
        origins.new_empty(shape, dtype=torch.int32),
        origins.new_empty(shape, dtype=torch.bool),
    )
