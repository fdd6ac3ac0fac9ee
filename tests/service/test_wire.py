"""Wire format: bytes by hand, and refused messages."""

from __future__ import annotations

import struct
from dataclasses import replace
from typing import Any

import msgpack
import numpy as np
import pytest

from navi_core.config import WireConfig
from navi_core.errors import WireError
from navi_core.service.wire import TOPICS, Action, DistanceMatrix, RobotPose, StepResult, decode, encode
from tests.service.wire_samples import action, all_messages, matrix, pose, result


def same(ours: Any, theirs: Any) -> bool:
    """Are two plain values equal, arrays to the bit?"""
    if isinstance(ours, np.ndarray):
        return ours.dtype == theirs.dtype and ours.shape == theirs.shape and ours.tobytes() == theirs.tobytes()
    if isinstance(ours, dict):
        return ours.keys() == theirs.keys() and all(same(ours[k], theirs[k]) for k in ours)
    if isinstance(ours, list):
        return len(ours) == len(theirs) and all(same(a, b) for a, b in zip(ours, theirs))
    return type(ours) is type(theirs) and ours == theirs


@pytest.mark.parametrize("message", all_messages(), ids=lambda m: type(m).__name__)
def test_messages_round_trip(message: Any) -> None:
    back = decode(encode(message))
    assert type(back) is type(message)
    assert same(back.to_map(), message.to_map())


def test_step_result_has_the_specified_bytes() -> None:
    topic, payload = encode(StepResult(1, 2, 3, False, True, 0.5, -1.0, 8.0))
    assert topic == b"step_result_v2"
    text = lambda s: bytes([0xA0 + len(s)]) + s.encode()  # noqa: E731 - MessagePack fixstr
    number = lambda x: b"\xcb" + struct.pack(">d", x)  # noqa: E731 - float 64
    assert payload == b"".join(
        [
            *(b"\x89", text("_type"), text("StepResult"), text("step_id"), b"\x01", text("env_id"), b"\x02"),
            *(text("episode_id"), b"\x03", text("done"), b"\xc2", text("truncated"), b"\xc3"),
            *(text("reward"), number(0.5), text("episode_return"), number(-1.0), text("timestamp"), number(8.0)),
        ]
    )


def test_array_has_the_specified_bytes() -> None:
    fields = msgpack.unpackb(encode(action())[1], ext_hook=lambda code, data: (code, data))
    code, data = fields["linear_velocity"]
    assert code == 1
    head = struct.pack("<H", 7) + b"float32" + struct.pack("<Hqq", 2, 1, 3)
    assert data == head + struct.pack("<3f", 1.0, 0.0, -0.5)
    assert fields["env_ids"][1] == struct.pack("<H", 5) + b"int32" + struct.pack("<Hq", 1, 1) + struct.pack("<i", 7)


def test_topics_match_the_specification() -> None:
    assert set(TOPICS) == {
        "distance_matrix_v2", "action_v2", "telemetry_event_v2", "step_request_v2", "step_result_v2", "fault_v2",
        "describe_request_v2", "description_v2",
    }  # fmt: skip


def payload(**changes: Any) -> list[bytes]:
    """Return the frames of a step result with fields changed; None leaves one out."""
    data = {"_type": "StepResult", **result().to_map(), **changes}
    return [b"step_result_v2", msgpack.packb({k: v for k, v in data.items() if v is not None})]


def array_of(data: bytes) -> list[bytes]:
    """Return the frames of a telemetry event whose payload is an extension of these bytes."""
    event = {"event_type": "x", "episode_id": 0, "env_id": 0, "step_id": 0, "timestamp": 0.0}
    packed = msgpack.packb({"_type": "TelemetryEvent", **event, "payload": msgpack.ExtType(1, data)})
    return [b"telemetry_event_v2", packed]


def header(name: bytes, *shape: int, axes: int | None = None) -> bytes:
    count = len(shape) if axes is None else axes
    return struct.pack("<H", len(name)) + name + struct.pack(f"<H{len(shape)}q", count, *shape)


