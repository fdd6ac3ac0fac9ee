// What one CUDA thread does, for each kernel. The CPU runs the same jobs in a loop (jobs_cpu.cpp): both are built
// without fused or reassociated arithmetic, so that they give the same bits and the one checks the other.
//
// Nothing here trusts its rows, for nobody can look at them without waiting for the device: a row of a scene that
// does not exist, or with a number that is not finite, meets nothing.
#pragma once

#include "rays/closest.h"
#include "cuda/trace.h"
#include "rays/views.h"

namespace navi {

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
