// Where held actions lead: several decisions of a drone in a row, the speed limiter fed by the one observation at
// hand. world/lookahead/flight.py has the same as tensor operations.
#pragma once

#include "dynamics.h"

namespace navi {

constexpr float kNothing = 2.0f;  // normalised depth where nothing is hit

// Beside the `Flights` it belongs to, whose `front` is not read.
struct Horizon {
    const float* obs;      // (N, 3, Az, El) normalised depth, semantic id, valid
    const int64_t* place;  // (B) which of them each row sees where its flight begins
    int64_t azimuths;
    int64_t elevations;
    int64_t side;          // azimuths on each side that the speed limiter looks at,
    int64_t low;           // its first
    int64_t high;          // and last + 1 elevation
    double log_range;      // ln(1 + M)
    const int64_t* legs;   // (L) substeps of each decision
    int64_t count;         // L
    float* path;           // (B) length of the way [m], written
    float* soon;           // (B, 4) velocity after the first decision, written
    float* clearance;      // (B) distance to the surface where the flight begins [m], written
};

// The nearest valid depth of an azimuth within the limiter's elevations, `kNothing` without.
NAVI_INLINE float nearest_of(const Horizon& h, const float* depth, const float* valid, int64_t azimuth) {
    constexpr int kLanes = 8;  // so many minima side by side, which a compiler can keep in registers
    const float *d = depth + azimuth * h.elevations, *v = valid + azimuth * h.elevations;
    float best[kLanes];
    for (float& b : best) b = kNothing;
    int64_t e = h.low;
    for (; e + kLanes <= h.high; e += kLanes)
        for (int l = 0; l < kLanes; ++l) {
            const float seen = v[e + l] > 0.0f ? d[e + l] : kNothing;
            best[l] = seen < best[l] ? seen : best[l];
        }
    for (; e < h.high; ++e)
        if (v[e] > 0.0f) best[0] = least(best[0], d[e]);
    for (int l = 1; l < kLanes; ++l) best[0] = least(best[0], best[l]);
    return best[0];
}

// The nearest hit ahead of a heading that was turned to an azimuth of the observation; `nearest` (Az) keeps what is
// known of the azimuths, below zero where nothing is.
NAVI_INLINE float ahead_of(const Horizon& h, const float* depth, const float* valid, float* nearest, int64_t azimuth) {
    float found = kNothing;
    for (int64_t i = -h.side; i < h.side; ++i) {
        int64_t a = (azimuth + i) % h.azimuths;
        if (a < 0) a += h.azimuths;
        if (nearest[a] < 0.0f) nearest[a] = nearest_of(h, depth, valid, a);
        found = least(found, nearest[a]);
    }
    return found;
}

// Fly a row to the end of its horizon. `nearest`: room for Az numbers.
NAVI_INLINE void foresee(const Horizon& h, const Drone& drone, const BoxTree& tree, const Flights& f, int64_t row,
                         float* nearest) {
    const int64_t rays = h.azimuths * h.elevations;
    const float *depth = h.obs + 3 * rays * h.place[row], *valid = depth + 2 * rays;
    for (int64_t a = 0; a < h.azimuths; ++a) nearest[a] = -1.0f;
    float *position = f.position + 3 * row, *velocity = f.velocity + 4 * row, *soon = h.soon + 4 * row;
    const float begun = f.yaw[row], before_turn = ahead_of(h, depth, valid, nearest, 0);
    const double at[3] = {position[0], position[1], position[2]};
    const double clearance = square_root(nearest_squared(tree, at, __builtin_huge_val(), false));
    // Positions are rounded at every substep.
    const double rounding = 1e-3 + 1e-4 * (::fabs(at[0]) + ::fabs(at[1]) + ::fabs(at[2]));
    Drone leg = drone;
    f.collided[row] = 0;
    f.attempted[row] = 0.0f;
    double path = 0.0;
    for (int64_t n = 0; n < h.count; ++n) {
        // Azimuths run clockwise, yaw counter-clockwise.
        const double turn = static_cast<double>(begun - f.yaw[row]) * (static_cast<double>(h.azimuths) / kFullTurn);
        const int64_t azimuth = static_cast<int64_t>(::nearbyint(turn));
        // Never less far than before the turn: the flight foreseen is at least as fast as the one to come.
        const float seen = n == 0 ? before_turn : greatest(before_turn, ahead_of(h, depth, valid, nearest, azimuth));
        const float front =
            seen > 1.0f ? HUGE_VALF : static_cast<float>(::expm1(static_cast<double>(seen) * h.log_range));
        const float from[3] = {position[0], position[1], position[2]};
        uint8_t hit;
        float attempted;
        leg.substeps = h.legs[n];
        fly(leg, tree, f.action + 4 * row, front, position, f.yaw[row], velocity, hit, attempted,
            clearance - drone.radius - rounding - path);
        const float way[3] = {position[0] - from[0], position[1] - from[1], position[2] - from[2]};
        path += speed_of(way);
        f.collided[row] |= hit;
        f.attempted[row] = greatest(f.attempted[row], attempted);
        if (n == 0)
            for (int axis = 0; axis < 4; ++axis) soon[axis] = velocity[axis];
    }
    h.path[row] = static_cast<float>(path);
    h.clearance[row] = static_cast<float>(clearance);
}

}  // namespace navi
