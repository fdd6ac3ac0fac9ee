"""Export of an episode for the Rerun viewer (https://rerun.io): scene, panorama, path and curves on one timeline."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from navi_core.errors import RecordError, install_command

if TYPE_CHECKING:
    import rerun

    from navi_core.scenes.display_mesh import DisplayMesh

_GOLDEN_RATIO = 0.61803398875


@dataclass(frozen=True)
class EpisodeTrace:
    """Recorded trajectory of one drone over T time steps; Az, El bins of its sensor.

    Raises:
        RecordError: Arrays do not fit each other.
    """

    name: str
    """Shown as the recording's name."""
    positions: npt.NDArray[np.float32]
    """(T, 3) [m], +Y up."""
    yaws: npt.NDArray[np.float32]
    """(T,) [rad], counter-clockwise seen from above, 0 faces −Z."""
    depth: npt.NDArray[np.float32]
    """(T, Az, El) [m]."""
    semantic: npt.NDArray[np.uint16]
    """(T, Az, El) ids."""
    valid: npt.NDArray[np.bool_]
    """(T, Az, El)."""
    directions: npt.NDArray[np.float32]
    """(Az·El, 3) unit directions in the drone's frame."""
    seconds: npt.NDArray[np.floating]
    """(T,) since the beginning [s]."""
    scalars: dict[str, npt.NDArray[np.floating]] = field(default_factory=dict)
    """Curves by name, (T,) each; NaN where there is no value."""
    path: npt.NDArray[np.float32] | None = None
    """(N, 3) the whole path where it is finer than the moments [m]; else their positions."""
    mesh: DisplayMesh | None = None
    """The scene, where it is known."""

    def __post_init__(self) -> None:
        moments, bins = len(self.positions), self.depth.shape[1:]
        expected: dict[str, tuple[npt.NDArray[Any], tuple[int, ...]]] = {
            "positions": (self.positions, (moments, 3)),
            "yaws": (self.yaws, (moments,)),
            "semantic": (self.semantic, (moments, *bins)),
            "valid": (self.valid, (moments, *bins)),
            "depth": (self.depth, (moments, *bins)),
            "directions": (self.directions, (math.prod(bins), 3)),
            "seconds": (self.seconds, (moments,)),
            **{name: (values, (moments,)) for name, values in self.scalars.items()},
        }
        for name, (array, shape) in expected.items():
            if array.shape != shape or not moments:
                raise RecordError(f"{name} of an episode has shape {array.shape}, expected {shape}")

    def points(self, moment: int) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.uint16]]:
        """Return the point cloud of one time step in the world frame: points (n, 3) [m], semantic ids (n,)."""
        hit = self.valid[moment].reshape(-1)
        sine, cosine = math.sin(self.yaws[moment]), math.cos(self.yaws[moment])
        x, y, z = self.directions[hit].T
        # A turn by yaw about +Y, as `world.sensor` casts its rays.
        turned = np.stack([x * cosine + z * sine, y, z * cosine - x * sine], axis=1)
        reach = self.depth[moment].reshape(-1)[hit]
        points = self.positions[moment] + turned * reach[:, None]
        return points.astype(np.float32), self.semantic[moment].reshape(-1)[hit]


def require_rerun() -> None:
    """Raise early if the Rerun package is not installed, before a long flight that needs it.

    Raises:
        RecordError: The extra `rerun` is not installed.
    """
    try:
        import rerun.blueprint  # noqa: F401
    except ImportError as error:
        raise RecordError(f"Rerun files need the extra rerun ({error}); {install_command('rerun')}") from None


def write_rrd(path: Path, trace: EpisodeTrace) -> None:
    """Write an episode as a Rerun `.rrd` file, atomically.

    Raises:
        RecordError: The extra `rerun` is not installed, or the file cannot be written.
    """
    require_rerun()
    import rerun as rr
    import rerun.blueprint as rrb

    unfinished = path.with_name(f".{path.name}.part")
    with RecordError.of_system(f"{path}: cannot be written"):
        path.parent.mkdir(parents=True, exist_ok=True)
        blueprint = rrb.Blueprint(
            rrb.Horizontal(
                rrb.Spatial3DView(origin="world", name="flight"),
                rrb.Vertical(
                    rrb.Spatial2DView(origin="panorama", name="panorama"),
                    rrb.TimeSeriesView(origin="curves", name="curves"),
                ),
            )
        )
        with rr.RecordingStream("navi", recording_id=None) as stream:
            stream.save(unfinished, default_blueprint=blueprint)
            _log(rr, stream, trace)
            stream.flush()
        stream.disconnect()
        unfinished.replace(path)


def _log(rr: ModuleType, stream: rerun.RecordingStream, trace: EpisodeTrace) -> None:
    azimuths = trace.depth.shape[1]
    stream.send_recording_name(trace.name)
    stream.log("world", rr.ViewCoordinates.RIGHT_HAND_Y_UP, static=True)
    line = trace.path if trace.path is not None else trace.positions
    stream.log("world/path", rr.LineStrips3D([line], colors=[(37, 99, 201)]), static=True)
    if (mesh := trace.mesh) is not None:
        # Pale, so that points and path stand out.
        colours = (160 + 0.37 * _colours(mesh.semantic)).astype(np.uint8)
        stream.log(
            "world/scene",
            rr.Mesh3D(vertex_positions=mesh.vertices, triangle_indices=mesh.faces, vertex_colors=colours),
            static=True,
        )
    for moment in range(len(trace.positions)):
        stream.set_time("decision", sequence=moment)
        stream.set_time("flight", duration=float(trace.seconds[moment]))
        # Forward in the middle, left on the left, up at the top.
        depth = np.where(trace.valid[moment], trace.depth[moment], 0.0)
        picture = np.roll(depth, azimuths // 2, axis=0).T.astype(np.float32)
        stream.log("panorama/depth", rr.DepthImage(np.ascontiguousarray(picture), meter=1.0))
        points, semantic = trace.points(moment)
        stream.log("world/points", rr.Points3D(points, colors=_colours(semantic), radii=0.03))
        yaw = float(trace.yaws[moment])
        ahead = np.array([-math.sin(yaw), 0.0, -math.cos(yaw)]) * 0.4
        here = trace.positions[moment]
        stream.log("world/drone", rr.LineStrips3D([[here, here + ahead]], colors=[(224, 72, 47)], radii=0.05))
        for name, values in trace.scalars.items():
            if math.isfinite(values[moment]):
                stream.log(f"curves/{name}", rr.Scalars(float(values[moment])))


def _colours(semantic: npt.NDArray[np.uint16]) -> npt.NDArray[np.uint8]:
    """Map semantic ids to RGB colours; neighbouring ids get distant hues."""
    hue = 6.0 * ((semantic.astype(np.float64) * _GOLDEN_RATIO) % 1.0)
    channels = [np.clip(np.abs((hue + shift) % 6.0 - 3.0) - 1.0, 0.0, 1.0) for shift in (0.0, 4.0, 2.0)]
    return (255.0 * (0.35 + 0.6 * np.stack(channels, axis=-1))).astype(np.uint8)
