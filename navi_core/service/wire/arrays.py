"""Arrays on the wire: MessagePack extension type 1.

Layout: u16 little-endian length of the dtype's name, the name ("float32"), u16 number of axes, each axis as int64
little-endian, then the elements in C order, little-endian.
"""

import math
import struct

import numpy as np
import numpy.typing as npt

from navi_core.errors import WireError

ARRAY_TYPE = 1
"""Code of the MessagePack extension type."""
DTYPES = (
    "bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64", "float16", "float32", "float64",
)  # fmt: skip
"""Allowed dtypes; objects and text are never sent."""
MOST_AXES = 8
_DTYPE_OF = {name: np.dtype(name).newbyteorder("<") for name in DTYPES}
_LENGTH = struct.Struct("<H")
_HEAD_OF = {
    kind: (_LENGTH.pack(len(name)) + name.encode(), little)
    for name, little in _DTYPE_OF.items()
    for kind in {little, little.newbyteorder(">")}
}
"""By dtype of either byte order: the name with its length, and how the elements travel."""


def pack_array(array: npt.NDArray[np.generic]) -> bytes:
    """Return the bytes of the extension.

    Raises:
        WireError: The dtype may not travel, or there are more than `MOST_AXES` axes.
    """
    known = _HEAD_OF.get(array.dtype)
    if known is None:
        raise WireError(f"an array of {array.dtype.name} cannot travel; allowed: {', '.join(DTYPES)}")
    if array.ndim > MOST_AXES:
        raise WireError(f"an array of {array.ndim} axes cannot travel; at most {MOST_AXES}")
    head, dtype = known
    shape = struct.pack(f"<H{array.ndim}q", array.ndim, *array.shape)
    return b"".join((head, shape, np.ascontiguousarray(array, dtype).data))


def unpack_array(data: bytes) -> npt.NDArray[np.generic]:
    """Return the array, read-only, as a view of `data`; sizes are compared before anything is built.

    Raises:
        WireError: The bytes are no array.
    """
    try:
        (length,) = _LENGTH.unpack_from(data, 0)
        name = data[2 : 2 + length].decode("ascii")
        (axes,) = _LENGTH.unpack_from(data, 2 + length)
        if axes > MOST_AXES:
            raise WireError(f"an array of {axes} axes; at most {MOST_AXES} are allowed")
        shape = struct.unpack_from(f"<{axes}q", data, 4 + length)
    except (struct.error, UnicodeDecodeError):
        raise WireError(f"an array of {len(data)} bytes ends within its header") from None
    if name not in _DTYPE_OF:
        raise WireError(f"an array of dtype {name[:32]!r}; allowed: {', '.join(DTYPES)}")
    dtype = _DTYPE_OF[name]
    start = 4 + length + 8 * axes
    # Python's integers do not overflow: a shape that wraps around 64 bits is refused.
    if any(n < 0 for n in shape) or math.prod(shape) * dtype.itemsize != len(data) - start:
        raise WireError(f"an array of {name} {shape} does not fit its {len(data) - start} bytes")
    if name == "bool" and len(data) > start and np.frombuffer(data, np.uint8, offset=start).max() > 1:
        raise WireError("an array of bool holds bytes other than 0 and 1")
    return np.frombuffer(data, dtype, offset=start).reshape(shape)
