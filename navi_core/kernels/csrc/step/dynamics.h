// The drone's motion over one decision, row by row; world/dynamics.py explains it and has it as tensor operations.
// Every number is rounded alike: float throughout, sines and cosines in double and then rounded once.
#pragma once

#include <cmath>

#include "rays/closest.h"
#include "rays/views.h"

namespace navi {

constexpr double kFullTurn = 6.283185307179586;
constexpr float kTurn = static_cast<float>(kFullTurn);

struct Drone {
    const float* limits;      // (4) speeds of a full action [m/s, rad/s]
    double limiter_distance;  // front distance under which linear speed is limited [m]
    double limiter_floor;     // least share that the limiter leaves
    double smoothing;         // share of the command in the new velocity
    double keep;              // share of the velocity that is kept
    double linear_change;     // largest change of a linear speed in a substep [m/s]; infinite without a limit
    double yaw_change;        // the same of the yaw rate [rad/s]
    double substep;           // [s]
    double radius;            // a surface nearer than this stops the drone [m]
    const float* lids;        // (S) heights above which no drone rises [m]; null: none
    double lid;               // that of the row's scene; infinite without
    int64_t substeps;
};

// Rows of a flight.
struct Flights {
    const float* action;   // (B, 4)
    const float* front_distance;    // (B) nearest hit ahead [m]
    const int32_t* scene;  // (B)
    float* position;       // (B, 3) [m], updated
    float* yaw;            // (B) [rad], updated
    float* velocity;       // (B, 4), updated
    uint8_t* collided;     // (B), written
    float* attempted;      // (B) largest linear speed of a blocked substep [m/s], written
    const float* bodies;   // (B, 3) factor of the limits, radius [m], smoothing; null: the drone's own
    int64_t rows;
};

// The drone of a row: the common one, or `own` with the row's body, `limits` (4) and lid.
NAVI_INLINE const Drone& drone_of(const Drone& common, const float* bodies, int64_t row, int64_t scene, Drone& own,
                                  float* limits) {
    if (bodies == nullptr && common.lids == nullptr) return common;
    own = common;
    if (common.lids != nullptr) own.lid = static_cast<double>(common.lids[scene]);
    if (bodies == nullptr) return own;
    const float* body = bodies + 3 * row;
    for (int axis = 0; axis < 4; ++axis) limits[axis] = common.limits[axis] * body[0];
    own.limits = limits;
    own.radius = static_cast<double>(body[1]);
    own.smoothing = static_cast<double>(body[2]);
    own.keep = 1.0 - own.smoothing;
    return own;
}

NAVI_INLINE float speed_of(const float* v) {
    return ::sqrtf(v[0] * v[0] + v[1] * v[1] + v[2] * v[2]);
}

NAVI_INLINE void cos_sin(float yaw, float out[2]) {
    out[0] = static_cast<float>(::cos(static_cast<double>(yaw)));
    out[1] = static_cast<float>(::sin(static_cast<double>(yaw)));
}

// Fly one decision. A substep that comes too near to a surface is taken back and stops the drone. `clear`: on a way of
// this length nothing can be too near, whichever way it leads [m].
NAVI_INLINE void fly(const Drone& drone, const BoxTree& tree, const float* action, float front_distance, float* position,
                     float& yaw, float* velocity, uint8_t& collided, float& attempted, double clear = 0.0) {
    const float dt = static_cast<float>(drone.substep), kept = static_cast<float>(drone.keep);
    const float share = static_cast<float>(drone.smoothing), floor = static_cast<float>(drone.limiter_floor);
    const float limit = least(greatest(front_distance / static_cast<float>(drone.limiter_distance), floor), 1.0f);
    const float bend = static_cast<float>(drone.linear_change), turn_bend = static_cast<float>(drone.yaw_change);
    const float lid = static_cast<float>(drone.lid);
    const double reach = drone.radius * drone.radius;
    float push[4];
    for (int axis = 0; axis < 4; ++axis) {
        float command = least(greatest(action[axis], -1.0f), 1.0f) * drone.limits[axis];
        if (axis < 3) command *= limit;
        push[axis] = share * command;
    }
    collided = 0;
    attempted = 0.0f;
    for (int64_t n = 0; n < drone.substeps; ++n) {
        for (int axis = 0; axis < 4; ++axis) {
            const float before = velocity[axis], change = axis < 3 ? bend : turn_bend;
            velocity[axis] = least(greatest(push[axis] + kept * before, before - change), before + change);
        }
        float turned = ::fmodf(yaw + velocity[3] * dt, kTurn);
        if (turned < 0.0f) turned += kTurn;
        const float forward = velocity[0], vertical = velocity[1], lateral = velocity[2];
        float turn[2];
        cos_sin(turned, turn);
        float target[3] = {position[0] + (lateral * turn[0] - forward * turn[1]) * dt,
                           position[1] + vertical * dt,
                           position[2] + (-forward * turn[0] - lateral * turn[1]) * dt};
        const float top = greatest(lid, position[1]);
        if (target[1] > top) {
            target[1] = top;
            velocity[1] = 0.0f;
        }
        const double at[3] = {target[0], target[1], target[2]};
        clear -= static_cast<double>(speed_of(velocity)) * drone.substep;
        if (!(clear > 0.0) && nearest_squared(tree, at, reach, true) < reach) {
            attempted = greatest(attempted, speed_of(velocity));
            collided = 1;
            for (int axis = 0; axis < 4; ++axis) velocity[axis] = 0.0f;
        } else {
            for (int a = 0; a < 3; ++a) position[a] = target[a];
            yaw = turned;
        }
    }
}

}  // namespace navi
