// The channels of an observation, written while a tile's hits are in registers; world/sensor/panorama.py has it as tensor
// operations. Include after tile.h.
#pragma once

#include "step/panorama.h"

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
    int run;  // so many neighbouring lanes always lie in a row in memory
    int64_t next;  // rays from a tile to the one beside it

    void operator()(const int64_t* ray, const Tile<L, B>& tile) const {
        // Observations are too large to stay in a cache from one step to the next.
        for (int l = 0; l < W; l += run) {
            __builtin_prefetch(to.normalised + ray[l] + next, 1);
            __builtin_prefetch(to.semantic + ray[l] + next, 1);
            __builtin_prefetch(to.valid + ray[l] + next, 1);
        }
        const auto time = L::load(tile.time);
        const auto hit = L::less(time, L::fill(kFar));  // met nothing: still the time it began with
        const auto zero = L::fill(0.0f), depth = L::pick(hit, time, L::fill(max_distance));
        int names[W];
        for (int l = 0; l < W; ++l) names[l] = semantic[greatest(tile.triangle[l], 0)];
        put(to.depth, ray, depth);
        put(to.normalised, ray, normalised<L>(depth, max_distance, scale));
        put(to.semantic, ray, L::pick(hit, L::number(names), zero));
        put(to.valid, ray, L::pick(hit, L::fill(1.0f), zero));
    }

    void put(float* channel, const int64_t* ray, typename L::F value) const {
        float lanes[W];
        L::store(lanes, value);
        if (run == 4)
            copy<4>(channel, ray, lanes);
        else if (run == 2)
            copy<2>(channel, ray, lanes);
        else
            copy<1>(channel, ray, lanes);
    }
    template <int kRun>
    static void copy(float* channel, const int64_t* ray, const float* lanes) {
        for (int l = 0; l < W; l += kRun) __builtin_memcpy(channel + ray[l], lanes + l, kRun * sizeof(float));
    }
};

// How many neighbouring lanes of a tile lie in a row in memory, whichever the tile: 4, 2 or 1.
int run_of(const Layout& layout, int64_t rays) {
    if (layout.elevations == 0 || layout.elevations % layout.high || rays / layout.elevations % layout.wide) return 1;
    return layout.high % 4 == 0 ? 4 : layout.high % 2 == 0 ? 2 : 1;
}

}  // namespace
}  // namespace navi
