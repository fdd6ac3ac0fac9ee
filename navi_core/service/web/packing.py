"""What the page is sent: one header and the arrays that belong to it, in one binary message.

Layout: u32 little-endian length of the header, the header as JSON, then each array's bytes in C order, little-endian,
padded to 8 bytes. The header's `arrays` say where each one lies: name, dtype, shape, and offset after the header.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["pack_message"]

_DTYPES = ("float32", "uint8", "uint16")
"""What a page has typed arrays for, and needs."""


def pack_message(kind: str, facts: Mapping[str, Any], arrays: Mapping[str, npt.NDArray[Any]] | None = None) -> bytes:
    """Return the bytes of a message.

    Args:
        kind: What the page does with it.
        facts: Plain values; numbers that are not finite become null.
        arrays: float32, uint8 or uint16.

    Raises:
        TypeError: An array of another type.
    """
    places, parts, offset = [], [], 0
    for name, array in (arrays or {}).items():
        if array.dtype.name not in _DTYPES:
            raise TypeError(f"array {name} is {array.dtype.name}; a page takes {', '.join(_DTYPES)}")
        data = np.ascontiguousarray(array).astype(array.dtype.newbyteorder("<"), copy=False).tobytes()
        places.append({"name": name, "dtype": array.dtype.name, "shape": list(array.shape), "offset": offset})
        padding = -len(data) % 8
        parts += [data, b"\0" * padding]
        offset += len(data) + padding
    header = json.dumps({"kind": kind, **_finite(dict(facts)), "arrays": places}, allow_nan=False).encode()
    header += b" " * (-(len(header) + 4) % 8)
    return b"".join([struct.pack("<I", len(header)), header, *parts])


def _finite(value: Any) -> Any:
    """JSON has no NaN: such a number has no value yet."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
