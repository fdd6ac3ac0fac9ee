// One decision of the environment, a row at a time: the drone flies, looks, and is rewarded; where its episode ends
// the next one begins. The channels of its observation are written while a tile's hits are in registers. world/step.py
// and world/sensor/panorama.py have the same as tensor operations. Include after bundle.h.
#pragma once

#include "step/dynamics.h"
#include "step/panorama.h"
#include "step/rewards.h"
#include "step/steps.h"

namespace navi {
namespace {

// ln y for y in [1, 1e6]; off by less than 2e-7 + 1e-7 ln y.
template <class L>
typename L::F logarithm(typename L::F y) {
    using F = typename L::F;
    // Chebyshev interpolation of (ln(1+f) - f + f^2/2) / f^3 for 1+f in [sqrt(1/2), sqrt(2)].
    constexpr float c[8] = {0.33333331f, -0.25000307f, 0.20001045f, -0.16641282f,
                            0.14214496f, -0.12998183f, 0.12622321f, -0.07902747f};
    F rest;
    const F exponent = L::exponent(y, rest), f = L::sub(rest, L::fill(1.0f));
    F series = L::fill(c[7]);
    for (int i = 6; i >= 0; --i) series = L::add(L::mul(series, f), L::fill(c[i]));
    const F square = L::mul(f, f);
    const F bend = L::sub(L::mul(L::fill(0.5f), square), L::mul(L::mul(square, f), series));
    return L::add(L::mul(exponent, L::fill(0.6931471805599453f)), L::sub(f, bend));
}

// Depths up to `max_distance`, normalised: ln(1 + depth) * scale.
template <class L>
typename L::F normalised(typename L::F depth, float max_distance, float scale) {
    const auto one = L::fill(1.0f);
    const auto positive = L::greatest(depth, L::fill(0.0f));
    const auto value = L::mul(logarithm<L>(L::add(one, positive)), L::fill(scale));
    // Rounding must not lift a surface above what stands for none.
    return L::pick(L::both(L::less(positive, L::fill(max_distance)), L::less(value, one)), value, one);
}

// Writes a panorama's channels, tile by tile.
template <class L, class B>
struct ChannelSink {
    static constexpr int W = L::width;
    const Channels& to;
    const int32_t* semantic;
    float max_distance, scale;
    int run;       // of the layout
    int64_t next;

    void operator()(const Tile<L, B>& tile) const {
        const int32_t* ray = tile.ray;
        // Observations are too large to stay in a cache from one step to the next.
        for (int l = 0; l < W; l += run) {
            __builtin_prefetch(to.normalised + ray[l] + next, 1);
            __builtin_prefetch(to.semantic + ray[l] + next, 1);
            __builtin_prefetch(to.valid + ray[l] + next, 1);
        }
        const auto time = tile.best;
        const auto hit = L::less(time, L::fill(kFar));  // met nothing: still the time it began with
        const auto zero = L::fill(0.0f), depth = L::pick(hit, time, L::fill(max_distance));
        int names[W];
        for (int l = 0; l < W; ++l) names[l] = semantic[greatest(tile.triangle[l], 0)];
        write(to.depth, tile, depth);
        write(to.normalised, tile, normalised<L>(depth, max_distance, scale));
        write(to.semantic, tile, L::pick(hit, L::number(names), zero));
        write(to.valid, tile, L::pick(hit, L::fill(1.0f), zero));
    }

