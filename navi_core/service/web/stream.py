"""What every page that shows a stream of messages sends: frames, path, map, curves, sessions."""

from __future__ import annotations

from typing import Any

from navi_core.service.viewing import Digest
from navi_core.service.web.frames import panorama_arrays, trajectory_array
from navi_core.service.web.hub import Hub

__all__ = ["send_changes"]


def send_changes(hub: Hub, digest: Digest, *, groups: dict[str, dict[str, Any]] | None = None) -> None:
    """Send the kinds of messages that have changed, and forget that they have.

    Args:
        hub: The viewers.
        digest: What is known.
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
        sessions = digest.heard_sessions()
        hub.send(
            "service",
            {
                "sessions": sessions,
                "groups": {**(groups or {}), **digest.heard_others()},
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
