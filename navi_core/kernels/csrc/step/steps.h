// One decision of the environment, as the CPU takes it; kernels/native/library.py reads the structs.
#pragma once

#include "step/dynamics.h"
#include "step/panorama.h"
#include "step/rewards.h"
#include "rays/views.h"

namespace navi {

constexpr int kBody = 15;  // numbers of a drone's life, see world/spawning.py

// The scenes of a field.
struct Scenes {
    const Hierarchies* hierarchies;
    int64_t count;               // S
};

// What is not marked as updated or written is read.
struct Step {
    Scenes scenes;
    int64_t rows;                // B
    Drone drone;
    Sensor sensor;
    Floors floors;
    Rewards rewards;
    // Episodes.
    const int64_t* row_keys;     // (B) numbers of the rows among those of the run
    uint64_t spawn_key;
    int64_t episodes_per_scene;
    int64_t max_steps;
    double void_starvation;
    int64_t void_grace;
    const int64_t* pool_count;   // (S) entries of each scene's pool
    int64_t pool_size;           // P
    const float* pool_body;      // (S, P, kBody)
    const uint8_t* pool_floor;   // (S, P, C / 8)
    // State, updated.
    float* body;                 // (B, kBody)
    int64_t* episode;            // (B)
    int64_t* age;
    int64_t* length;
    int64_t* scene;
    uint8_t* seen;               // (B, C)
    float* attempted;            // (B) room for the largest speed of a blocked substep [m/s]
    const float* bodies;         // (B, 3) see `Flights`; null: none
    const float* view_limits;    // (B, Az) bounds of the floor rays by each row's sensor [m]; null: none
    // Of this step.
    const float* action;         // (B, 4)
    // Written.
    float* obs;                  // (B, 3, Az * El) after the step, before any new episode
    float* position;             // (B, 3) [m]
    float* yaw;                  // (B) [rad]
    float* speed;                // (B) [m/s]
    float* reward;               // (B)
    float* terms;                // (10, B)
    float* episode_return;       // (B)
    int64_t* episode_length;     // (B)
    int64_t* scene_index;        // (B) scene of the step
    int64_t* next_scene;         // (B) where the episode after the step is, if it is a new one
    int64_t* slot;               // (B) its entry of that scene's pool
    uint8_t* truncated;          // (B)
    uint8_t* void_;              // (B) in the void
    uint8_t* collided;           // (B)
};

// Hits of B panoramas, and what is read from them.
struct Panoramas {
    const float* depth;       // (B, Az * El) [m]
    const int32_t* semantic;  // (B, Az * El)
    const uint8_t* valid;     // (B, Az * El)
    const float* band;        // (B) far end of the structure band [m]
    int64_t rows;             // B
    float* obs;               // (B, 3, Az * El), written
    float* fractions;         // (B, 4), written
    float* front_distance;    // (B) [m], written
    float* reach;             // (B, Az) [m], written
};

// Where a row's panorama goes.
NAVI_INLINE Channels channels(const Step& s, int64_t row, float* depth) {
    const int64_t rays = rays_of(s.sensor);
    float* obs = s.obs + 3 * row * rays;
    return Channels{obs, obs + rays, obs + 2 * rays, depth};
}

// What a panorama brings: its fractions, newly seen floor [m2], and the distance to the surface [m].
struct Reading {
    float fractions[4], gain, clearance;
};

// Read a panorama from where it was taken, and mark the seen floor. `reach`: room for the sensor's azimuths.
NAVI_INLINE Reading read_panorama(const Scenes& scenes, const Sensor& sensor, const Floors& floors, float band,
                                  int64_t scene, const float* position, float yaw, const Channels& seen, float* reach,
                                  uint8_t* floor, const float* limits = nullptr) {
    Reading reading;
    float turn[2];
    fractions_of(sensor, seen, band, reading.fractions);
    reach_of(sensor, seen, reach);
    if (limits != nullptr)
        for (int64_t a = 0; a < sensor.azimuths; ++a) reach[a] = least(reach[a], limits[a]);
    cos_sin(yaw, turn);
    const float area = static_cast<float>(floors.cell * floors.cell);
    reading.gain = static_cast<float>(mark_fan(floors, scene, position, turn, reach, floor)) * area;
    const BoxTree tree = box_tree(*scenes.hierarchies, static_cast<int>(scene));
    reading.clearance = static_cast<float>(distance_to(tree, position));
    return reading;
}

// From where a panorama is taken.
struct Stand {
    int64_t scene;
    const float* position;  // [m]
    float yaw;              // [rad]
};

// The cast and the stages of a step, for one kind of CPU. `depth`: room for the depths of the row's rays and its floor rays' reach.
struct StepPath {
    // Cast bundles [first, end) of a row.
    void (*cast)(const BoxTree&, const Rays&, const Layout&, int64_t row, int64_t first, int64_t end);
    void (*begin)(const Step&, int64_t row);
    void (*look)(const Scenes&, const Sensor&, const Layout&, const Stand&, const Channels&, int64_t first, int64_t end);
    void (*finish)(const Step&, int64_t row, float* depth);
    void (*normalise)(const Sensor&, const float* depth, float* normalised);
};

extern const StepPath kStepAvx512, kStepAvx2, kStepPortable;

}  // namespace navi
