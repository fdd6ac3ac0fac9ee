// Lookahead: each row flies a held action to its end, looks at a few bins from there, and gets the reward terms of that;
// nothing is counted. world/lookahead.py has the same as tensor operations. Called row by row.
#pragma once

#include <cstring>
#include <vector>

#include "step/steps.h"

namespace navi {

constexpr float kNothing = 2.0f;  // normalised depth where nothing is hit

// Beside the `Flights` it belongs to, whose `front_distance` is not read.
struct LookaheadFlight {
    const float* obs;      // (N, 3, Az, El) normalised depth, semantic id, valid
    const int64_t* obs_index;  // (B) which of them each row sees where its flight begins
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
NAVI_INLINE float nearest_of(const LookaheadFlight& h, const float* depth, const float* valid, int64_t azimuth) {
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
NAVI_INLINE float ahead_of(const LookaheadFlight& h, const float* depth, const float* valid, float* nearest, int64_t azimuth) {
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
NAVI_INLINE void fly_ahead(const LookaheadFlight& h, const Drone& drone, const BoxTree& tree, const Flights& f, int64_t row,
                         float* nearest) {
    const int64_t rays = h.azimuths * h.elevations;
    const float *depth = h.obs + 3 * rays * h.obs_index[row], *valid = depth + 2 * rays;
    for (int64_t a = 0; a < h.azimuths; ++a) nearest[a] = -1.0f;
    float *position = f.position + 3 * row, *velocity = f.velocity + 4 * row, *soon = h.soon + 4 * row;
    const float begun = f.yaw[row], before_turn = ahead_of(h, depth, valid, nearest, 0);
    const double clearance = distance_to(tree, position), x = position[0], y = position[1], z = position[2];
    // Positions are rounded at every substep.
    const double rounding = 1e-3 + 1e-4 * (::fabs(x) + ::fabs(y) + ::fabs(z));
    Drone own;
    float limits[4];
    Drone leg = drone_of(drone, nullptr, row, f.scene[row], own, limits);
    f.collided[row] = 0;
    f.attempted[row] = 0.0f;
    double path = 0.0;
    for (int64_t n = 0; n < h.count; ++n) {
        // Azimuths run clockwise, yaw counter-clockwise.
        const double turn = static_cast<double>(begun - f.yaw[row]) * (static_cast<double>(h.azimuths) / kFullTurn);
        const int64_t azimuth = static_cast<int64_t>(::nearbyint(turn));
        // Never less far than before the turn: the flight simulated is at least as fast as the one to come.
        const float seen = n == 0 ? before_turn : greatest(before_turn, ahead_of(h, depth, valid, nearest, azimuth));
        const float front_distance =
            seen > 1.0f ? HUGE_VALF : static_cast<float>(::expm1(static_cast<double>(seen) * h.log_range));
        const float from[3] = {position[0], position[1], position[2]};
        uint8_t hit;
        float attempted;
        leg.substeps = h.legs[n];
        fly(leg, tree, f.action + 4 * row, front_distance, position, f.yaw[row], velocity, hit, attempted,
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

// What N drones have seen, and how rewards read it.
struct Lookahead {
    Scenes scenes;
    Sensor sensor;              // of a few bins
    Floors floors;
    Rewards rewards;            // with the visits of the drones
    uint8_t* seen;              // (N, C) their seen floor
    float* fractions;              // (N, 4) of what each saw last: misses, near, in the band, in the band ahead
    const int64_t* azimuths;    // bins of a full observation that are nearest in angle to the sensor's,
    const int64_t* elevations;  // along both its axes
    double near;                // normalised depths: up to which a hit is near,
    double start;               // at which the structure band begins,
    const float* band;          // (S) and ends
    double log_range;           // ln(1 + M)
    double decision;            // share of a horizon that one decision flies
};

// B of the drones.
struct Drones {
    const int64_t* rows;    // (B) their numbers among the N
    const int64_t* scene;   // (B)
    const float* position;  // (B, 3) [m]
    const float* yaw;       // (B) [rad]
    int64_t count;
};

// Full observations of the drones.
struct Observed {
    const float* obs;  // (B, 3, Az, El) normalised depth, semantic id, valid
    int64_t azimuths;
    int64_t elevations;
};

// Write the fractions of an observation's sampled bins, and how far its near-horizon rays reach.
NAVI_INLINE void sight_of(const Lookahead& o, const Observed& full, int64_t row, int64_t scene, float* fractions, float* reach) {
    const int64_t rays = full.azimuths * full.elevations, side = o.sensor.ahead;
    const float *depth = full.obs + 3 * rays * row, *valid = depth + 2 * rays;
    const float near = static_cast<float>(o.near), start = static_cast<float>(o.start), band = o.band[scene];
    int32_t counts[4] = {};
    for (int64_t a = 0; a < o.sensor.azimuths; ++a) {
        const int64_t column = o.azimuths[a] * full.elevations;
        const bool ahead = a < side || a >= o.sensor.azimuths - side;
        float longest = 0.0f;
        for (int64_t e = 0; e < o.sensor.elevations; ++e) {
            const float far = depth[column + o.elevations[e]];
            if (e >= o.sensor.horizon_first && e < o.sensor.horizon_last) longest = greatest(longest, far);
            const int32_t hit = valid[column + o.elevations[e]] > 0.0f;
            const int32_t inside = hit & static_cast<int32_t>(start <= far && far <= band);
            counts[0] += hit;
            counts[1] += hit & static_cast<int32_t>(far <= near);
            counts[2] += inside;
            counts[3] += inside & static_cast<int32_t>(ahead);
        }
        const float longest_depth = static_cast<float>(::expm1(static_cast<double>(longest) * o.log_range));
        reach[a] = least(longest_depth * static_cast<float>(o.sensor.horizon_cos), static_cast<float>(o.sensor.view_radius));
    }
    const float all = static_cast<float>(rays_of(o.sensor));
    for (int i = 0; i < 3; ++i) fractions[i] = static_cast<float>(counts[i]) / all;
    fractions[0] = 1.0f - fractions[0];
    fractions[3] = static_cast<float>(counts[3]) / static_cast<float>(2 * side * o.sensor.elevations);
}

// Count where a drone is as visited, and what it sees as seen. `reach`: room for the sensor's azimuths.
NAVI_INLINE void remember(const Lookahead& o, const Drones& drones, const Observed& full, int64_t row, float* reach) {
    const int64_t drone = drones.rows[row], scene = drones.scene[row];
    sight_of(o, full, row, scene, o.fractions + 4 * drone, reach);
    float turn[2];
    cos_sin(drones.yaw[row], turn);
    mark_fan(o.floors, scene, drones.position + 3 * row, turn, reach, o.seen + drone * o.floors.cells);
    Outcome outcome{};
    outcome.position = drones.position + 3 * row;
    outcome.yaw = drones.yaw[row];
    explore(o.rewards, drone, scene, outcome, 1);
}

// Room of a thread for what a row sees and for what would be counted.
struct Scratch {
    std::vector<float> panorama, nearest;
    std::vector<uint8_t> seen;
    std::vector<int64_t> visits;
};

// Fly a row to the end of its horizon, and write its terms (10).
NAVI_INLINE void lookahead_terms(const Lookahead& o, const StepPath& path, const Layout& layout, const Drone& body,
                         const Flights& f, const LookaheadFlight& h, const Drones& drones, int64_t row, Scratch& room,
                         float* terms) {
    const int64_t drone = drones.rows[row], scene = drones.scene[row];
    const int64_t rays = rays_of(o.sensor), cells = o.floors.cells;
    room.panorama.resize(static_cast<size_t>(4 * rays + o.sensor.azimuths));
    room.nearest.resize(static_cast<size_t>(h.azimuths));
    room.seen.assign(o.seen + drone * cells, o.seen + (drone + 1) * cells);
    room.visits.assign(o.rewards.visits + drone * o.rewards.cells, o.rewards.visits + (drone + 1) * o.rewards.cells);
    const BoxTree tree = box_tree(*o.scenes.hierarchies, static_cast<int>(scene));
    fly_ahead(h, body, tree, f, row, room.nearest.data());

    const float* position = f.position + 3 * row;
    float* numbers = room.panorama.data();
    const Channels seen{numbers, numbers + rays, numbers + 2 * rays, numbers + 3 * rays};
    path.look(o.scenes, o.sensor, layout, Stand{scene, position, f.yaw[row]}, seen, 0, layout.bundles);
    const Reading now = read_panorama(o.scenes, o.sensor, o.floors, o.rewards.band[scene], scene, position, f.yaw[row], seen,
                                      numbers + 4 * rays, room.seen.data());
    const Outcome outcome{position, now.fractions, o.fractions + 4 * drone, h.path[row] * static_cast<float>(o.decision),
                          f.yaw[row], now.clearance, h.clearance[row], f.attempted[row], now.gain, f.collided[row] != 0};
    Rewards rewards = o.rewards;
    rewards.visits = room.visits.data();
    reward_terms(rewards, 0, scene, outcome, 1, terms, 1);
}

}  // namespace navi
