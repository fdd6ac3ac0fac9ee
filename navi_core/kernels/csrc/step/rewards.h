// The reward terms of a row, with the table of visits they count in; world/rewards.py explains them and has them as
// tensor operations. Every number is rounded alike.
#pragma once

#include <cmath>

#include "rays/views.h"

namespace navi {

constexpr int kTerms = 10;
constexpr int kHeadings = 16, kStampBit = 36;  // bits of headings, then of visits, then the episode's stamp
constexpr int64_t kMostVisits = (int64_t{1} << 20) - 1, kStamps = (int64_t{1} << 27) - 1;
constexpr float kSectors = 2.5464790894703255f;  // heading sectors per radian

struct Rewards {
    const float* weights;   // (10)
    const float* low;       // (S, 3) minimum corner of the exploration cells [m]
    const float* edge;      // (S) their edge [m]
    const int64_t* shape;   // (S, 3) cells along each axis
    const float* band;      // (S) far end of the structure band [m]
    int64_t* visits;        // (B, V) table
    int64_t cells;          // V
    double max_speed;       // that counts as 1 in the collision term [m/s]
};

// What a row's terms are made of. Seen: fractions of the panorama that miss, are near, in the band, in the band ahead.
struct Outcome {
    const float* position;
    const float *now, *before;
    float moved, yaw, clearance, clearance_before, attempted, gain;
    bool collided;
};

NAVI_INLINE float clamped(float x, float low, float high) {
    return least(greatest(x, low), high);
}
NAVI_INLINE int64_t cell_along(float position, float low, float edge, int64_t cells) {
    return static_cast<int64_t>(clamped(::floorf((position - low) / edge), 0.0f, static_cast<float>(cells - 1)));
}

// Count the visit of a row's cell and return the exploration term without its clearance.
NAVI_INLINE float explore(const Rewards& rewards, int64_t row, int64_t scene, const Outcome& o, int64_t stamp) {
    const int64_t* n = rewards.shape + 3 * scene;
    int64_t* table = rewards.visits + row * rewards.cells;
    const auto place = [&](const int64_t* c) { return (c[0] * n[1] + c[1]) * n[2] + c[2]; };
    const auto known = [&](const int64_t* c) {
        const int64_t word = table[place(c)];
        return word >> kStampBit == stamp ? word : 0;
    };
    int64_t cell[3];
    for (int a = 0; a < 3; ++a) cell[a] = cell_along(o.position[a], rewards.low[3 * scene + a], rewards.edge[scene], n[a]);
    int unvisited = 0;
    for (int a = 0; a < 3; ++a)
        for (int side = -1; side <= 1; side += 2) {
            int64_t beside[3] = {cell[0], cell[1], cell[2]};
            beside[a] += side;
            unvisited += beside[a] < 0 || beside[a] >= n[a] || known(beside) >> kHeadings == 0;
        }
    const int64_t word = known(cell), visits = word >> kHeadings & kMostVisits;
    const int64_t headings = word & ((1 << kHeadings) - 1);
    const int64_t sector = least(greatest(static_cast<int64_t>(o.yaw * kSectors), int64_t{0}), int64_t{kHeadings - 1});
    const int64_t bit = int64_t{1} << sector, count = least(visits + 1, kMostVisits) << kHeadings;
    table[place(cell)] = headings | bit | count | stamp << kStampBit;
    const float fresh = headings & bit ? 0.0f : 0.05f;
    return 1.0f / (1.0f + static_cast<float>(visits)) * 0.3f + fresh + 0.1f * (static_cast<float>(unvisited) / 6.0f);
}

// Write the terms, `stride` apart, count the visit, and return the weighted sum.
NAVI_INLINE float reward_terms(const Rewards& rewards, int64_t row, int64_t scene, const Outcome& o, int64_t stamp,
                               float* terms, int64_t stride) {
    const float starvation = o.now[0], near = o.now[1], band = o.now[2], forward = o.now[3];
    float term[kTerms] = {};
    term[0] = explore(rewards, row, scene, o, stamp & kStamps) * clamped(o.clearance, 0.0f, 1.0f);
    term[1] = 0.8f * o.moved * (1.0f - near);
    if (o.clearance <= 3.0f || o.clearance_before <= 3.0f)
        term[2] = 0.6f * clamped((o.clearance - o.clearance_before) / 3.0f, -1.0f, 1.0f);
    const float some = 0.35f * greatest(starvation - 0.2f, 0.0f), most = greatest(starvation - 0.8f, 0.0f);
    term[3] = -1.5f * least(some + most, 1.0f);
    term[4] = -0.8f * near;
    term[5] = 0.35f * band;
    term[6] = 0.2f * forward;
    if (band >= 0.05f || forward >= 0.05f)
        term[7] = 0.25f * clamped((band - o.before[2]) + 0.5f * (forward - o.before[3]), -1.0f, 1.0f);
    if (o.collided) term[8] = -2.0f * (1.0f + least(o.attempted / static_cast<float>(rewards.max_speed), 1.0f));
    term[9] = o.gain;
    float total = term[0] * rewards.weights[0];
    for (int i = 1; i < kTerms; ++i) total += term[i] * rewards.weights[i];
    for (int i = 0; i < kTerms; ++i) terms[i * stride] = term[i];
    return total;
}

}  // namespace navi
