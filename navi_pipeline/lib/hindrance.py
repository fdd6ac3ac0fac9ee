"""What keeps a child from its work without a fault of its own: that is no outcome, and is to be done another time."""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Sequence

__all__ = ["hindrance", "no_room"]

_TOLD_TO_END = (-signal.SIGTERM, -signal.SIGINT, -signal.SIGHUP)
"""Exit codes of a child that somebody ended, or that the machine did when it was shut down."""
_NO_ROOM = tuple(os.strerror(code) for code in (errno.ENOSPC, errno.EDQUOT))


def hindrance(code: int, last: Sequence[str]) -> str | None:
    """Return what ended a child that did nothing wrong, as a sentence without its subject; None for any other.

    Args:
        code: Its exit code.
        last: The lines that it said last.
    """
    if code in _TOLD_TO_END:
        return f"was told to end by {signal.Signals(-code).name}"
    return f"has no room: {last[-1]}" if code and no_room("\n".join(last)) else None


def no_room(told: str) -> bool:
    """Tell whether a child failed because the disk is full, or this user's share of it.

    Args:
        told: What it said last.
    """
    # What was only logged before its error did not end it, and may well be logged each time.
    ended_by = f"\n{told}".rpartition("\nerror: ")[2]
    return any(word in ended_by for word in _NO_ROOM)
