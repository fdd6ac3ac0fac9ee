"""Digest of the code that determines a flight; stored flights are reused only while it is unchanged."""

import hashlib
from functools import cache
from pathlib import Path

_ROOMS = ("kernels", "mapping", "world", "scenes", "policy", "pilots", "evaluate/flight", "evaluate/metrics")
_FILES = ("evaluate/protocol.py",)
"""Code that determines an episode; settings are part of the protocol and the checkpoint."""
_SOURCES = frozenset({".py", ".h", ".cpp", ".cu"})


@cache
def flight_code() -> str:
    """Return 12 hex digits of the sources that determine an episode: equal digits, equal flights on one machine."""
    package, digest = Path(__file__).resolve().parents[2], hashlib.sha256()
    files = [file for room in _ROOMS for file in sorted((package / room).rglob("*")) if file.suffix in _SOURCES]
    for file in [*files, *(package / name for name in _FILES)]:
        digest.update(file.relative_to(package).as_posix().encode() + b"\0" + file.read_bytes() + b"\0")
    return digest.hexdigest()[:12]
