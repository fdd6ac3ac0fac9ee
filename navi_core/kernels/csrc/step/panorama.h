// A panorama: the channels of the observation, written while a tile's hits are at hand, and everything that rewards and
// the speed limiter read. world/sensor/panorama.py has the same as tensor operations.
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

}  // namespace navi
