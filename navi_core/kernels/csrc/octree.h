// Version 1 octrees: descent per voxel. Rules as in kernels/rays/octree_walk.py.
#pragma once

#include "closest.h"
#include "views.h"
#include "voxel_surface.h"

namespace navi {

constexpr double kHitDistance = 0.5005;  // a corner this near to the surface makes its voxel a hit [voxel]
constexpr double kNudge = 1e-6;          // offset past a boundary on the exit axis [voxel]

// The loader has refused negative distances and replaced those that are not finite.
NAVI_INLINE double half_to_double(unsigned bits) {
    const int64_t exponent = bits >> 10 & 31, mantissa = bits & 1023;
    return exponent == 0 ? mantissa * 0x1p-24 : static_cast<double>((1024 + mantissa) << exponent) * 0x1p-25;
}

NAVI_INLINE int bits_below(unsigned mask, int bit) {
    unsigned rest = mask & ((1u << bit) - 1u);
    rest -= rest >> 1 & 0x55;
    rest = (rest & 0x33) + (rest >> 2 & 0x33);
    return static_cast<int>((rest + (rest >> 4)) & 15);
}

// One octree, and the inner node of the 8x8x8 voxels looked at last: the next ones are mostly in them too.
struct Descent {
    const uint64_t* nodes;
    int resolution;
    double voxel;  // [m]
    int x, y, z;   // of the block, in blocks; -1: none yet
    int64_t block;
};

// Word index of the cell that holds voxel (x, y, z), -1 for an absent child; `size` is its edge [voxel].
NAVI_INLINE int64_t leaf_at(Descent& from, int x, int y, int z, int& size) {
    const bool near = from.x == x >> 3 && from.y == y >> 3 && from.z == z >> 3;
    int64_t index = near ? from.block : 0;
    size = near ? 8 : from.resolution;
    for (;;) {
        const uint64_t word = read(from.nodes + index);
        if (word >> 63) return index;
        if (size == 8) from.x = x >> 3, from.y = y >> 3, from.z = z >> 3, from.block = index;
        size >>= 1;
        const int bit = (x & size ? 1 : 0) | (y & size ? 2 : 0) | (z & size ? 4 : 0);
        const unsigned mask = static_cast<unsigned>(word >> 55 & 255);
        if (!(mask >> bit & 1)) return -1;
        const int64_t table = static_cast<int64_t>(word & 0xFFFFFFFFu);
        index = static_cast<int64_t>(read(from.nodes + table + bits_below(mask, bit)) & 0xFFFFFFFFu);
    }
}

constexpr int64_t kUnknown = -1, kClear = -2;

// Distances of a voxel's corners [voxel]; returns the word of the least, kUnknown where one is not known, or kClear
// where the ball around one holds the whole way from `in` to `out`. The far corner comes first: it settles most.
NAVI_INLINE int64_t load_corners(Descent& from, const int cell[3], const double in[3], const double out[3],
                                 double corners[8]) {
    const int last = from.resolution - 1;
    if (cell[0] >= last || cell[1] >= last || cell[2] >= last) return kUnknown;
    int64_t nearest = kUnknown;
    double lowest = kHuge;
    for (int c = 7; c >= 0; --c) {
        const int at[3] = {c & 1, c >> 1 & 1, c >> 2};
        int size;
        const int64_t index = leaf_at(from, cell[0] + at[0], cell[1] + at[1], cell[2] + at[2], size);
        if (index < 0 || size > 1) return kUnknown;
        corners[c] = half_to_double(static_cast<unsigned>(read(from.nodes + index) & 0xFFFF)) / from.voxel;
        double begin = 0.0, finish = 0.0;
        for (int a = 0; a < 3; ++a) {
            begin += (in[a] - at[a]) * (in[a] - at[a]);
            finish += (out[a] - at[a]) * (out[a] - at[a]);
        }
        const double radius = greatest(corners[c] - kHalfSlack, 0.0);
        if (greatest(begin, finish) < radius * radius) return kClear;
        if (corners[c] < lowest) lowest = corners[c], nearest = index;
    }
    return nearest;
}

// Is the surface near the minimum corner of a voxel that lacks corners surely in another of the eight around it?
NAVI_INLINE bool is_elsewhere(Descent& from, const int cell[3]) {
    const int last = from.resolution - 1;
    for (int around = 1; around < 8; ++around) {
        const int x = cell[0] - (around & 1), y = cell[1] - (around >> 1 & 1), z = cell[2] - (around >> 2);
        bool known = x >= 0 && y >= 0 && z >= 0 && x < last && y < last && z < last;
        for (int c = 7; known && c >= 0; --c) {
            int size;
            known = leaf_at(from, x + (c & 1), y + (c >> 1 & 1), z + (c >> 2), size) >= 0 && size == 1;
        }
        if (known) return true;
    }
    return false;
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
    Descent descent = {nodes, resolution, voxel, -1, -1, -1, 0};
    // The bound only ends a walk that rounding has trapped; a straight ray meets far fewer cells.
    for (int round = 0; round < 8 * resolution + 16; ++round) {
        int size;
        const int cell[3] = {static_cast<int>(p[0]), static_cast<int>(p[1]), static_cast<int>(p[2])};
        const int64_t index = leaf_at(descent, cell[0], cell[1], cell[2], size);
        double corner[3], bound[3], exit_at[3];
        for (int a = 0; a < 3; ++a) {
            corner[a] = static_cast<double>(cell[a] & -size);
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
                double in[3], out[3], begin = 0.0, finish = 0.0;
                for (int a = 0; a < 3; ++a) {
                    in[a] = p[a] - corner[a];
                    out[a] = in[a] + (until - t) * d[a];
                    begin += in[a] * in[a];
                    finish += out[a] * out[a];
                }
                const double free = greatest(distance - kHalfSlack, 0.0);
                if (greatest(begin, finish) >= free * free) {
                    double corners[8], at = -1.0;
                    int64_t nearest = load_corners(descent, cell, in, out, corners);
                    if (nearest >= 0) {
                        at = meet_voxel(corners, in, d, until - t);
                        if (at >= 0.0) at += t;
                    } else if (nearest == kUnknown && distance <= kHitDistance && !is_elsewhere(descent, cell)) {
                        const double foot =
                            (corner[0] - o[0]) * d[0] + (corner[1] - o[1]) * d[1] + (corner[2] - o[2]) * d[2];
                        at = least(greatest(foot, t), until);
                        nearest = index;
                    }
                    if (at > t_max) return t_max;
                    if (at >= 0.0) {
                        hit = nearest;
                        return at;
                    }
                }
                // The corner knows its distance, the ray's point is up to a voxel diagonal away.
                away = square_root(begin);
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
