"""NVIDIA Warp's `mesh_query_ray` on its CPU device."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import numpy as np

from navi_core.bench.engine.peers import Float32, PeerRays


def build(_name: str, rays: PeerRays) -> WarpPeer:
    """Build the peer."""
    return WarpPeer(rays)


@cache
def _kernel() -> tuple[Any, Any]:
    wp: Any = importlib.import_module("warp")
    wp.config.quiet = True
    wp.init()

    def trace(mesh, origins, directions, reach, depth):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN202
        i, j = wp.tid()
        query = wp.mesh_query_ray(mesh, origins[i], directions[j], reach)
        depth[i, j] = wp.where(query.result, query.t, reach)

    points, numbers = wp.array(dtype=wp.vec3), wp.array(dtype=wp.float32, ndim=2)
    trace.__annotations__ = {
        "mesh": wp.uint64, "origins": points, "directions": points, "reach": wp.float32, "depth": numbers,
    }  # fmt: skip
    kernel: Any = wp.Kernel(trace, key="navi_peer_trace", module=wp.Module("navi_peer", None))
    return wp, kernel


class WarpPeer:
    """Mesh of Warp with the rays of all poses, cast on the calling thread; implements `Peer`."""

    def __init__(self, rays: PeerRays) -> None:
        wp, self._trace = _kernel()
        corners = wp.array(rays.triangles.reshape(-1, 3), dtype=wp.vec3, device="cpu")
        index = wp.array(np.arange(3 * len(rays.triangles), dtype=np.int32), device="cpu")
        self._mesh = wp.Mesh(corners, index)
        shape = len(rays.origins), len(rays.directions)
        self._depth = wp.empty(shape, dtype=wp.float32, device="cpu")
        points = [wp.array(each, dtype=wp.vec3, device="cpu") for each in (rays.origins, rays.directions)]
        inputs = [self._mesh.id, *points, rays.reach]
        self._launch: Callable[[], Any] = partial(
            wp.launch, self._trace, dim=shape, inputs=inputs, outputs=[self._depth], device="cpu"
        )

    def __call__(self) -> None:
        """Cast all rays."""
        self._launch()

    def depth(self) -> Float32:
        """Return the (B, R) distances of the last call [m]."""
        distances: Float32 = self._depth.numpy().copy()
        return distances
