"""Codec of wire messages: topic frame and MessagePack frame. All input is validated, nothing is unpickled.

Arrays are MessagePack extension type 1: u16 little-endian length of the dtype's name, the name ("float32"), u16 number
of axes, each axis as int64 little-endian, then the elements in C order, little-endian.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from navi_core.config import WireConfig
from navi_core.errors import WireError
from navi_core.service.wire.messages import (
    Action,
    BatchStepRequest,
    BatchStepResult,
    DescribeRequest,
    Description,
    DistanceMatrix,
    Fault,
    Message,
    StepRequest,
    StepResult,
    TelemetryEvent,
)

ARRAY_TYPE = 1
"""Code of the MessagePack extension type of arrays."""
DTYPES = (
    "bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64", "float16", "float32", "float64",
)  # fmt: skip
"""Allowed array dtypes; objects and text are never sent."""
MOST_AXES = 8
_DTYPE_OF = {name: np.dtype(name).newbyteorder("<") for name in DTYPES}
_LENGTH = struct.Struct("<H")
_HEAD_OF = {
    kind: (_LENGTH.pack(len(name)) + name.encode(), little)
    for name, little in _DTYPE_OF.items()
    for kind in {little, little.newbyteorder(">")}
}
"""Encoded header and wire dtype by array dtype of either byte order."""


def pack_array(array: npt.NDArray[np.generic]) -> bytes:
    """Serialise an array to the bytes of the MessagePack extension.

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
    """Deserialise an array as a read-only view of `data`; sizes are validated before anything is built.

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


WIRE_VERSION = 2
TOPICS: dict[str, tuple[type[Message], ...]] = {
    "distance_matrix_v2": (DistanceMatrix,),
    "action_v2": (Action,),
    "telemetry_event_v2": (TelemetryEvent,),
    "step_request_v2": (StepRequest, BatchStepRequest),
    "step_result_v2": (StepResult, BatchStepResult),
    "describe_request_v2": (DescribeRequest,),
    "description_v2": (Description,),
    "fault_v2": (Fault,),
}
"""Message classes of each topic."""
_TOPIC_OF = {cls: topic for topic, classes in TOPICS.items() for cls in classes}
_MAX_KEYS = 64
_MAX_TEXT = 4096
_MAX_PARTS = 4096
_MAX_ELEMENTS = 2**18
"""Limit of all list and map elements of a message; the largest batch has 139,270."""
_VERSIONED = re.compile(r"(.+)_v(\d{1,4})")


def topic_of(message: Message | type[Message]) -> str:
    """Return the topic of a message or message class."""
    return _TOPIC_OF[message if isinstance(message, type) else type(message)]


def encode(message: Message) -> list[bytes]:
    """Encode a message to its two frames: topic and payload.

    Raises:
        WireError: It has no topic of its own (`RobotPose`).
    """
    import msgpack

    def extension(value: object) -> msgpack.ExtType:
        if isinstance(value, np.ndarray):
            return msgpack.ExtType(ARRAY_TYPE, pack_array(value))
        raise WireError(f"{type(value).__name__} cannot travel")

    if type(message) not in _TOPIC_OF:
        raise WireError(f"{type(message).__name__} travels only within another message")
    payload = {"_type": type(message).__name__, **message.to_map()}
    return [topic_of(message).encode(), msgpack.packb(payload, default=extension)]


def decode(frames: Sequence[bytes], limits: WireConfig | None = None) -> Message:
    """Decode and validate a message from its two frames.

    Args:
        frames: Topic and payload.
        limits: `max_message_bytes`; None: the defaults.

    Raises:
        WireError: The frames are no message of version 2. No other error is raised, whatever the bytes.
    """
    if len(frames) != 2:
        raise WireError(f"a message of {len(frames)} frames; two are expected: topic and payload")
    topic, payload = bytes(frames[0]), bytes(frames[1])
    most = (limits or WireConfig()).max_message_bytes
    if len(payload) > most:
        raise WireError(f"a payload of {len(payload):,} bytes; at most {most:,} are allowed")
    allowed = _classes(topic)
    data = _unpacked(payload)
    name = str(data.pop("_type", None))
    message = next((cls for cls in allowed if cls.__name__ == name), None)
    if message is None:
        names = ", ".join(cls.__name__ for cls in allowed)
        raise WireError(f"{name[:40]!r} does not travel under {topic.decode()}; allowed for _type: {names}")
    return message.from_map(data)


def _classes(topic: bytes) -> tuple[type[Message], ...]:
    """Return the message classes of a topic; a topic of another version raises its own error."""
    name = topic[:64].decode("ascii", "replace")
    if name in TOPICS:
        return TOPICS[name]
    other = _VERSIONED.fullmatch(name)
    if other and f"{other[1]}_v{WIRE_VERSION}" in TOPICS:
        raise WireError(f"topic {name}: version {int(other[2])}; this is version {WIRE_VERSION}", code="version")
    raise WireError(f"unknown topic {name!r}; allowed: {', '.join(TOPICS)}")


def _unpacked(payload: bytes) -> dict[str, object]:
    import msgpack

    elements = 0

    def counted(part: Sequence[object] | dict[str, object]) -> object:
        # Nested empty lists take a hundred times the memory of their bytes.
        nonlocal elements
        elements += 1 + len(part)
        if elements > _MAX_ELEMENTS:
            raise WireError(f"the payload has more than {_MAX_ELEMENTS:,} elements")
        return part

    try:
        # Lengths are bounded before msgpack allocates for them.
        data = msgpack.unpackb(
            payload,
            ext_hook=_array,
            list_hook=counted,
            object_hook=counted,
            strict_map_key=True,
            max_str_len=_MAX_TEXT,
            max_bin_len=0,
            max_array_len=_MAX_PARTS,
            max_map_len=_MAX_KEYS,
            max_ext_len=len(payload),
        )
    except WireError:
        raise
    except (ValueError, TypeError, OverflowError, RecursionError, msgpack.UnpackException) as error:
        reason = str(error)[:120] or type(error).__name__
        raise WireError(f"the payload is no MessagePack map of ours: {reason}") from None
    if not isinstance(data, dict):
        raise WireError(f"the payload is {type(data).__name__}, expected a map")
    return data


def _array(code: int, data: bytes) -> np.ndarray:
    if code != ARRAY_TYPE:
        raise WireError(f"MessagePack extension type {code}; only {ARRAY_TYPE}, arrays, is allowed")
    return unpack_array(data)
