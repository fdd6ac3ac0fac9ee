// Where a ray meets the surface inside one voxel of which the unsigned distances at its corners are known: the slow
// twin and the reasons are in kernels/rays/voxel_surface.py. Corner c lies at (c & 1, c >> 1 & 1, c >> 2).
#pragma once

#include "closest.h"
#include "views.h"

namespace navi {

constexpr double kHalfSlack = 0.002;        // fp16 rounds a corner's distance by less [voxel]
constexpr double kPlaneTolerance = 0.02;    // distances farther from a plane's fit none [voxel]
constexpr double kCrossingSlack = 0.005;    // a plane this near to a voxel's face counts as met there [voxel]
constexpr double kAmbiguous = 0.004;        // axes that fit this alike are told apart by no corner
constexpr double kFlatNormal = 0.01;        // a normal whose square lacks more is cut on all edges of an axis

// The first part of the ray's [0, length] outside the corners' empty balls; false where there is none.
NAVI_INLINE bool first_gap(const double corners[8], const double p[3], const double d[3], double length, double& start,
                           double& end) {
    start = 0.0;
    bool moved = true;
    while (moved && start < length) {
        moved = false;
        end = length;
        for (int c = 0; c < 8; ++c) {
            const double radius = corners[c] - kHalfSlack;
            const double wx = (c & 1) - p[0], wy = (c >> 1 & 1) - p[1], wz = (c >> 2) - p[2];
            const double foot = wx * d[0] + wy * d[1] + wz * d[2];
            const double squared = radius * radius - (wx * wx + wy * wy + wz * wz - foot * foot);
            if (radius <= 0.0 || squared <= 0.0) continue;
            const double half = square_root(squared);
            if (foot + half <= start) continue;
            if (foot - half <= start) {
                start = foot + half;
                moved = true;
            } else {
                end = least(end, foot - half);
            }
        }
    }
    return start < length;
}

NAVI_INLINE double magnitude(double x) {
    return x < 0.0 ? -x : x;
}

NAVI_INLINE double with_sign(double x, double sign) {
    return sign < 0.0 ? -x : x;
}

// Lower corner of edge `e` along an axis.
NAVI_INLINE int edge_start(int e, int axis) {
    const int low = (1 << axis) - 1;
    return (e & low) | (e & ~low) << 1;
}

// The plane n·u = k that the corners' distances are those to; returns how far they differ, above the tolerance if none.
NAVI_INLINE double fit_plane(const double corners[8], double n[3], double& k) {
    double steep[3], rise[3];
    for (int a = 0; a < 3; ++a) {
        steep[a] = rise[a] = 0.0;
        for (int e = 0; e < 4; ++e) {
            const int c = edge_start(e, a);
            const double step = corners[c + (1 << a)] - corners[c];
            steep[a] = greatest(steep[a], magnitude(step));
            rise[a] += 0.25 * step * (corners[c + (1 << a)] + corners[c]);
        }
    }
    const double lack = 1.0 - (steep[0] * steep[0] + steep[1] * steep[1] + steep[2] * steep[2]);
    if (lack > kFlatNormal) {
        double best = kHuge, second = kHuge, whole[3];
        int axis = 0;
        for (int a = 0; a < 3; ++a) {
            whole[a] = square_root(steep[a] * steep[a] + lack);
            double off = 0.0;
            for (int e = 0; e < 4; ++e) {
                const int c = edge_start(e, a);
                off = greatest(off, magnitude(corners[c] + corners[c + (1 << a)] - whole[a]));
            }
            second = off < best ? best : least(second, off);
            if (off < best) best = off, axis = a;
        }
        if (second < best + kAmbiguous) return kHuge;
        for (int a = 0; a < 3; ++a) steep[a] = a == axis ? whole[a] : steep[a];
    }
    double xy = 0.0, xz = 0.0, yz = 0.0;
    for (int c = 0; c < 8; ++c) {
        const double square = corners[c] * corners[c];
        const double x = 2.0 * (c & 1) - 1.0, y = 2.0 * (c >> 1 & 1) - 1.0, z = 2.0 * (c >> 2) - 1.0;
        xy += x * y * square;
        xz += x * z * square;
        yz += y * z * square;
    }
    double main, slope;
    if (steep[0] >= steep[1] && steep[0] >= steep[2]) {
        steep[1] = with_sign(steep[1], xy);
        steep[2] = with_sign(steep[2], xz);
        main = steep[0], slope = rise[0];
    } else if (steep[1] >= steep[2]) {
        steep[0] = with_sign(steep[0], xy);
        steep[2] = with_sign(steep[2], yz);
        main = steep[1], slope = rise[1];
    } else {
        steep[0] = with_sign(steep[0], xz);
        steep[1] = with_sign(steep[1], yz);
        main = steep[2], slope = rise[2];
    }
    if (!(main > 0.0)) return kHuge;
    for (int a = 0; a < 3; ++a) n[a] = steep[a];
    k = 0.5 * (n[0] + n[1] + n[2] - slope / main);
    for (int pass = 0; pass < 2; ++pass) {
        double fit[3] = {0.0, 0.0, 0.0}, mean = 0.0;
        for (int c = 0; c < 8; ++c) {
            const int x = c & 1, y = c >> 1 & 1, z = c >> 2;
            const double height = with_sign(corners[c], n[0] * x + n[1] * y + n[2] * z - k);
            fit[0] += x ? 0.25 * height : -0.25 * height;
            fit[1] += y ? 0.25 * height : -0.25 * height;
            fit[2] += z ? 0.25 * height : -0.25 * height;
            mean += 0.125 * height;
        }
        for (int a = 0; a < 3; ++a) n[a] = fit[a];
        k = 0.5 * (n[0] + n[1] + n[2]) - mean;
    }
    double residual = magnitude(square_root(n[0] * n[0] + n[1] * n[1] + n[2] * n[2]) - 1.0);
    for (int c = 0; c < 8; ++c) {
        const double height = n[0] * (c & 1) + n[1] * (c >> 1 & 1) + n[2] * (c >> 2) - k;
        residual = greatest(residual, magnitude(magnitude(height) - corners[c]));
    }
    return residual;
}

// Where a ray that enters the voxel at p (from its minimum corner) meets the surface within `length`; negative: nowhere.
NAVI_INLINE double meet_voxel(const double corners[8], const double p[3], const double d[3], double length) {
    double n[3], k;
    const double residual = fit_plane(corners, n, k);
    if (residual <= kPlaneTolerance) {
        const double height = n[0] * p[0] + n[1] * p[1] + n[2] * p[2] - k;
        const double slope = n[0] * d[0] + n[1] * d[1] + n[2] * d[2];
        const double other = height + slope * length, slack = residual + kCrossingSlack;
        if ((height > slack && other > slack) || (height < -slack && other < -slack)) return -1.0;
        const double at = slope != 0.0 ? -height / slope : 0.0;
        return least(greatest(at, 0.0), length);
    }
    double start, end;
    return first_gap(corners, p, d, length, start, end) ? 0.5 * (start + end) : -1.0;
}

}  // namespace navi
