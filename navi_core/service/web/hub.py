"""Fan-out hub of a page: each viewer has one slot per kind of message, which keeps the newest one.

A slow viewer misses messages and delays no other; memory is bounded by the number of kinds.
"""

import asyncio
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from navi_core.service.viewing.digest import Digest
from navi_core.service.viewing.page_message import pack_message


class Viewer:
    """Outgoing queue of one open page: the newest message of each kind."""

    def __init__(self) -> None:
        self._waiting: dict[str, bytes] = {}
        self._ready = asyncio.Event()

    def put(self, kind: str, message: bytes) -> None:
        """Queue a message, replacing the waiting one of the same kind."""
        self._waiting[kind] = message
        self._ready.set()

    async def take(self) -> bytes:
        """Dequeue the message of the kind that has waited longest; wait while the queue is empty."""
        while not self._waiting:
            self._ready.clear()
            await self._ready.wait()
        # The kind that has waited longest is first.
        return self._waiting.pop(next(iter(self._waiting)))


class Hub:
    """Fan-out hub: sends messages to all viewers; a new viewer receives the newest of each kind at once.

    Args:
        changed: Called with the number of viewers whenever it changes.
    """

    def __init__(self, changed: Callable[[int], None] = lambda _: None) -> None:
        self._viewers: set[Viewer] = set()
        self._newest: dict[str, bytes] = {}
        self._phase: tuple[str, str] | None = None
        self._changed = changed

    @property
    def viewers(self) -> int:
        """Number of open pages."""
        return len(self._viewers)

    def join(self) -> Viewer:
        """Add a viewer and queue the newest message of each kind for it."""
        viewer = Viewer()
        for kind, message in self._newest.items():
            viewer.put(kind, message)
        self._viewers.add(viewer)
        self._changed(len(self._viewers))
        return viewer

    def leave(self, viewer: Viewer) -> None:
        """Remove a viewer, if it is still there."""
        if viewer in self._viewers:
            self._viewers.remove(viewer)
            self._changed(len(self._viewers))

    def send(
        self, kind: str, facts: Mapping[str, object], arrays: Mapping[str, npt.NDArray[Any]] | None = None
    ) -> None:
        """Broadcast a message of `kind` to all viewers."""
        message = pack_message(kind, facts, arrays)
        self._newest[kind] = message
        for viewer in self._viewers:
            viewer.put(kind, message)

    def send_change(self, kind: str, facts: Mapping[str, object]) -> None:
        """Broadcast a message without arrays, unless it is the kept one of its kind."""
        message = pack_message(kind, facts)
        if message != self._newest.get(kind):
            self.send(kind, facts)

    def send_phase(self, phase: str, text: str = "") -> None:
        """Broadcast the phase for the page's status badge; no other message carries it.

        Args:
            phase: waiting, live, updating, stale, finished, stopped, crashed, flying, playing or paused.
            text: Text of the badge; by default the phase.
        """
        status = (phase, text or phase)
        if status != self._phase:
            self._phase = status
            self.send("status", {"phase": phase, "text": status[1]})

    def forget(self, kind: str) -> None:
        """Drop the kept message of `kind`: new viewers receive none until there is a new one."""
        self._newest.pop(kind, None)


def panorama_arrays(
    depth: npt.NDArray[np.float32], semantic: npt.NDArray[Any], valid: npt.NDArray[Any], max_distance: float
) -> dict[str, npt.NDArray[Any]]:
    """Build the arrays of a frame message: depth in metres, semantic ids, valid mask.

    Args:
        depth: (Az, El) normalised depth.
        semantic: (Az, El) ids.
        valid: (Az, El) valid mask.
        max_distance: Range of the sensor [m].
    """
    return {
        # As `navi_core.world.denormalise_depth`, without torch.
        "depth": np.expm1(depth * np.float32(math.log1p(max_distance))),
        "semantic": semantic.astype(np.uint16),
        "valid": (valid > 0).astype(np.uint8),
    }


def trajectory_array(points: list[tuple[float, float, float]]) -> npt.NDArray[np.float32]:
    """Convert a trajectory to a (N, 3) float32 array."""
    return np.asarray(points, np.float32).reshape(-1, 3)


def send_changes(hub: Hub, digest: Digest, **messages: Callable[[], Mapping[str, object]]) -> None:
    """Broadcast the changed parts of the display state to all viewers, and clear the set of changes.

    Args:
        hub: Hub of the viewers.
        digest: State of the page.
        messages: Builders of the messages `training` and `service`.
    """
    changed, digest.changed = digest.changed, set()
    if "trajectory" in changed:
        hub.send("trajectory", {}, {"points": trajectory_array(digest.trajectory)})
    if "scene" in changed:
        hub.send("scene", digest.scene_facts())
    if "map" in changed and digest.picture is not None and "metres_per_pixel" in digest.scene:
        scene = digest.scene
        facts = {
            "corner": [scene["corner_x"], scene["corner_z"]],
            "metres_per_pixel": scene["metres_per_pixel"],
            "height": scene["height"],
            "floor": scene.get("floor", scene["low_y"]),
        }
        hub.send("map", facts, {"image": digest.picture})
    found = digest.frame() if "frame" in changed else None
    if found is not None:
        facts, matrix = found
        arrays = (matrix.depth[0], matrix.semantic[0], matrix.valid_mask[0])
        hub.send("frame", facts, panorama_arrays(*arrays, digest.max_distance))
    for kind, build in messages.items():
        if kind in changed:
            hub.send(kind, build())