BAD = {
    "one frame": ([b"step_result_v2"], "1 frames"),
    "three frames": ([b"step_result_v2", b"", b""], "3 frames"),
    "unknown topic": ([b"news_v2", b"\x80"], "unknown topic"),
    "not MessagePack": ([b"step_result_v2", b"\xc1"], "MessagePack"),
    "nothing": ([b"step_result_v2", b""], "MessagePack"),
    "not a map": ([b"step_result_v2", msgpack.packb([1])], "expected a map"),
    "trailing bytes": ([b"step_result_v2", payload()[1] + b"\x00"], "MessagePack"),
    "no type": (payload(_type=None), "_type"),
    "a type that is a list": (payload(_type=["StepResult"]), "_type"),
    "another topic's type": ([b"action_v2", payload()[1]], "does not travel"),
    "missing field": (payload(reward=None), "missing: ['reward']"),
    "unknown field": (payload(rewards=1.0), "unknown: ['rewards']"),
    "true for a number": (payload(reward=True), "reward"),
    "text for a number": (payload(step_id="1"), "step_id"),
    "not finite": (payload(reward=float("nan")), "finite"),
    "beyond 64 bits": (payload(step_id=2**63), "64 bits"),
    "bytes": (payload(reward=b"x"), "MessagePack"),
    "extension 2": (payload(reward=msgpack.ExtType(2, b"")), "extension"),
    "deep nesting": ([b"step_result_v2", b"\x91" * 2000 + b"\xc0"], "MessagePack"),
    "a list that claims 2³² entries": ([b"step_result_v2", b"\xdd\xff\xff\xff\xff"], "MessagePack"),
    "array: cut header": (array_of(b"\x07\x00flo"), "header"),
    "array: object dtype": (array_of(header(b"object", 1) + bytes(8)), "dtype 'object'"),
    "array: pickled dtype": (array_of(header(b"O8", 1) + bytes(8)), "dtype"),
    "array: negative axis": (array_of(header(b"float32", -1, -1) + bytes(4)), "does not fit"),
    "array: a shape that wraps around": (array_of(header(b"float32", 2**62, 4)), "does not fit"),
    "array: too short": (array_of(header(b"float32", 2) + bytes(4)), "does not fit"),
    "array: too long": (array_of(header(b"float32", 2) + bytes(12)), "does not fit"),
    "array: nine axes": (array_of(header(b"float32", *[1] * 9) + bytes(4)), "9 axes"),
    "array: another dtype": (array_of(header(b"float64", 1) + bytes(8)), "expected float32"),
    "array: another rank": (array_of(header(b"float32", 1, 1) + bytes(4)), "expected float32 (N)"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_bad_frames_are_refused_with_their_reason(name: str) -> None:
    frames, reason = BAD[name]
    with pytest.raises(WireError) as error:
        decode(frames)
    assert reason in str(error.value), error.value


def test_other_protocol_version_has_its_own_error() -> None:
    with pytest.raises(WireError, match="version 1; this is version 2") as error:
        decode([b"distance_matrix_v1", encode(matrix())[1]])
    assert error.value.code == "version"


def test_an_oversized_payload_is_not_even_parsed() -> None:
    with pytest.raises(WireError, match="at most 1,024"):
        decode([b"step_result_v2", bytes(1025)], WireConfig(max_message_bytes=1024))


def test_axes_of_one_message_must_agree() -> None:
    with pytest.raises(WireError, match="axis Az is 8, elsewhere in the message 16"):
        DistanceMatrix(**matrix().__dict__ | {"matrix_shape": (16, 4)})
    with pytest.raises(WireError, match="axis B"):
        Action(**action().__dict__ | {"env_ids": np.array([1, 2], np.int32)})


def test_non_finite_actions_are_refused() -> None:
    with pytest.raises(WireError, match="not finite"):
        Action(**action().__dict__ | {"linear_velocity": np.full((1, 3), np.nan, np.float32)})


@pytest.mark.parametrize("name", ["x", "y", "z", "roll", "pitch", "yaw"])
def test_pose_coordinates_are_bounded(name: str) -> None:
    """Huge coordinates would round to infinity, or take for ever to walk to."""
    assert getattr(replace(pose(), **{name: -1e5}), name) == -1e5
    for wrong in (1.1e5, -1e39):
        with pytest.raises(WireError, match=rf"{name} is -?1.*expected a number from -100000 to 100000"):
            replace(pose(), **{name: wrong})


def test_pose_is_refused_as_a_message() -> None:
    with pytest.raises(WireError, match="within another message"):
        encode(pose())
    assert isinstance(decode(encode(matrix())).robot_pose, RobotPose)


def test_mutated_frames_raise_only_wire_errors() -> None:
    rng = np.random.default_rng(0)
    originals = [encode(m) for m in all_messages() if not (isinstance(m, DistanceMatrix) and m.overhead.size)]
    refused = 0
    for number in range(10_000):
        frames = [bytearray(frame) for frame in originals[number % len(originals)]]
        body = frames[int(rng.random() < 0.95)]
        kind = rng.integers(4)
        if kind == 0:
            for place in rng.integers(0, len(body), rng.integers(1, 8)):
                body[place] = rng.integers(256)
        elif kind == 1:
            del body[rng.integers(len(body)) :]
        elif kind == 2:
            place = rng.integers(len(body))
            body[place:place] = rng.bytes(rng.integers(1, 64))
        else:
            start = rng.integers(len(body))
            del body[start : start + rng.integers(1, 64)]
        try:
            decode([bytes(frame) for frame in frames])
        except WireError:
            refused += 1
    assert refused > 7000
