"""Where a ray meets the surface inside one voxel of which the unsigned distances at its corners are known.

A corner's distance d says two things: no surface lies nearer to the corner than d, and some surface lies at d. By the
first, only the part of the ray outside all eight empty balls can hold a surface: no such gap, no hit, whatever the
shape of the surface. By the second, eight distances that fit one plane are taken for that plane, and the ray ends where
it crosses it, or passes. Squared distances need no sign to do so: those to a plane are (n·u − k)², of which sums and
differences over the corners give n and k. Where no plane fits (edges, thin sheets, rods) the ray ends in the gap.
"""

from __future__ import annotations

import math

import numba
import numpy as np
import numpy.typing as npt

__all__ = ["meet_voxel"]

FP16_SLACK = 0.002
"""Balls are taken smaller by this much [voxel]: fp16 rounds distances below two voxels by at most half of it."""
PLANE_TOLERANCE = 0.02
"""Corner distances that differ from a plane's by more [voxel], or a normal that is longer or shorter, fit none."""
CROSSING_SLACK = 0.005
"""A plane this much farther than it fits the corners counts as met at a voxel's face [voxel]: neighbours' fits meet."""
AMBIGUOUS = 0.004
"""Axes that fit this much alike are not told apart: across the middle of a voxel, all corners are at half a voxel."""
FLAT_NORMAL = 0.01
"""A normal whose square lacks more than this is cut by the surface on all four edges of an axis; fp16 lacks less."""

Float64 = npt.NDArray[np.float64]


@numba.njit(cache=True, error_model="numpy")
def _first_gap(
    corners: Float64, px: float, py: float, pz: float, dx: float, dy: float, dz: float, length: float
) -> tuple[float, float]:
    """Return the first part of the ray's [0, length] outside all balls [voxel]; it ends before it starts if none is."""
    start = 0.0
    moved = True
    while moved and start < length:
        moved = False
        end = length
        for c in range(8):
            radius = corners[c] - FP16_SLACK
            wx, wy, wz = (c & 1) - px, ((c >> 1) & 1) - py, (c >> 2) - pz
            foot = wx * dx + wy * dy + wz * dz
            half = radius * radius - (wx * wx + wy * wy + wz * wz - foot * foot)
            if radius <= 0.0 or half <= 0.0:
                continue
            half = math.sqrt(half)
            if foot + half <= start:
                continue
            if foot - half <= start:
                start = foot + half
                moved = True
            else:
                end = min(end, foot - half)
    return (start, end) if start < length else (length, -1.0)


@numba.njit(cache=True, inline="always", error_model="numpy")
def _edge_start(edge: int, stride: int) -> int:
    """Return the lower corner of one of the four edges along the axis with that stride (1, 2 or 4)."""
    return (edge & (stride - 1)) | ((edge & ~(stride - 1)) << 1)


@numba.njit(cache=True, inline="always", error_model="numpy")
def _with_sign(value: float, sign: float) -> float:
    return -value if sign < 0.0 else value


