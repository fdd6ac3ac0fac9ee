"""Open3D's `RaycastingScene`: Embree, ray by ray."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np

from navi_core.bench.engine.peers import Float32, PeerRays


def build(_name: str, rays: PeerRays) -> Open3DPeer:
    """Build the peer."""
    return Open3DPeer(rays)


class Open3DPeer:
    """Scene of Open3D with the rays of all poses; implements `Peer`."""

    def __init__(self, rays: PeerRays) -> None:
        open3d: Any = importlib.import_module("open3d")
        self._scene = open3d.t.geometry.RaycastingScene(nthreads=rays.threads)
        self._scene.add_triangles(
            open3d.core.Tensor(np.ascontiguousarray(rays.triangles.reshape(-1, 3), np.float32)),
            open3d.core.Tensor(np.arange(3 * len(rays.triangles), dtype=np.uint32).reshape(-1, 3)),
        )
        shape = (len(rays.origins), len(rays.directions), 3)
        start = np.broadcast_to(rays.origins[:, None, :], shape)
        both = np.concatenate([start, np.broadcast_to(rays.directions, shape)], axis=2)
        self._rays, self._threads, self._reach = open3d.core.Tensor(both), rays.threads, rays.reach

    def __call__(self) -> None:
        """Cast all rays."""
        self._hits = self._scene.cast_rays(self._rays, nthreads=self._threads)["t_hit"]

    def depth(self) -> Float32:
        """Return the (B, R) distances of the last call [m]."""
        distances: Float32 = np.minimum(self._hits.numpy(), np.float32(self._reach))
        return distances
