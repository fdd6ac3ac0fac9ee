"""ctypes structures of the C++ kernels, read from the headers in csrc, which are their only declaration.

`layout_check` gives the C++ that proves every offset when the library is built.
"""

from __future__ import annotations

import ctypes
import re
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

from navi_core.errors import ConfigError
from navi_core.kernels.native.compiler_cache import SOURCES

if TYPE_CHECKING:
    import torch

_HEADERS = (
    "rays/views.h", "cuda/jobs.h", "step/dynamics.h", "step/panorama.h", "step/floor.h", "step/rewards.h",
    "step/steps.h", "step/lookahead.h",
)  # fmt: skip
_STRUCT = re.compile(r"^struct (\w+) \{\n(.*?)^\};", re.MULTILINE | re.DOTALL)
_FIELD = re.compile(r"^ *(?:const )?(\w+)(\*?) (\w+);", re.MULTILINE)
_TYPES: dict[str, Any] = {
    "double": ctypes.c_double,
    "int32_t": ctypes.c_int32,
    "int64_t": ctypes.c_int64,
    "uint64_t": ctypes.c_uint64,
}
_S = TypeVar("_S", bound=ctypes.Structure)
_NAMED: dict[str, type[ctypes.Structure]] = {}


@cache
def _declared() -> dict[str, str]:
    """Return the fields of each struct of the headers as they stand there."""
    text = "".join((SOURCES / name).read_text() for name in _HEADERS)
    return dict(_STRUCT.findall(re.sub(r"//.*", "", text)))


def _from_header(struct: type[_S]) -> type[_S]:
    """Give a class the fields of the struct in the namespace `navi` that it is named after."""
    # C++ keywords have an underscore behind them.
    struct._fields_ = [
        (name.rstrip("_"), ctypes.c_void_p if pointer else _TYPES.get(kind) or _NAMED[kind])
        for kind, pointer, name in _FIELD.findall(_declared()[struct.__name__])
    ]
    _NAMED[struct.__name__] = struct
    return struct


@_from_header
class Surface(ctypes.Structure):
    """Surface trees of all scenes, for CUDA."""


@_from_header
class Hierarchies(ctypes.Structure):
    """Wide hierarchies of all scenes."""


@_from_header
class Rays(ctypes.Structure):
    """R rays from each of B origins, and their hits."""

    @classmethod
    def of(
        cls,
        origins: torch.Tensor,
        directions: torch.Tensor,
        scene: torch.Tensor,
        max_distance: float,
        depth: torch.Tensor,
        label: torch.Tensor,
        valid: torch.Tensor,
    ) -> Rays:
        """Return the struct of contiguous tensors, which must outlive its use."""
        shared = int(len(directions) == 1)
        return cls(
            origins.data_ptr(), directions.data_ptr(), scene.data_ptr(), *depth.shape, shared, max_distance,
            depth.data_ptr(), label.data_ptr(), valid.data_ptr(),
        )  # fmt: skip


@_from_header
class Cast(ctypes.Structure):
    """Rays, and the order in which CUDA's threads take them."""


@_from_header
class Points(ctypes.Structure):
    """Points whose clearance is asked."""


@_from_header
class Drone(ctypes.Structure):
    """Dynamics of the drone."""


@_from_header
class Flights(ctypes.Structure):
    """Rows of a flight."""


@_from_header
class Sensor(ctypes.Structure):
    """Directions and bins of the panorama."""


@_from_header
class Floors(ctypes.Structure):
    """Floor grids of all scenes."""


@_from_header
class Rewards(ctypes.Structure):
    """Weights and tables of the reward terms."""


@_from_header
class Scenes(ctypes.Structure):
    """The scenes of a field."""


@_from_header
class Step(ctypes.Structure):
    """One decision of an environment."""


@_from_header
class Panoramas(ctypes.Structure):
    """Hits of B panoramas, and what is read from them."""


@_from_header
class LookaheadFlight(ctypes.Structure):
    """Several decisions with one held action."""


@_from_header
class Lookahead(ctypes.Structure):
    """The memory of N drones, from which reward terms of a flight are computed."""


@_from_header
class Drones(ctypes.Structure):
    """B of the N drones."""


@_from_header
class Observed(ctypes.Structure):
    """Full observations of the drones."""


def layout_check() -> str:
    """Return a C++ source that compiles only if every struct has the offsets and sizes of this module."""
    lines = ["#include <cstddef>", *(f'#include "{name}"' for name in _HEADERS)]
    for name, struct in _NAMED.items():
        lines.append(f'static_assert(sizeof(navi::{name}) == {ctypes.sizeof(struct)}, "{name}");')
        for _, _, field in _FIELD.findall(_declared()[name]):
            offset = getattr(struct, field.rstrip("_")).offset
            lines.append(f'static_assert(offsetof(navi::{name}, {field}) == {offset}, "{name}::{field}");')
    return "\n".join(lines) + "\n"


def data_pointer(tensor: torch.Tensor, dtype: torch.dtype) -> int:
    """Return the address of a tensor's data, for a field of a struct; the tensor must outlive its use.

    Raises:
        ConfigError: The kernels could not read it: another type, not contiguous, or not on the CPU.
    """
    if tensor.dtype != dtype or not tensor.is_contiguous() or tensor.device.type != "cpu":
        raise ConfigError(f"the kernels read contiguous {dtype} on the CPU, not {tensor.dtype} on {tensor.device}")
    return tensor.data_ptr()
