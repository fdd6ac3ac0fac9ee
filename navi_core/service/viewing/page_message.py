"""Binary messages of the page.

A message is binary: u32 little-endian length of the header, the header as JSON, then each array in C order,
little-endian, padded to 8 bytes. The header's `arrays` list name, dtype, shape, and offset after the header.
"""

import json
import math
import struct
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

_DTYPES = ("float32", "uint8", "uint16", "uint32")
"""Array dtypes that a page has typed arrays for."""


def pack_message(kind: str, facts: Mapping[str, object], arrays: Mapping[str, npt.NDArray[Any]] | None = None) -> bytes:
    """Serialise a message for the page: JSON header and arrays.

    Args:
        kind: Kind of message.
        facts: Plain values; numbers that are not finite become null.
        arrays: float32, uint8, uint16 or uint32.

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
    header = json.dumps(
        {"kind": kind, **{name: _finite(value) for name, value in facts.items()}, "arrays": places}, allow_nan=False
    ).encode()
    header += b" " * (-(len(header) + 4) % 8)
    return b"".join([struct.pack("<I", len(header)), header, *parts])


def unpack_message(data: bytes) -> tuple[dict[str, Any], dict[str, npt.NDArray[Any]]]:
    """Parse a message of `pack_message`: its facts, and its arrays by name."""
    (length,) = struct.unpack_from("<I", data)
    facts, arrays = json.loads(data[4 : 4 + length]), {}
    for place in facts.pop("arrays"):
        count, begin = math.prod(place["shape"]), 4 + length + place["offset"]
        arrays[place["name"]] = np.frombuffer(data, place["dtype"], count, begin).reshape(place["shape"])
    return facts, arrays


def _finite(value: object) -> object:
    """Replace non-finite numbers by null, recursively: JSON lacks them."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