    void write(float* channel, const Tile<L, B>& tile, typename L::F value) const {
        alignas(64) float lanes[W];
        L::store(lanes, value);
        put(channel, tile, lanes, run);
    }
};

// Columns of a row's body.
constexpr int kPosition = 0, kYaw = 3, kVelocity = 4, kFrontDistance = 8, kClearance = 9, kSeen = 10, kReturn = 14;

uint64_t spread(uint64_t word, uint64_t part) {
    constexpr uint64_t golden = 0x9E3779B97F4A7C15u, mix1 = 0xBF58476D1CE4E5B9u, mix2 = 0x94D049BB133111EBu;
    uint64_t x = (word + golden) ^ (part * mix2 + golden);
    x = (x ^ (x >> 30)) * mix1;
    x = (x ^ (x >> 27)) * mix2;
    return x ^ (x >> 31);
}

void step_begin(const Step& s, int64_t row) {
    float* body = s.body + kBody * row;
    const BoxTree tree = box_tree(*s.scenes.hierarchies, static_cast<int>(s.scene[row]));
    float* position = s.position + 3 * row;
    for (int a = 0; a < 3; ++a) position[a] = body[kPosition + a];
    s.yaw[row] = body[kYaw];
    Drone own;
    float limits[4];
    fly(drone_of(s.drone, s.bodies, row, s.scene[row], own, limits), tree, s.action + 4 * row, body[kFrontDistance],
        position, s.yaw[row], body + kVelocity, s.collided[row], s.attempted[row]);
}

// Bundles [first, end) of a panorama.
template <class L, class B>
void look(const Scenes& scenes, const Sensor& sensor, const Layout& plain, const Stand& from, const Channels& to,
          int64_t first, int64_t end) {
    const float max_distance = static_cast<float>(sensor.max_distance), scale = static_cast<float>(sensor.scale);
    float turn[2];
    cos_sin(from.yaw, turn);
    Layout layout = plain;
    layout.turn = turn;
    const BoxTree boxes = box_tree(*scenes.hierarchies, static_cast<int>(from.scene));
    each_tile<L, B>(boxes, from.position, max_distance, layout, first, end,
                    ChannelSink<L, B>{to, boxes.semantic, max_distance, scale, layout.run, layout.next});
}

// Normalise the depths of a panorama.
template <class L>
void normalise(const Sensor& sensor, const float* depth, float* to) {
    constexpr int64_t W = L::width;
    const int64_t rays = rays_of(sensor);
    const float max_distance = static_cast<float>(sensor.max_distance), scale = static_cast<float>(sensor.scale);
    for (int64_t r = 0; r < rays; r += W) {
        const int64_t count = least(rays - r, W);
        float lanes[W] = {};
        for (int64_t l = 0; l < count; ++l) lanes[l] = depth[r + l];
        L::store(lanes, normalised<L>(L::load(lanes), max_distance, scale));
        for (int64_t l = 0; l < count; ++l) to[r + l] = lanes[l];
    }
}

// Where the row's episode of that number begins.
void draw_spawn(const Step& s, int64_t row, int64_t episode) {
    const int64_t number = s.row_keys[row];
    const uint64_t word = spread(spread(spread(s.spawn_key, static_cast<uint64_t>(number)), static_cast<uint64_t>(episode)), 0);
    const int64_t scene = (number + episode / s.episodes_per_scene) % s.scenes.count;
    s.next_scene[row] = scene;
    s.slot[row] = static_cast<int64_t>(static_cast<double>(word >> 11) * 0x1p-53 * static_cast<double>(s.pool_count[scene]));
}

void step_finish(const Step& s, int64_t row, float* depth) {
    const Channels seen = channels(s, row, depth);
    const int64_t scene = s.scene[row];
    float* body = s.body + kBody * row;
    const float* position = s.position + 3 * row;
    const float front_distance = front_distance_of(s.sensor, seen);
    uint8_t* floor = s.seen + row * s.floors.cells;
    const Reading now = read_panorama(s.scenes, s.sensor, s.floors, s.rewards.band[scene], scene, position, s.yaw[row], seen,
                                      depth + rays_of(s.sensor), floor,
                                      s.view_limits == nullptr ? nullptr : s.view_limits + row * s.sensor.azimuths);
    const float way[3] = {position[0] - body[kPosition], position[1] - body[kPosition + 1], position[2] - body[kPosition + 2]};
    const Outcome outcome{position, now.fractions, body + kSeen, speed_of(way), s.yaw[row], now.clearance, body[kClearance],
                          s.attempted[row], now.gain, s.collided[row] != 0};
    const float reward =
        reward_terms(s.rewards, row, scene, outcome, s.episode[row] + 1, s.terms + row, s.rows);
    const float total = body[kReturn] + reward;
    const int64_t age = s.age[row] + 1, length = s.length[row] + 1;
    const bool is_void = now.fractions[0] >= static_cast<float>(s.void_starvation) && length > s.void_grace;
    const bool ends = is_void || age >= s.max_steps;
    s.reward[row] = reward;
    s.void_[row] = is_void;
    s.truncated[row] = ends;
    s.speed[row] = speed_of(body + kVelocity);
    s.scene_index[row] = scene;
    s.episode_return[row] = total;
    s.episode_length[row] = length;
    draw_spawn(s, row, s.episode[row] + ends);
    if (ends) {
        const int64_t slot = s.next_scene[row] * s.pool_size + s.slot[row];
        for (int i = 0; i < kBody; ++i) body[i] = s.pool_body[slot * kBody + i];
        begin_floor(s.floors, s.pool_floor + slot * (s.floors.cells / 8), floor);
        ++s.episode[row];
        s.age[row] = s.length[row] = 0;
        s.scene[row] = s.next_scene[row];
        return;
    }
    for (int a = 0; a < 3; ++a) body[kPosition + a] = position[a];
    body[kYaw] = s.yaw[row];
    body[kFrontDistance] = front_distance;
    body[kClearance] = now.clearance;
    for (int i = 0; i < 4; ++i) body[kSeen + i] = now.fractions[i];
    body[kReturn] = total;
    s.age[row] = age;
    s.length[row] = length;
}

}  // namespace
}  // namespace navi
