// Version 1 octrees: descent per voxel, the slow twin of the surface walk. Rules as in kernels/octree.py.
#pragma once

#include "closest.h"
#include "views.h"

namespace navi {

constexpr double kHitDistance = 0.5005;  // a corner this near to the surface makes its voxel a hit [voxel]
constexpr double kNudge = 1e-6;          // offset past a boundary on the exit axis [voxel]

NAVI_INLINE double half_to_double(unsigned bits) {
    const int exponent = static_cast<int>(bits >> 10 & 31);
    const unsigned mantissa = bits & 1023;
    double scale = 1.0;
    const int power = exponent == 0 ? -24 : exponent - 25;
    for (int i = power; i < 0; ++i) scale *= 0.5;
    for (int i = 0; i < power; ++i) scale *= 2.0;
    const double value = (exponent == 0 ? mantissa : 1024 + mantissa) * scale;
    return bits & 0x8000 ? -value : value;
}

NAVI_INLINE int bits_below(unsigned mask, int bit) {
    unsigned rest = mask & ((1u << bit) - 1u);
    int count = 0;
    for (; rest; rest &= rest - 1) ++count;
    return count;
}

// Word index of the cell that holds voxel (x, y, z), -1 for an absent child; `size` is its edge [voxel].
NAVI_INLINE int64_t leaf_at(const uint64_t* nodes, int resolution, int x, int y, int z, int& size) {
    int64_t index = 0;
    size = resolution;
    for (;;) {
        const uint64_t word = read(nodes + index);
        if (word >> 63) return index;
        size >>= 1;
        const int bit = (x & size ? 1 : 0) | (y & size ? 2 : 0) | (z & size ? 4 : 0);
        const unsigned mask = static_cast<unsigned>(word >> 55 & 255);
        if (!(mask >> bit & 1)) return -1;
        const int64_t table = static_cast<int64_t>(word & 0xFFFFFFFFu);
        index = static_cast<int64_t>(read(nodes + table + bits_below(mask, bit)) & 0xFFFFFFFFu);
    }
}

// The new coordinate, not behind the old one along the ray, within [0, last].
NAVI_INLINE double forward_only(double old, double now, double slope, double last) {
    if (slope > 0.0) return least(now > old ? now : old, last);
    if (slope < 0.0) return greatest(now < old ? now : old, 0.0);
    return old;
}

// First hit in voxels and the word that was hit; word -1 at a miss.
NAVI_INLINE double cast_octree_ray(const uint64_t* nodes, int resolution, double voxel, const double o[3],
                                   const double d[3], double t_max, int64_t& hit) {
    hit = -1;
    double inverse[3], t = 0.0, leave = t_max;
    for (int a = 0; a < 3; ++a) {
        inverse[a] = d[a] != 0.0 ? 1.0 / d[a] : kHuge;
        if (d[a] == 0.0) {
            if (!(o[a] >= 0.0 && o[a] <= resolution)) return t_max;
            continue;
        }
        double near = -o[a] * inverse[a], far = (resolution - o[a]) * inverse[a];
        if (near > far) {
            const double swap = near;
            near = far;
            far = swap;
        }
        t = greatest(t, near);
        leave = least(leave, far);
    }
    if (!(t <= leave)) return t_max;
    const double last = resolution - kNudge;
    double p[3];
    for (int a = 0; a < 3; ++a) {
        const double x = o[a] + t * d[a];
        p[a] = x > 0.0 ? least(x, last) : 0.0;
    }
    // The bound only ends a walk that rounding has trapped; a straight ray meets far fewer cells.
    for (int round = 0; round < 8 * resolution + 16; ++round) {
        int size;
        const int cell[3] = {static_cast<int>(p[0]), static_cast<int>(p[1]), static_cast<int>(p[2])};
        const int64_t index = leaf_at(nodes, resolution, cell[0], cell[1], cell[2], size);
        double corner[3], bound[3], exit_at[3];
        for (int a = 0; a < 3; ++a) {
            corner[a] = static_cast<double>(cell[a] / size * size);
            bound[a] = d[a] > 0.0 ? corner[a] + size : corner[a];
            exit_at[a] = d[a] != 0.0 ? (bound[a] - o[a]) * inverse[a] : kHuge;
        }
        const double exit_t = least(exit_at[0], least(exit_at[1], exit_at[2]));
        // A ray that begins on a boundary and barely falls back over it has left this cell before it entered it.
        const double until = greatest(exit_t, t);
        double skip = until;
        if (index >= 0) {
            const double distance = half_to_double(static_cast<unsigned>(nodes[index] & 0xFFFF)) / voxel;
            double away = 0.0;
            if (size == 1) {
                if (distance <= kHitDistance) {
                    const double foot = (corner[0] - o[0]) * d[0] + (corner[1] - o[1]) * d[1] + (corner[2] - o[2]) * d[2];
                    const double at = least(greatest(foot, t), until);
                    if (at > t_max) return t_max;
                    hit = index;
                    return at;
                }
                // The corner knows its distance, the ray's point is up to a voxel diagonal away.
                for (int a = 0; a < 3; ++a) away += (p[a] - corner[a]) * (p[a] - corner[a]);
                away = square_root(away);
            }
            skip = greatest(until, t + distance - away - 2.0);
        }
        if (!(skip < leave)) return t_max;
        t = skip;
        for (int a = 0; a < 3; ++a) p[a] = forward_only(p[a], o[a] + t * d[a], d[a], last);
        if (skip == until) {
            const int a = exit_t == exit_at[0] ? 0 : (exit_t == exit_at[1] ? 1 : 2);
            p[a] = d[a] > 0.0 ? bound[a] + kNudge : bound[a] - kNudge;
            if (!(p[a] >= 0.0 && p[a] < resolution)) return t_max;
        }
    }
    return t_max;
}

// Cast ray `r` of row `b` through octree `k` and write its answer.
NAVI_INLINE void cast_octree_one(const Octrees& all, const Rays& rays, int k, int64_t b, int64_t r) {
    const double* frame = all.frame + 4 * static_cast<int64_t>(k);
    const uint64_t* nodes = all.nodes + all.bases[k];
    const float* d = rays.directions + 3 * ((rays.shared ? 0 : b * rays.rays) + r);
    double o[3], direction[3];
    for (int a = 0; a < 3; ++a) {
        o[a] = (rays.origins[3 * b + a] - frame[a]) / frame[3];
        direction[a] = d[a];
    }
    int64_t word;
    const double t = cast_octree_ray(nodes, all.resolution[k], frame[3], o, direction, rays.max_distance / frame[3], word);
    const int64_t at = b * rays.rays + r;
    if (word < 0) {
        rays.depth[at] = static_cast<float>(rays.max_distance);
        rays.label[at] = 0;
        rays.valid[at] = 0;
        return;
    }
    const int64_t local = static_cast<int64_t>(nodes[word] >> 16 & 0xFFFF);
    const int64_t first = all.remap_base[k], entries = all.remap_base[k + 1] - first;
    rays.depth[at] = static_cast<float>(t * frame[3]);
    rays.label[at] = local < entries ? all.remap[first + local] : 1;
    rays.valid[at] = 1;
}

}  // namespace navi
