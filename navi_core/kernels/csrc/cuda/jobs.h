// What one CUDA thread does, for each kernel. The CPU runs the same jobs in a loop (cpu/library.cpp): both are built
// without fused or reassociated arithmetic, so that they give the same bits and the one checks the other.
//
// Nothing here trusts its rows, for nobody can look at them without waiting for the device: a row of a scene that
// does not exist, or with a number that is not finite, meets nothing.
//
// A ray walks a scene's cells in whole numbers, the finest subcell that it is in, so rounding cannot trap it: a cell
// is left across the boundary of its exit axis, and on the other axes the ray stays within the box it leaves and
// never moves backwards. Times of triangles are computed in double, whatever Real is.
#pragma once

#include "rays/closest.h"
#include "rays/views.h"

namespace navi {

template <typename Real>
struct Axis {
    Real start;    // coordinate where the walk begins [voxel]
    Real slope;
    Real inverse;
    int cell;      // finest subcell, 0 .. 16 G - 1
    int forward;   // 1 towards higher coordinates, 0 towards lower ones

    NAVI_INLINE Axis begin(double at, double direction, double per_fine, int last) {
        Axis axis;
        const double cell = at * per_fine;
        axis.cell = cell > 0.0 ? (cell < last ? static_cast<int>(cell) : last) : 0;
        axis.slope = static_cast<Real>(direction);
        axis.forward = direction < 0.0 ? 0 : 1;
        const bool flat = !(direction <= -kFlat || direction >= kFlat);
        // A flat axis is never the exit: its boundary is at least a voxel and an infinity away.
        axis.start = static_cast<Real>(flat ? at - 1.0 : at);
        axis.inverse = flat ? static_cast<Real>(kHuge) : static_cast<Real>(1.0 / direction);
        axis.forward = flat ? 1 : axis.forward;
        axis.slope = flat ? Real(0) : axis.slope;
        return axis;
    }
    // Last subcell along the ray of a box of `reach`, in the cell of edge `size` that begins at `low`.
    NAVI_INLINE int last_of(const Axis& a, int low, int size, int reach) {
        return a.forward ? low + reach - 1 : low + size - reach;
    }
    NAVI_INLINE Real leaves(const Axis& a, int last, Real fine) {
        return (static_cast<Real>(last + a.forward) * fine - a.start) * a.inverse;
    }
    // Subcell at walk time t, no further than `last` and not behind the present one.
    NAVI_INLINE int at(const Axis& a, Real t, int last, Real per_fine) {
        const Real low = static_cast<Real>(least(a.cell, last)), high = static_cast<Real>(greatest(a.cell, last));
        Real x = (a.start + t * a.slope) * per_fine;
        x = x > low ? x : low;  // false for NaN
        x = x < high ? x : high;
        return static_cast<int>(x);
    }
};

// First triangle of a list within [low, best - tie]; `winner` stays -1 where there is none.
template <typename Real>
NAVI_INLINE void nearest_in_list(const SceneView& s, int start, int count, const double o[3], const double d[3],
                                 double low, double& best, int& winner) {
#if defined(__CUDA_ARCH__)
#pragma unroll 1  // unrolled, it takes a third more registers
#endif
    for (int m = start; m < start + count; ++m) {
        const int f = read(s.items + m);
        const float* planes = s.planes + 16 * static_cast<int64_t>(f);
        float p[4];
        read4(planes, p);
        const double slope = p[0] * d[0] + p[1] * d[1] + p[2] * d[2];
        const double t = -(p[0] * o[0] + p[1] * o[1] + p[2] * o[2] + p[3]) / slope;
        if (!(t >= low && t <= best - kTie)) continue;  // a parallel ray gives no number or an infinite one
        const Real x = static_cast<Real>(o[0] + t * d[0]);
        const Real y = static_cast<Real>(o[1] + t * d[1]);
        const Real z = static_cast<Real>(o[2] + t * d[2]);
        const Real edge = static_cast<Real>(-kEdgeDilation);
        bool inside = true;
        for (int e = 1; inside && e <= 3; ++e) {
            read4(planes + 4 * e, p);
            inside = !(p[0] * x + p[1] * y + p[2] * z + p[3] < edge);
        }
        if (!inside) continue;
        best = t;
        winner = f;
    }
}

// Clip the ray to the scene's cube; false where it misses.
NAVI_INLINE bool enter_cube(const double o[3], const double d[3], double resolution, double t_max, double& t) {
    double leave = t_max;
    t = 0.0;
    if (o[0] >= 0.0 && o[0] <= resolution && o[1] >= 0.0 && o[1] <= resolution && o[2] >= 0.0 && o[2] <= resolution)
        return t_max >= 0.0;  // it begins within: nothing to divide
    for (int a = 0; a < 3; ++a) {
        if (d[a] == 0.0) {
            if (!(o[a] >= 0.0 && o[a] <= resolution)) return false;
            continue;
        }
        double near = -o[a] / d[a], far = (resolution - o[a]) / d[a];
        if (near > far) {
            const double swap = near;
            near = far;
            far = swap;
        }
        t = greatest(t, near);
        leave = least(leave, far);
    }
    return t <= leave;  // false for NaN
}

template <typename Real>
NAVI_INLINE Hit cast_surface_ray(const SceneView& s, const double o[3], const double d[3], double t_max) {
    const Hit miss{t_max, -1};
    double entry;
    if (!enter_cube(o, d, s.resolution, t_max, entry)) return miss;
    const int cells = s.cells, last = kFine * cells - 1;
    const double fine_edge = static_cast<double>(s.resolution) / (kFine * cells);
    const Real fine = static_cast<Real>(fine_edge), per_fine = static_cast<Real>(1.0 / fine_edge);
    // The walk starts at the entry, so that its coordinates stay small however far away the origin is.
    using A = Axis<Real>;
    A x = A::begin(o[0] + entry * d[0], d[0], 1.0 / fine_edge, last);
    A y = A::begin(o[1] + entry * d[1], d[1], 1.0 / fine_edge, last);
    A z = A::begin(o[2] + entry * d[2], d[2], 1.0 / fine_edge, last);
    const int octant = (1 - x.forward) | (1 - y.forward) << 1 | (1 - z.forward) << 2;
    Real t = 0;
    // Every round crosses a boundary forwards, so the loop ends without a count.
    for (;;) {
        const int index = ((x.cell >> 4) * cells + (y.cell >> 4)) * cells + (z.cell >> 4);
        const uint64_t word = read(s.words + index);
        const uint32_t upper = static_cast<uint32_t>(word >> 32);
        int shift = 4, start = 0, count = 0;  // the box has an edge of 1 << shift
        int reach = kFine * static_cast<int>(word >> 8 * octant & 255);
        if (upper <= kSplitWord) {
            start = static_cast<int>(word & 0xFFFFFFFFu);
            count = upper == kSplitWord ? -1 : static_cast<int>(upper);
            while (count < 0) {
                shift -= 2;
                const int sub = (x.cell >> shift & 3) << 4 | (y.cell >> shift & 3) << 2 | (z.cell >> shift & 3);
                const int32_t* r = s.records + 2 * (static_cast<int64_t>(start) + sub);
                start = read(r);
                count = shift > 0 ? read(r + 1) : greatest(read(r + 1), 0);  // cells are split twice at most
            }
            reach = 1 << shift;
        }
        const int size = 1 << shift, mask = ~(size - 1);
        const int ex = A::last_of(x, x.cell & mask, size, reach);
        const int ey = A::last_of(y, y.cell & mask, size, reach);
        const int ez = A::last_of(z, z.cell & mask, size, reach);
        const Real tx = A::leaves(x, ex, fine), ty = A::leaves(y, ey, fine), tz = A::leaves(z, ez, fine);
        const Real leave = least(tx, least(ty, tz));
        const double until = entry + leave;
        if (count > 0) {
            double best = least(until + kAfter, t_max) + kTie;
            int winner = -1;
            nearest_in_list<Real>(s, start, count, o, d, greatest(entry + t - kBefore, 0.0), best, winner);
            if (winner >= 0) return Hit{best, winner};
        }
        if (until >= t_max) return miss;
        const int qx = A::at(x, leave, ex, per_fine);
        const int qy = A::at(y, leave, ey, per_fine);
        const int qz = A::at(z, leave, ez, per_fine);
        const bool cross_x = tx == leave, cross_y = !cross_x && ty == leave, cross_z = !cross_x && !cross_y;
        x.cell = cross_x ? ex + 2 * x.forward - 1 : qx;
        y.cell = cross_y ? ey + 2 * y.forward - 1 : qy;
        z.cell = cross_z ? ez + 2 * z.forward - 1 : qz;
        // An empty cube may reach beyond the grid, so the ray may have left it on any axis.
        const unsigned end = static_cast<unsigned>(last);  // negative numbers are beyond it too
        if (static_cast<unsigned>(x.cell) > end || static_cast<unsigned>(y.cell) > end ||
            static_cast<unsigned>(z.cell) > end)
            return miss;
        t = greatest(t, leave);
    }
}

// What the rays of one row share.
struct Row {
    SceneView scene;
    double origin[3];  // [voxel]
    double t_max;      // [voxel]
};

NAVI_INLINE Row row_of(const SceneView& s, const Rays& rays, int64_t b) {
    const float* p = rays.origins + 3 * b;
    return Row{s,
               {(p[0] - s.lower[0]) / s.voxel, (p[1] - s.lower[1]) / s.voxel, (p[2] - s.lower[2]) / s.voxel},
               rays.max_distance / s.voxel};
}

// Cast ray `r` of row `b` and write its answer.
template <typename Real>
NAVI_INLINE void cast_surface_one(const Row& row, const Rays& rays, int64_t b, int64_t r) {
    const float* d = rays.directions + 3 * ((rays.shared ? 0 : b * rays.rays) + r);
    const double direction[3] = {d[0], d[1], d[2]};
    const Hit hit = cast_surface_ray<Real>(row.scene, row.origin, direction, row.t_max);
    const bool met = hit.triangle >= 0 && hit.t <= row.t_max;
    const int64_t at = b * rays.rays + r;
    rays.depth[at] = static_cast<float>(met ? greatest(hit.t, 0.0) * row.scene.voxel : rays.max_distance);
    rays.label[at] = met ? read(row.scene.semantic + hit.triangle) : 0;
    rays.valid[at] = met;
}

// Rays, and the order in which threads take them: neighbouring threads should look in neighbouring directions.
struct Cast {
    Rays rays;
    int64_t scenes;   // S
    int32_t columns;  // elevations of a panorama whose rays lie azimuth by azimuth; 0: the order is as it comes
    int32_t wide;     // azimuths of a tile, a divisor of the azimuths
    int32_t high;     // elevations of a tile, a divisor of `columns`
};

// Points whose clearance is asked.
struct Points {
    int64_t scenes;        // S
    const float* points;   // (Q, 3) [m]
    const int32_t* scene;  // (Q)
    int64_t count;
    double radius;         // [m]; of `within` alone
    float* distance;       // (Q) [m], or null
    uint8_t* within;       // (Q), or null
};

NAVI_INLINE bool finite3(const float* p) {
    const float a = p[0] - p[0], b = p[1] - p[1], c = p[2] - p[2];
    return a == 0.0f && b == 0.0f && c == 0.0f;  // an infinity or NaN less itself is NaN
}

NAVI_INLINE const float* direction_of(const Rays& rays, int64_t row, int64_t ray) {
    return rays.directions + 3 * ((rays.shared ? 0 : row * rays.rays) + ray);
}

// The ray that the job at `place` of its row takes.
NAVI_INLINE int ray_at(const Cast& cast, int place) {
    if (cast.columns == 0) return place;
    const int size = cast.wide * cast.high, tile = place / size, within = place % size;
    const int tiles = cast.columns / cast.high;
    const int azimuth = tile / tiles * cast.wide + within / cast.high;
    const int elevation = tile % tiles * cast.high + within % cast.high;
    return azimuth * cast.columns + elevation;
}

NAVI_INLINE void write_miss(const Rays& rays, int64_t row, int64_t ray) {
    const int64_t at = row * rays.rays + ray;
    rays.depth[at] = static_cast<float>(rays.max_distance);
    rays.label[at] = 0;
    rays.valid[at] = 0;
}

// The scene of a row, -1 where its rays meet nothing.
NAVI_INLINE int scene_of(const Cast& cast, int64_t row) {
    const int scene = cast.rays.scene[row];
    return scene >= 0 && scene < cast.scenes && finite3(cast.rays.origins + 3 * row) ? scene : -1;
}

// Job `place` of a row, through the surface tree that `shared` views where the row has a scene.
NAVI_INLINE void cast_job(int scene, const Row& shared, const Cast& cast, int64_t row, int place) {
    const Rays& rays = cast.rays;
    if (place >= rays.rays) return;
    const int64_t ray = ray_at(cast, place);
    if (scene < 0 || !finite3(direction_of(rays, row, ray)))
        write_miss(rays, row, ray);
    else
        cast_surface_one<float>(shared, rays, row, ray);
}

// Squared distance of point `i`, `best` where nothing is nearer, there is no scene, or the point is none.
NAVI_INLINE double squared_distance(const Hierarchies& all, const Points& ask, int64_t i, double best, bool any) {
    const float* p = ask.points + 3 * i;
    const int scene = ask.scene[i];
    const double at[3] = {p[0], p[1], p[2]};
    const bool known = scene >= 0 && scene < ask.scenes && finite3(p);
    return known ? nearest_squared(box_tree(all, scene), at, best, any) : best;
}

// Clearance of point `i`: infinite where it has none.
NAVI_INLINE void distance_job(const Hierarchies& all, const Points& ask, int64_t i) {
    if (i >= ask.count) return;
    constexpr double far = 1e300;  // beyond float: written as an infinity
    const double squared = squared_distance(all, ask, i, far, false);
    ask.distance[i] = static_cast<float>(squared < far ? square_root(squared) : far);
}

NAVI_INLINE void within_job(const Hierarchies& all, const Points& ask, int64_t i) {
    const double limit = ask.radius * ask.radius;
    if (i < ask.count) ask.within[i] = squared_distance(all, ask, i, limit, true) < limit;
}

}  // namespace navi
