"""Viewer probe: attaches to the trainer of a night as the dashboard does."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from navi_pipeline.lib.nightly.night import Gate

if TYPE_CHECKING:
    from navi_core.service.viewing.feed import Announcement

_PATIENCE_SECONDS = 30.0
"""An update of a large network may last several seconds; within one there is only a heartbeat."""


class ViewerProbe:
    """Waits beside a training until it makes progress, then for one observation of its drone.

    Args:
        prefix: How the run's name begins; the trainer announces itself under that name in the Navi home.
        moving: Whether the training has made progress.
    """

    def __init__(self, prefix: str, moving: Callable[[], bool]) -> None:
        self._prefix, self._moving = prefix, moving
        self._gate: Gate | None = None
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._attach, name="navi-viewer-probe", daemon=True)
        self._thread.start()

    def gate(self) -> Gate:
        """Return what was seen; called when the training is over."""
        self._over.set()
        self._thread.join(5.0)
        return self._gate or Gate("viewer", False, False, "training ended before a viewer attached")

    def _attach(self) -> None:
        from navi_core.service.viewing.feed import Feed
        from navi_core.service.wire import DistanceMatrix

        note = self._announcement()
        if note is None:
            return
        seen: list[DistanceMatrix] = []
        arrived = threading.Event()

        def handle(batch: list[Any]) -> None:
            seen.extend(message for message in batch if isinstance(message, DistanceMatrix))
            if seen:
                arrived.set()

        began = time.monotonic()
        feed = Feed([note.endpoint], handle, watching=True)
        try:
            while not arrived.wait(0.2) and not self._over.is_set() and time.monotonic() - began < _PATIENCE_SECONDS:
                pass
        finally:
            feed.close()
        seconds = f"{time.monotonic() - began:.1f} s"
        size = "x".join(str(bins) for bins in seen[0].matrix_shape) if seen else None
        what = f"an observation of {size} after {seconds}" if seen else f"no observation within {seconds}"
        self._gate = Gate("viewer", False, bool(seen), f"{note.key}: {what}")

    def _announcement(self) -> Announcement | None:
        from navi_core.service.viewing.feed import announced

        while not self._over.is_set():
            notes = [note for note in announced() if note.name.startswith(self._prefix)]
            if notes and self._moving():
                return notes[0]
            self._over.wait(0.2)
        return None
