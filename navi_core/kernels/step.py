"""What the C++ step of an environment reads and writes: the structs of csrc/steps.h, field by field.

Every field has eight bytes: a pointer, a whole number or a double. `world/native_step.py` fills them in.
"""

from __future__ import annotations

import ctypes
from typing import Any

import torch

from navi_core.errors import ConfigError

__all__ = [
    "Drone", "Drones", "Flights", "Floors", "Horizon", "Observed", "Outlook", "Rewards", "Scenes", "Sensor", "Step",
    "check_layout", "described_by",
]  # fmt: skip

_POINTER, _WHOLE, _REAL = ctypes.c_void_p, ctypes.c_int64, ctypes.c_double


def _fields(kind: Any, names: str) -> list[tuple[str, Any]]:
    return [(name, kind) for name in names.split()]


class Drone(ctypes.Structure):
    """`navi::Drone` of csrc/dynamics.h."""

    _fields_ = [
        *_fields(_POINTER, "limits"),
        *_fields(_REAL, "limiter_distance limiter_floor smoothing keep substep radius"),
        *_fields(_WHOLE, "substeps"),
    ]


class Flights(ctypes.Structure):
    """`navi::Flights` of csrc/dynamics.h."""

    _fields_ = [
        *_fields(_POINTER, "action front scene position yaw velocity collided attempted"),
        *_fields(_WHOLE, "rows"),
    ]


class Horizon(ctypes.Structure):
    """`navi::Horizon` of csrc/horizon.h."""

    _fields_ = [
        *_fields(_POINTER, "obs place"),
        *_fields(_WHOLE, "azimuths elevations side low high"),
        *_fields(_REAL, "log_range"),
        *_fields(_POINTER, "legs"),
        *_fields(_WHOLE, "count"),
        *_fields(_POINTER, "path soon clearance"),
    ]


class Sensor(ctypes.Structure):
    """`navi::Sensor` of csrc/panorama.h."""

    _fields_ = [
        *_fields(_POINTER, "directions"),
        *_fields(_WHOLE, "azimuths elevations"),
        *_fields(_REAL, "range scale"),
        *_fields(_WHOLE, "limiter_side limiter_low limiter_high ahead horizon_first horizon_last"),
        *_fields(_REAL, "horizon_cos view_radius"),
    ]


class Floors(ctypes.Structure):
    """`navi::Floors` of csrc/floor.h."""

    _fields_ = [
        *_fields(_POINTER, "fan origin shape levels reachable"),
        *_fields(_WHOLE, "rays cells storeys"),
        *_fields(_REAL, "cell"),
    ]


class Rewards(ctypes.Structure):
    """`navi::Rewards` of csrc/rewards.h."""

    _fields_ = [
        *_fields(_POINTER, "weights low edge shape band visits"),
        *_fields(_WHOLE, "cells"),
        *_fields(_REAL, "max_speed"),
    ]


class Scenes(ctypes.Structure):
    """`navi::Scenes` of csrc/steps.h."""

    _fields_ = [*_fields(_POINTER, "hierarchies"), *_fields(_WHOLE, "count")]


class Outlook(ctypes.Structure):
    """`navi::Outlook` of csrc/outlook.h."""

    _fields_ = [
        ("scenes", Scenes),
        ("sensor", Sensor),
        ("floors", Floors),
        ("rewards", Rewards),
        *_fields(_POINTER, "seen shares azimuths elevations"),
        *_fields(_REAL, "near start"),
        *_fields(_POINTER, "band"),
        *_fields(_REAL, "log_range decision"),
    ]


class Drones(ctypes.Structure):
    """`navi::Drones` of csrc/outlook.h."""

    _fields_ = [*_fields(_POINTER, "rows scene position yaw"), *_fields(_WHOLE, "count")]


class Observed(ctypes.Structure):
    """`navi::Observed` of csrc/outlook.h."""

    _fields_ = [*_fields(_POINTER, "obs"), *_fields(_WHOLE, "azimuths elevations")]


class Step(ctypes.Structure):
    """`navi::Step` of csrc/steps.h."""

    _fields_ = [
        ("scenes", Scenes),
        *_fields(_WHOLE, "rows"),
        ("drone", Drone),
        ("sensor", Sensor),
        ("floors", Floors),
        ("rewards", Rewards),
        *_fields(_POINTER, "row_keys"),
        ("spawn_key", ctypes.c_uint64),
        *_fields(_WHOLE, "episodes_per_scene max_steps"),
        *_fields(_REAL, "void_starvation"),
        *_fields(_WHOLE, "void_grace"),
        *_fields(_POINTER, "pool_count"),
        *_fields(_WHOLE, "pool_size"),
        *_fields(_POINTER, "pool_body pool_floor"),
        *_fields(_POINTER, "body episode age length scene seen attempted"),
        *_fields(_POINTER, "action"),
        *_fields(_POINTER, "obs position yaw speed reward terms episode_return episode_length scene_index"),
        *_fields(_POINTER, "next_scene slot truncated void collided"),
    ]


def described_by(tensor: torch.Tensor, dtype: torch.dtype) -> int:
    """Return the address of a tensor's data, for a field of a struct; the tensor must outlive its use.

    Raises:
        ConfigError: The kernels could not read it: another type, not contiguous, or not on the CPU.
    """
    if tensor.dtype != dtype or not tensor.is_contiguous() or tensor.device.type != "cpu":
        raise ConfigError(f"the kernels read contiguous {dtype} on the CPU, not {tensor.dtype} on {tensor.device}")
    return tensor.data_ptr()


def check_layout(library: ctypes.CDLL) -> None:
    """Make sure that the library was built for the structs of this module.

    Raises:
        ConfigError: It was not.
    """
    for number, struct in enumerate((Step, Outlook, Drone, Flights, Horizon, Drones, Observed, Rewards)):
        expected, found, name = ctypes.sizeof(struct), int(library.navi_struct_bytes(number)), struct.__name__
        if found != expected:
            raise ConfigError(f"the kernels' {name} has {found} bytes, this program's {expected}; clear the cache")
