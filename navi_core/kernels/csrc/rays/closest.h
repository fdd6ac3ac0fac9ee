// Exact distance of a point to a triangle set through its hierarchy. Slivers are treated as their edges: the
// plane of a triangle whose height is far below its length is noise. Never compiled with -ffast-math.
#pragma once

#if !defined(__CUDACC_RTC__)
#include <cmath>
#endif

#include "rays/views.h"

namespace navi {

constexpr double kSliverRatio = 1e-7;  // height over longest edge

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

// To child `k` of a node, whose planes lie kWide apart.
NAVI_INLINE double box_distance_squared(const float* planes, int k, const double p[3]) {
    double sum = 0.0;
    for (int a = 0; a < 3; ++a) {
        const double low = read(planes + kWide * a + k), high = read(planes + kWide * (3 + a) + k);
        const double d = greatest(greatest(low - p[a], p[a] - high), 0.0);
        sum += d * d;
    }
    return sum;
}

// Squared distance of the nearest triangle nearer than sqrt(best); `best` where there is none.
// `any`: the first triangle that is near enough will do.
NAVI_INLINE double nearest_squared(const BoxTree& tree, const double p[3], double best, bool any) {
    int stack[kTreeStack];
    float bound[kTreeStack];  // rounded down by the padding of the boxes
    int top = 1;
    stack[0] = 0;
    bound[0] = 0.0f;
    while (top > 0) {
        --top;
        if (bound[top] >= best) continue;
        const int at = stack[top];
        if (at == kNobody) continue;
        if (at < 0) {
            const int64_t group = -1 - at;
            const float* c = tree.corners + 9 * kWide * group;
            const int32_t* ids = tree.ids + kWide * group;
            for (int i = 0; i < kWide && read(ids + i) != kNobody; ++i) {
                double corners[9];
                for (int k = 0; k < 9; ++k) corners[k] = read(c + kWide * k + i);
                const double d = closest_distance_squared(p[0], p[1], p[2], corners);
                if (d >= best) continue;
                best = d;
                if (any) return best;
            }
            continue;
        }
        const float* planes = tree.planes + 6 * kWide * static_cast<int64_t>(at);
        const int32_t* child = tree.child + kWide * static_cast<int64_t>(at);
        const int bottom = top;
        for (int k = 0; k < kWide; ++k) {
            const double d = box_distance_squared(planes, k, p);
            if (!(d < best)) continue;
            const float near = static_cast<float>(d * (1.0 - 1e-6));
            int i = top++;
            for (; i > bottom && bound[i - 1] < near; --i) {
                stack[i] = stack[i - 1];
                bound[i] = bound[i - 1];
            }
            stack[i] = read(child + k);
            bound[i] = near;
        }
    }
    return best;
}

#if !defined(__CUDACC_RTC__)  // it has no such builtin, and CUDA asks through jobs.h
// Distance of a point to the surface [m].
NAVI_INLINE double distance_to(const BoxTree& tree, const float* p) {
    const double at[3] = {p[0], p[1], p[2]};
    return square_root(nearest_squared(tree, at, __builtin_huge_val(), false));
}
#endif

}  // namespace navi
