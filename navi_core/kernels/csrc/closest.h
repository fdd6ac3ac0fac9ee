// Exact distance of a point to a triangle set through its hierarchy. Slivers are treated as their edges: the
// plane of a triangle whose height is far below its length is noise. Never compiled with -ffast-math.
#pragma once

#if !defined(__CUDACC_RTC__)
#include <cmath>
#endif

#include "views.h"

namespace navi {

constexpr double kSliverRatio = 1e-7;  // height over longest edge
constexpr int kStack = 64;             // median splits: the depth is the logarithm of the triangles

NAVI_INLINE double square_root(double x) {
    return ::sqrt(x);
}

NAVI_INLINE double segment_distance_squared(double px, double py, double pz, const double* a, const double* b) {
    const double dx = b[0] - a[0], dy = b[1] - a[1], dz = b[2] - a[2];
    const double wx = px - a[0], wy = py - a[1], wz = pz - a[2];
    const double length = dx * dx + dy * dy + dz * dz;
    double t = 0.0;
    if (length > 0.0) t = least(greatest((wx * dx + wy * dy + wz * dz) / length, 0.0), 1.0);
    const double rx = wx - t * dx, ry = wy - t * dy, rz = wz - t * dz;
    return rx * rx + ry * ry + rz * rz;
}

NAVI_INLINE double closest_distance_squared(double px, double py, double pz, const double* corners) {
    const double *a = corners, *b = corners + 3, *c = corners + 6;
    const double ux = b[0] - a[0], uy = b[1] - a[1], uz = b[2] - a[2];
    const double vx = c[0] - a[0], vy = c[1] - a[1], vz = c[2] - a[2];
    const double nx = uy * vz - uz * vy, ny = uz * vx - ux * vz, nz = ux * vy - uy * vx;
    const double area2 = nx * nx + ny * ny + nz * nz;
    const double bc = (b[0] - c[0]) * (b[0] - c[0]) + (b[1] - c[1]) * (b[1] - c[1]) + (b[2] - c[2]) * (b[2] - c[2]);
    const double longest =
        greatest(greatest(ux * ux + uy * uy + uz * uz, vx * vx + vy * vy + vz * vz), bc);
    const double wx = px - a[0], wy = py - a[1], wz = pz - a[2];
    if (area2 > kSliverRatio * kSliverRatio * longest * longest) {
        // Barycentric coordinates of the projection (Ericson 2005, 3.4).
        const double beta =
            ((wy * vz - wz * vy) * nx + (wz * vx - wx * vz) * ny + (wx * vy - wy * vx) * nz) / area2;
        const double gamma =
            ((uy * wz - uz * wy) * nx + (uz * wx - ux * wz) * ny + (ux * wy - uy * wx) * nz) / area2;
        if (beta >= 0.0 && gamma >= 0.0 && beta + gamma <= 1.0) {
            const double h = wx * nx + wy * ny + wz * nz;
            return h * h / area2;
        }
    }
    const double ab = segment_distance_squared(px, py, pz, a, b);
    return least(least(ab, segment_distance_squared(px, py, pz, b, c)), segment_distance_squared(px, py, pz, c, a));
}

NAVI_INLINE double box_distance_squared(const float* box, double x, double y, double z) {
    const double dx = greatest(greatest(read(box) - x, x - read(box + 3)), 0.0);
    const double dy = greatest(greatest(read(box + 1) - y, y - read(box + 4)), 0.0);
    const double dz = greatest(greatest(read(box + 2) - z, z - read(box + 5)), 0.0);
    return dx * dx + dy * dy + dz * dz;
}

// Squared distance of the nearest triangle of scene `s` nearer than sqrt(best); `best` where there is none.
// `any`: the first triangle that is near enough will do.
NAVI_INLINE double nearest_squared(const Hierarchies& all, int s, double x, double y, double z, double best, bool any) {
    const float* box = all.box + 6 * all.node_base[s];
    const int32_t* link = all.link + 2 * all.node_base[s];
    const double* triangles = all.triangles + 9 * all.triangle_base[s];
    int stack[kStack];
    double bound[kStack];
    int top = 1;
    stack[0] = 0;
    bound[0] = box_distance_squared(box, x, y, z);
    while (top > 0) {
        --top;
        if (bound[top] >= best) continue;
        int first = read(link + 2 * stack[top]), second = read(link + 2 * stack[top] + 1);
        if (first < 0) {
            const int start = -1 - first;
            for (int f = start; f < start + second; ++f) {
                double corners[9];
                for (int i = 0; i < 9; ++i) corners[i] = read(triangles + 9 * static_cast<int64_t>(f) + i);
                const double d = closest_distance_squared(x, y, z, corners);
                if (d >= best) continue;
                best = d;
                if (any) return best;
            }
            continue;
        }
        double d0 = box_distance_squared(box + 6 * static_cast<int64_t>(first), x, y, z);
        double d1 = box_distance_squared(box + 6 * static_cast<int64_t>(second), x, y, z);
        if (d0 > d1) {
            const int node = first;
            first = second;
            second = node;
            const double d = d0;
            d0 = d1;
            d1 = d;
        }
        if (d1 < best) {
            stack[top] = second;
            bound[top++] = d1;
        }
        if (d0 < best) {
            stack[top] = first;
            bound[top++] = d0;
        }
    }
    return best;
}

}  // namespace navi
