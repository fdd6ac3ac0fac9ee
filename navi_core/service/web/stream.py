"""Messages of the page: frames, trajectory, map, curves, sessions."""

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from navi_core.service.viewing import Digest
from navi_core.service.web.hub import Hub
from navi_core.world.floor.overhead import Overhead


def metres(depth: npt.NDArray[np.float32], max_distance: float) -> npt.NDArray[np.float32]:
    """Return depth [m] of normalised depth; `navi_core.world.denormalise_depth` without torch."""
    depth_m: npt.NDArray[np.float32] = np.expm1(depth * np.float32(math.log1p(max_distance)))
    return depth_m


def panorama_arrays(
    depth: npt.NDArray[np.float32], semantic: npt.NDArray[Any], valid: npt.NDArray[Any], max_distance: float
) -> dict[str, npt.NDArray[Any]]:
    """Return the arrays of a frame.

    Args:
        depth: (Az, El) normalised depth.
        semantic: (Az, El) ids.
        valid: (Az, El) valid mask.
        max_distance: Range of the sensor [m].
    """
    return {
        "depth": metres(depth, max_distance),
        "semantic": semantic.astype(np.uint16),
        "valid": (valid > 0).astype(np.uint8),
    }


def map_facts(view: Overhead) -> dict[str, Any]:
    """Return corner, scale and height of the map."""
    return {"corner": view.corner, "metres_per_pixel": view.metres_per_pixel, "height": view.height}


def trajectory_array(points: list[tuple[float, float, float]]) -> npt.NDArray[np.float32]:
    """Return a path as (N, 3) float32."""
    return np.asarray(points, np.float32).reshape(-1, 3)


def send_changes(hub: Hub, digest: Digest, *, groups: dict[str, dict[str, Any]] | None = None) -> None:
    """Send the changed kinds of messages, and clear the changes.

    Args:
        hub: The viewers.
        digest: State of the page.
        groups: Further numbers of a service, by title.
    """
    changed, digest.changed = digest.changed, set()
    if "trajectory" in changed:
        hub.send("trajectory", {}, {"points": trajectory_array(digest.trajectory)})
    if "map" in changed and digest.picture is not None and "metres_per_pixel" in digest.scene:
        scene = digest.scene
        facts = {
            "corner": [scene["corner_x"], scene["corner_z"]],
            "metres_per_pixel": scene["metres_per_pixel"],
            "height": scene["height"],
        }
        hub.send("map", facts, {"image": digest.picture})
    found = digest.frame() if "frame" in changed else None
    if found is not None:
        facts, matrix = found
        arrays = (matrix.depth[0], matrix.semantic[0], matrix.valid_mask[0])
        hub.send("frame", facts, panorama_arrays(*arrays, digest.max_distance))
    if "training" in changed:
        hub.send("training", _training(digest))
    if "service" in changed:
        sessions = digest.recent_sessions()
        hub.send(
            "service",
            {
                "sessions": sessions,
                "groups": {**(groups or {}), **digest.recent_others()},
                "summary": f"{len(sessions)} sessions" if sessions else "",
            },
        )


def _training(digest: Digest) -> dict[str, Any]:
    steps, series = digest.curve.steps, digest.curve.series
    last = {name: values[-1] for name, values in series.items() if values}
    updates, sps = last.get("updates"), digest.perf.get("sps")
    facts = f"step {steps[-1]:,.0f}, {updates:,.0f} updates" if steps and updates is not None else ""
    return {
        "steps": steps,
        "series": {name: values for name, values in series.items() if name != "updates"},
        "stages": digest.stages(),
        "facts": facts,
        "throughput": f"{sps:,.0f} decisions a second" if sps is not None else "",
    }