@numba.njit(cache=True, error_model="numpy")
def _fit_plane(corners: Float64) -> tuple[float, float, float, float, float]:
    """Return (nx, ny, nz, k, residual) of the plane n·u = k in the unit voxel; the residual is infinite without one."""
    steep_x = steep_y = steep_z = 0.0
    rise_x = rise_y = rise_z = 0.0
    for e in range(4):
        a, b, c = _edge_start(e, 1), _edge_start(e, 2), _edge_start(e, 4)
        sx, sy, sz = corners[a + 1] - corners[a], corners[b + 2] - corners[b], corners[c + 4] - corners[c]
        steep_x, steep_y, steep_z = max(steep_x, abs(sx)), max(steep_y, abs(sy)), max(steep_z, abs(sz))
        rise_x += 0.25 * sx * (corners[a + 1] + corners[a])
        rise_y += 0.25 * sy * (corners[b + 2] + corners[b])
        rise_z += 0.25 * sz * (corners[c + 4] + corners[c])
    # An edge on one side of the plane rises by the normal's component; one that crosses it by less. Only along one
    # axis can all four edges cross: there the two distances add up to the component instead.
    lack = 1.0 - (steep_x * steep_x + steep_y * steep_y + steep_z * steep_z)
    if lack > FLAT_NORMAL:
        best = second = np.inf
        axis = 0
        whole = 0.0
        for a in range(3):
            steep = steep_x if a == 0 else (steep_y if a == 1 else steep_z)
            component = math.sqrt(steep * steep + lack)
            off = 0.0
            for e in range(4):
                c = _edge_start(e, 1 << a)
                off = max(off, abs(corners[c] + corners[c + (1 << a)] - component))
            if off < best:
                best, second, axis, whole = off, best, a, component
            else:
                second = min(second, off)
        if second < best + AMBIGUOUS:
            return 0.0, 0.0, 0.0, 0.0, np.inf
        if axis == 0:
            steep_x = whole
        elif axis == 1:
            steep_y = whole
        else:
            steep_z = whole
    # Mixed differences of squares are 2·n_a·n_b: they give the signs against the largest component.
    cross_xy = cross_xz = cross_yz = 0.0
    for c in range(8):
        square = corners[c] * corners[c]
        sx, sy, sz = 2.0 * (c & 1) - 1.0, 2.0 * ((c >> 1) & 1) - 1.0, 2.0 * (c >> 2) - 1.0
        cross_xy += sx * sy * square
        cross_xz += sx * sz * square
        cross_yz += sy * sz * square
    if steep_x >= steep_y and steep_x >= steep_z:
        nx, ny, nz = steep_x, _with_sign(steep_y, cross_xy), _with_sign(steep_z, cross_xz)
        main, rise = nx, rise_x
    elif steep_y >= steep_z:
        nx, ny, nz = _with_sign(steep_x, cross_xy), steep_y, _with_sign(steep_z, cross_yz)
        main, rise = ny, rise_y
    else:
        nx, ny, nz = _with_sign(steep_x, cross_xz), _with_sign(steep_y, cross_yz), steep_z
        main, rise = nz, rise_z
    if main <= 0.0:
        return 0.0, 0.0, 0.0, 0.0, np.inf
    k = 0.5 * (nx + ny + nz - rise / main)
    # With the sides known, the plane is a linear fit to signed distances; that in turn knows the sides better.
    for _ in range(2):
        fx = fy = fz = mean = 0.0
        for c in range(8):
            x, y, z = c & 1, (c >> 1) & 1, c >> 2
            signed = _with_sign(corners[c], nx * x + ny * y + nz * z - k)
            fx += 0.25 * signed if x else -0.25 * signed
            fy += 0.25 * signed if y else -0.25 * signed
            fz += 0.25 * signed if z else -0.25 * signed
            mean += 0.125 * signed
        nx, ny, nz = fx, fy, fz
        k = 0.5 * (nx + ny + nz) - mean
    residual = abs(math.sqrt(nx * nx + ny * ny + nz * nz) - 1.0)
    for c in range(8):
        signed = nx * (c & 1) + ny * ((c >> 1) & 1) + nz * (c >> 2) - k
        residual = max(residual, abs(abs(signed) - corners[c]))
    return nx, ny, nz, k, residual if residual <= PLANE_TOLERANCE else np.inf


@numba.njit(cache=True, error_model="numpy")
def meet_voxel(
    corners: Float64, px: float, py: float, pz: float, dx: float, dy: float, dz: float, length: float
) -> float:
    """Return where a ray meets the surface in a voxel, negative where it does not.

    Args:
        corners: (8,) unsigned distances [voxel] at corner x + 2y + 4z.
        px, py, pz: The ray's first point in the voxel, from its minimum corner [voxel].
        dx, dy, dz: Unit direction.
        length: Way through the voxel [voxel].
    """
    nx, ny, nz, k, residual = _fit_plane(corners)
    if residual < np.inf:
        height = nx * px + ny * py + nz * pz - k
        slope = nx * dx + ny * dy + nz * dz
        other = height + slope * length
        slack = residual + CROSSING_SLACK
        if (height > slack and other > slack) or (height < -slack and other < -slack):
            return -1.0
        at = -height / slope if slope != 0.0 else 0.0
        return min(max(at, 0.0), length)
    start, end = _first_gap(corners, px, py, pz, dx, dy, dz, length)
    return 0.5 * (start + end) if start <= end else -1.0
