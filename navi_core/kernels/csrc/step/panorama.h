// What a drone sees, row by row. A panorama: the channels of the observation, written while a tile's hits are at hand,
// and everything that rewards and the speed limiter read; world/sensor/panorama.py has the same as tensor operations. And
// the floor that a fan of horizontal rays sees; world/floor/reachable.py has it as tensor operations, to the bit.
#pragma once

#include <cmath>

#include "rays/views.h"

namespace navi {

constexpr float kNear = 2.0f, kBandStart = 1.5f;  // [m]

struct Sensor {
    const float* directions;  // (Az * El, 3) unit vectors in the drone's frame, azimuth by azimuth
    int64_t azimuths;
    int64_t elevations;
    double max_distance;      // M [m]
    double scale;             // 1 / ln(1 + M)
    int64_t limiter_side;     // azimuths on each side that the speed limiter looks at,
    int64_t limiter_low;      // its first
    int64_t limiter_high;     // and last + 1 elevation
    int64_t ahead;            // azimuths on each side that count as ahead for the rewards
    int64_t horizon_first;    // elevations nearest to the horizon
    int64_t horizon_last;     // last + 1
    double horizon_cos;       // cosine of their elevation
    double view_radius;       // bound of the floor's rays [m]
};

NAVI_INLINE int64_t rays_of(const Sensor& sensor) {
    return sensor.azimuths * sensor.elevations;
}

// One row's panorama as it is written.
struct Channels {
    float* normalised;  // (R) ln(1 + depth) * scale
    float* semantic;    // (R)
    float* valid;       // (R)
    float* depth;       // (R) [m]
};

// Count hits, those within 2 m, and those in the band, of the rays [first, last).
NAVI_INLINE void count_hits(const Channels& seen, int64_t first, int64_t last, float far, int32_t counts[3]) {
    int32_t hits = 0, near = 0, band = 0;
    for (int64_t r = first; r < last; ++r) {
        const float d = seen.depth[r];
        const int32_t v = seen.valid[r] != 0.0f;
        hits += v;
        near += v & static_cast<int32_t>(d <= kNear);
        band += v & static_cast<int32_t>(d >= kBandStart) & static_cast<int32_t>(d <= far);
    }
    counts[0] = hits, counts[1] = near, counts[2] = band;
}

// Write the fractions (4) of rays that miss, that hit within 2 m, in the band, and in the band ahead.
NAVI_INLINE void fractions_of(const Sensor& sensor, const Channels& seen, float far, float* fractions) {
    const int64_t rays = rays_of(sensor), side = sensor.ahead * sensor.elevations;
    int32_t left[3], rest[3], right[3];
    count_hits(seen, 0, side, far, left);
    count_hits(seen, side, rays - side, far, rest);
    count_hits(seen, rays - side, rays, far, right);
    const float all = static_cast<float>(rays);
    for (int i = 0; i < 3; ++i) fractions[i] = static_cast<float>(left[i] + rest[i] + right[i]) / all;
    fractions[0] = 1.0f - fractions[0];
    fractions[3] = static_cast<float>(left[2] + right[2]) / static_cast<float>(2 * side);
}

// The nearest hit that the speed limiter sees [m], infinite where there is none.
NAVI_INLINE float front_distance_of(const Sensor& sensor, const Channels& seen) {
    float nearest = HUGE_VALF;
    for (int64_t a = 0; a < sensor.azimuths; ++a) {
        if (a >= sensor.limiter_side && a < sensor.azimuths - sensor.limiter_side) continue;
        for (int64_t r = a * sensor.elevations + sensor.limiter_low; r < a * sensor.elevations + sensor.limiter_high; ++r)
            if (seen.valid[r] != 0.0f) nearest = least(nearest, seen.depth[r]);
    }
    return nearest;
}

// Write the horizontal length (Az) of the near-horizon rays, at most the view radius [m].
NAVI_INLINE void reach_of(const Sensor& sensor, const Channels& seen, float* reach) {
    const float cosine = static_cast<float>(sensor.horizon_cos), radius = static_cast<float>(sensor.view_radius);
    for (int64_t a = 0; a < sensor.azimuths; ++a) {
        const float* depth = seen.depth + a * sensor.elevations;
        float longest = depth[sensor.horizon_first];
        for (int64_t e = sensor.horizon_first + 1; e < sensor.horizon_last; ++e) longest = greatest(longest, depth[e]);
        reach[a] = least(longest * cosine, radius);
    }
}

constexpr double kFarAway = 1e9;  // [cell] so far from its grid a drone sees none of it, and numbers lose their cells

struct Floors {
    const float* fan;          // (R, 2) horizontal unit directions (x, z) in the drone's frame
    const double* origin;      // (G, 2) minimum corner of each grid [m]
    const int64_t* shape;      // (G, 2) cells of each grid
    const double* levels;      // (G, S) where storeys begin [m]; infinite where a scene has fewer
    const uint8_t* reachable;  // (G, C), storey slowest, then x
    int64_t rays;
    int64_t cells;             // C
    int64_t storeys;           // S
    double cell;               // edge of a cell [m]
};

// The storey that a height lies on: the last that begins below it, or the first.
NAVI_INLINE int64_t storey_of(const Floors& floors, int64_t grid, float height) {
    const double* levels = floors.levels + grid * floors.storeys;
    int64_t storey = 0;
    for (int64_t s = 1; s < floors.storeys; ++s) storey += levels[s] <= height;
    return storey;
}

// Mark a cell and return whether that is new.
NAVI_INLINE int mark_cell(uint8_t* seen, const uint8_t* reachable, int64_t i, int64_t k, int64_t nx, int64_t nz) {
    if (static_cast<uint64_t>(i) >= static_cast<uint64_t>(nx) || static_cast<uint64_t>(k) >= static_cast<uint64_t>(nz))
        return 0;
    const int64_t index = i * nz + k;
    if (seen[index] || !reachable[index]) return 0;
    seen[index] = 1;
    return 1;
}

// Call `mark(line, when)` for each grid line of one axis that a ray from `at` [cells] crosses, at `rate` along it.
template <typename Mark>
NAVI_INLINE void each_crossing(double at, int64_t cell, double rate, double end, const Mark& mark) {
    if (rate == 0.0) return;
    const double slope = 1.0 / rate, step = ::fabs(slope), first = (static_cast<double>(cell + (rate > 0.0)) - at) * slope;
    const int64_t side = rate > 0.0 ? 1 : -1;
    int64_t crossed = 0;
    for (double when = first; when <= end; when = first + static_cast<double>(crossed) * step) {
        ++crossed;
        mark(cell + side * crossed, when);
    }
}

// Mark the reachable cells of the drone's storey that its rays of length `reach` (R) cross; return how many are new. A
// ray enters a cell where it crosses a grid line; where, follows from the line's number.
NAVI_INLINE int64_t mark_fan(const Floors& floors, int64_t grid, const float* position, const float* turn,
                             const float* reach, uint8_t* seen) {
    const int64_t nx = floors.shape[2 * grid], nz = floors.shape[2 * grid + 1];
    const int64_t below = storey_of(floors, grid, position[1]) * nx * nz;
    const uint8_t* reachable = floors.reachable + grid * floors.cells + below;
    seen += below;
    const double px = (position[0] - floors.origin[2 * grid]) / floors.cell;
    const double pz = (position[2] - floors.origin[2 * grid + 1]) / floors.cell;
    if (!(::fabs(px) < kFarAway && ::fabs(pz) < kFarAway)) return 0;  // true for NaN
    const int64_t i = static_cast<int64_t>(::floor(px)), k = static_cast<int64_t>(::floor(pz));
    int64_t fresh = mark_cell(seen, reachable, i, k, nx, nz);
    for (int64_t r = 0; r < floors.rays; ++r) {
        const float* aim = floors.fan + 2 * r;
        const double dx = aim[0] * turn[0] + aim[1] * turn[1], dz = aim[1] * turn[0] - aim[0] * turn[1];
        const double end = reach[r] / floors.cell;
        each_crossing(px, i, dx, end, [&](int64_t line, double when) {
            fresh += mark_cell(seen, reachable, line, static_cast<int64_t>(::floor(pz + dz * when)), nx, nz);
        });
        each_crossing(pz, k, dz, end, [&](int64_t line, double when) {
            fresh += mark_cell(seen, reachable, static_cast<int64_t>(::floor(px + dx * when)), line, nx, nz);
        });
    }
    return fresh;
}

// Set a row's map to a spawn's footprint (C / 8 bytes, the first cell in the lowest bit).
NAVI_INLINE void begin_floor(const Floors& floors, const uint8_t* footprint, uint8_t* seen) {
    for (int64_t c = 0; c < floors.cells; ++c) seen[c] = footprint[c >> 3] >> (c & 7) & 1;
}

}  // namespace navi
