"""Other ray tracers for the raycast benchmark, a module each; a module is imported when its peer is asked for."""

from __future__ import annotations

import importlib
import importlib.util
from dataclasses import dataclass
from typing import Protocol, cast

import numpy as np
import numpy.typing as npt

from navi_core.errors import ConfigError

Float32 = npt.NDArray[np.float32]

_PACKETS = [f"embree{width}{isa}" for width in (16, 8, 1) for isa in ("", ":avx2")]
_MODULES = {"embree": ("embree", "embreex"), "open3d": ("open3d", "open3d"), "warp": ("warp", "warp-lang")}
PEERS = (*_PACKETS, "open3d", "warp")
"""Names of the peers: Embree 4 in coherent packets of 16 or 8 rays or ray by ray, each also held to AVX2; Open3D, which
is Embree ray by ray; and Warp."""


@dataclass(frozen=True)
class PeerRays:
    """Rays of a benchmark and the triangles they meet.

    Attributes:
        triangles: (F, 3, 3) corners [m].
        origins: (B, 3) [m].
        directions: (R, 3) unit vectors of each origin, azimuth by azimuth.
        elevations: Rays of an azimuth.
        reach: Maximum range [m].
        threads: Threads of a call; Embree and Warp cast on the calling thread.
    """

    triangles: Float32
    origins: Float32
    directions: Float32
    elevations: int
    reach: float
    threads: int


class Peer(Protocol):
    """Interface of a peer. The rays are laid out when it is built; a call casts them, and alone is timed."""

    def __call__(self) -> None:
        """Cast all rays."""

    def depth(self) -> Float32:
        """Return the (B, R) distances of the last call [m]; the range at a miss."""


def missing_package(name: str) -> str | None:
    """Return the package that a peer lacks, if any."""
    package = _MODULES[_kind(name)][1]
    return None if importlib.util.find_spec(package.partition("-")[0]) else package


def build_peer(name: str, rays: PeerRays) -> Peer:
    """Build a peer by its name, one of `PEERS`.

    Raises:
        ConfigError: Its package is not installed.
    """
    if package := missing_package(name):
        raise ConfigError(f"tracer {name!r} needs a package; install it with: pip install {package}")
    module = importlib.import_module(f"{__name__}.{_MODULES[_kind(name)][0]}")
    return cast(Peer, module.build(name, rays))


def _kind(name: str) -> str:
    return "embree" if name.startswith("embree") else name
