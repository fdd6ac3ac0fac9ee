// What held motions would bring: each row flies to the end of its horizon, looks at a few bins from there, and its
// reward is told; nothing is counted. world/lookahead/terms.py has the same as tensor operations. Called row by row.
#pragma once

#include <cstring>
#include <vector>

#include "horizon.h"
#include "steps.h"

namespace navi {

// What N drones have seen, and how it is told. Every field has eight bytes.
struct Outlook {
    Scenes scenes;
    Sensor sensor;              // of a few bins
    Floors floors;
    Rewards rewards;            // with the visits of the drones
    uint8_t* seen;              // (N, C) their seen floor
    float* shares;              // (N, 4) of what each saw last: misses, near, in the band, in the band ahead
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

// Write the shares of an observation's sampled bins, and how far its near-horizon rays reach.
NAVI_INLINE void sight_of(const Outlook& o, const Observed& full, int64_t row, int64_t scene, float* shares, float* reach) {
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
        const float metres = static_cast<float>(::expm1(static_cast<double>(longest) * o.log_range));
        reach[a] = least(metres * static_cast<float>(o.sensor.horizon_cos), static_cast<float>(o.sensor.view_radius));
    }
    const float all = static_cast<float>(rays_of(o.sensor));
    for (int i = 0; i < 3; ++i) shares[i] = static_cast<float>(counts[i]) / all;
    shares[0] = 1.0f - shares[0];
    shares[3] = static_cast<float>(counts[3]) / static_cast<float>(2 * side * o.sensor.elevations);
}

// Count where a drone is as visited, and what it sees as seen. `reach`: room for the sensor's azimuths.
NAVI_INLINE void remember(const Outlook& o, const Drones& drones, const Observed& full, int64_t row, float* reach) {
    const int64_t drone = drones.rows[row], scene = drones.scene[row];
    sight_of(o, full, row, scene, o.shares + 4 * drone, reach);
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
NAVI_INLINE void outlook(const Outlook& o, const StepPath& path, const Layout& layout, const Drone& body,
                         const Flights& f, const Horizon& h, const Drones& drones, int64_t row, Scratch& room,
                         float* terms) {
    const int64_t drone = drones.rows[row], scene = drones.scene[row];
    const int64_t rays = rays_of(o.sensor), cells = o.floors.cells;
    room.panorama.resize(static_cast<size_t>(4 * rays + o.sensor.azimuths));
    room.nearest.resize(static_cast<size_t>(h.azimuths));
    room.seen.assign(o.seen + drone * cells, o.seen + (drone + 1) * cells);
    room.visits.assign(o.rewards.visits + drone * o.rewards.cells, o.rewards.visits + (drone + 1) * o.rewards.cells);
    const BoxTree tree = box_tree(*o.scenes.hierarchies, static_cast<int>(scene));
    foresee(h, body, tree, f, row, room.nearest.data());

    const float* position = f.position + 3 * row;
    float* numbers = room.panorama.data();
    const Channels seen{numbers, numbers + rays, numbers + 2 * rays, numbers + 3 * rays};
    path.look(o.scenes, o.sensor, layout, Stand{scene, position, f.yaw[row]}, seen, 0, layout.count);
    float shares[4], turn[2], *reach = numbers + 4 * rays;
    shares_of(o.sensor, seen, o.rewards.band[scene], shares);
    reach_of(o.sensor, seen, reach);
    cos_sin(f.yaw[row], turn);
    const int64_t marked = mark_fan(o.floors, scene, position, turn, reach, room.seen.data());
    const double at[3] = {position[0], position[1], position[2]};
    const float clearance = static_cast<float>(square_root(nearest_squared(tree, at, __builtin_huge_val(), false)));
    const float area = static_cast<float>(o.floors.cell * o.floors.cell);
    const Outcome outcome{position, shares, o.shares + 4 * drone, h.path[row] * static_cast<float>(o.decision),
                          f.yaw[row], clearance, h.clearance[row], f.attempted[row],
                          static_cast<float>(marked) * area, f.collided[row] != 0};
    Rewards rewards = o.rewards;
    rewards.visits = room.visits.data();
    reward_terms(rewards, 0, scene, outcome, 1, terms, 1);
}

}  // namespace navi
