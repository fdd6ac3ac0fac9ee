"""Mesh decimation by quadric edge collapse: removes detail below the ray resolution and measures the error.

Edges are collapsed while the quadrics of their vertices allow it. Open edges and edges between faces of
different semantics carry planes of their own, so that borders move no further than the surface does.
"""

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
from pydantic import ConfigDict, NonNegativeFloat, NonNegativeInt

from navi_core.kernels import TriangleBVH
from navi_core.kernels.meshes import Float64, Int32, Int64, add_quadrics, collapse_edges, edge_costs
from navi_core.scenes.mesh import Mesh

_SAMPLES = 100_000
_ATTEMPTS = 3
_MAX_PASSES = 60


@dataclass(frozen=True)
class Decimation:
    """Mesh decimation report: triangle counts and errors against the original surface."""

    __pydantic_config__ = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)

    tolerance: NonNegativeFloat
    """Largest error that was allowed [voxel]."""
    before: NonNegativeInt
    """Triangles of the original."""
    after: NonNegativeInt
    """Triangles that are left."""
    samples: NonNegativeInt
    """Points on each of the two surfaces whose distance to the other was measured."""
    to_original: NonNegativeFloat
    """Greatest distance of a point of the result to the original [m]."""
    from_original: NonNegativeFloat
    """Greatest distance of a point of the original to the result [m]."""
    mean: NonNegativeFloat
    """Mean distance of the original's points to the result [m]."""


def decimate(mesh: Mesh, tolerance: float, voxel_size: float) -> tuple[Mesh, Decimation]:
    """Decimate a mesh within an error tolerance; return it with the measured error.

    The error is measured both ways (a sampled two-sided Hausdorff distance). Where it exceeds the
    tolerance, the original is decimated again with half the allowance; at last it is kept as it is.

    Args:
        mesh: A checked mesh. Vertices at the same place are taken as one.
        tolerance: Greatest error allowed [voxel].
        voxel_size: Edge of a voxel [m].
    """
    allowed = tolerance * voxel_size
    vertices, first = np.unique(mesh.vertices, axis=0, return_inverse=True)
    faces = first.reshape(-1)[mesh.faces].astype(np.int32)
    for attempt in range(_ATTEMPTS):
        merged = _collapse(mesh, vertices, faces, allowed / 2**attempt)
        if len(merged.faces):
            back, _ = surface_distance(merged, mesh)
            there, mean = surface_distance(mesh, merged)
            if max(there, back) <= allowed:
                report = Decimation(float(tolerance), len(mesh.faces), len(merged.faces), _SAMPLES, back, there, mean)
                return merged, report
    return mesh, Decimation(float(tolerance), len(mesh.faces), len(mesh.faces), _SAMPLES, 0.0, 0.0, 0.0)


def surface_distance(mesh: Mesh, other: Mesh, samples: int = _SAMPLES, seed: int = 0) -> tuple[float, float]:
    """Estimate the one-sided Hausdorff distance and the mean distance from `mesh` to `other` [m] by sampling.

    Args:
        mesh: The surface whose points are taken: spread evenly by area, and corners.
        other: The surface they are measured to.
        samples: How many points.
        seed: Of the points.
    """
    rng = np.random.default_rng(seed)
    corners = mesh.triangles
    area = np.linalg.norm(np.cross(corners[:, 1] - corners[:, 0], corners[:, 2] - corners[:, 0]), axis=1)
    face = np.searchsorted(np.cumsum(area), rng.random(samples // 2) * area.sum()).clip(0, len(area) - 1)
    weight = rng.dirichlet(np.ones(3), len(face))
    inside = (corners[face] * weight[:, :, None]).sum(axis=1)
    # Middles of faces chosen alike whatever their size reach the small ones, corners the extremes.
    any_face = rng.integers(len(corners), size=samples - len(face))
    ends = corners[any_face, rng.integers(3, size=len(any_face))]
    distance, _ = TriangleBVH(other.triangles).closest(np.concatenate([inside, ends]))
    return float(distance.max()), float(distance[: len(face)].mean())


def _collapse(mesh: Mesh, vertices: Float64, faces: Int32, allowed: float) -> Mesh:
    """Collapse edges by quadric error until no edge below `allowed`² [m²] is left."""
    vertices, semantic = vertices.copy(), mesh.face_semantic
    faces, kept = _tidy(faces)
    semantic = semantic[kept]
    quadrics = np.zeros((len(vertices), 10))
    add_quadrics(vertices, faces, _borders(faces, semantic), quadrics)
    for _ in range(_MAX_PASSES):
        keys = np.unique(_edge_keys(faces))
        edges = np.stack([keys >> 32, keys & 0xFFFFFFFF], axis=1).astype(np.int32)
        cost, target = np.empty(len(edges)), np.empty((len(edges), 3))
        edge_costs(vertices, quadrics, edges, cost, target)
        order = np.argsort(cost, kind="stable")
        order = order[: int(np.searchsorted(cost[order], allowed**2, side="right"))]
        parent = np.arange(len(vertices), dtype=np.int32)
        at, ring = _rings(faces, len(vertices))
        done = collapse_edges(vertices, faces, quadrics, edges[order], target[order], at, ring, parent)
        if done == 0:
            break
        faces, kept = _tidy(parent[faces])
        semantic = semantic[kept]
        if done < len(faces) // 1000:
            break
    used, number = np.unique(faces, return_inverse=True)
    return replace(mesh, vertices=vertices[used], faces=number.reshape(-1, 3).astype(np.int32), face_semantic=semantic)


def _tidy(faces: Int32) -> tuple[Int32, Int64]:
    """Remove degenerate and duplicate faces; return the remaining faces and their original indices."""
    proper = np.flatnonzero((faces[:, 0] != faces[:, 1]) & (faces[:, 1] != faces[:, 2]) & (faces[:, 2] != faces[:, 0]))
    _, first = np.unique(np.sort(faces[proper], axis=1), axis=0, return_index=True)
    kept = proper[np.sort(first)]
    return np.ascontiguousarray(faces[kept]), kept


def _edge_keys(faces: Int32) -> Int64:
    """Return the (3·F,) integer keys of the faces' edges: lower vertex · 2³² + higher vertex."""
    start, end = faces.astype(np.int64).reshape(-1), np.roll(faces, -1, axis=1).astype(np.int64).reshape(-1)
    return np.minimum(start, end) << 32 | np.maximum(start, end)


def _borders(faces: Int32, semantic: Int32) -> npt.NDArray[np.bool_]:
    """Return a mask (F, 3) of boundary edges: used by one face, by more than two, or between different semantics."""
    _, edge, count = np.unique(_edge_keys(faces), return_inverse=True, return_counts=True)
    name = np.repeat(semantic, 3)
    low, high = np.full(len(count), 1 << 30), np.zeros(len(count), np.int64)
    np.minimum.at(low, edge, name)
    np.maximum.at(high, edge, name)
    return ((count != 2) | (low != high))[edge].reshape(-1, 3)  # type: ignore[no-any-return]


def _rings(faces: Int32, vertices: int) -> tuple[Int64, Int32]:
    """Return the vertex-to-face adjacency in CSR form: bounds per vertex, and face indices."""
    flat = faces.reshape(-1)
    order = np.argsort(flat, kind="stable")
    at = np.concatenate([[0], np.cumsum(np.bincount(flat, minlength=vertices))])
    return at.astype(np.int64), (order // 3).astype(np.int32)
