"""Whom the page's messages go to: every viewer has one place per kind of message, and only the newest is kept.

A slow viewer misses messages and never holds anybody up; memory is bounded by the number of kinds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import numpy.typing as npt

from navi_core.service.web.packing import pack_message

__all__ = ["Hub", "Viewer"]


class Viewer:
    """One open page: what still has to be sent to it."""

    def __init__(self) -> None:
        self._waiting: dict[str, bytes] = {}
        self._ready = asyncio.Event()

    def put(self, kind: str, message: bytes) -> None:
        """Replace what waits under `kind`."""
        self._waiting[kind] = message
        self._ready.set()

    async def take(self) -> bytes:
        """Return the next message, waiting for one."""
        while not self._waiting:
            self._ready.clear()
            await self._ready.wait()
        # The kind that has waited longest goes first.
        kind = next(iter(self._waiting))
        return self._waiting.pop(kind)


class Hub:
    """Sends messages to all viewers; whoever comes later gets the newest of each kind at once.

    Args:
        changed: Called with the number of viewers whenever it changes.
    """

    def __init__(self, changed: Callable[[int], None] | None = None) -> None:
        self._viewers: set[Viewer] = set()
        self._newest: dict[str, bytes] = {}
        self._told: tuple[str, str] | None = None
        self._changed = changed

    @property
    def viewers(self) -> int:
        """Open pages."""
        return len(self._viewers)

    def join(self) -> Viewer:
        """Add a viewer."""
        viewer = Viewer()
        for kind, message in self._newest.items():
            viewer.put(kind, message)
        self._viewers.add(viewer)
        self._tell()
        return viewer

    def leave(self, viewer: Viewer) -> None:
        """Remove a viewer."""
        if viewer in self._viewers:
            self._viewers.remove(viewer)
            self._tell()

    def send(self, kind: str, facts: Mapping[str, Any], arrays: Mapping[str, npt.NDArray[Any]] | None = None) -> None:
        """Send a message of `kind` to all viewers."""
        message = pack_message(kind, facts, arrays)
        self._newest[kind] = message
        for viewer in self._viewers:
            viewer.put(kind, message)

    def tell_phase(self, phase: str, text: str = "") -> None:
        """Say what goes on, for the page's badge; nothing else carries it, so an old frame cannot say it is new.

        Args:
            phase: waiting, live, updating, flying, playing or paused.
            text: Its words, where they are others.
        """
        told = (phase, text or phase)
        if told != self._told:
            self._told = told
            self.send("status", {"phase": phase, "text": told[1]})

    def forget(self, kind: str) -> None:
        """Show later viewers no message of `kind` until there is a new one."""
        self._newest.pop(kind, None)

    def _tell(self) -> None:
        if self._changed is not None:
            self._changed(len(self._viewers))
