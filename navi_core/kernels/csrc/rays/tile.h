// Neighbouring rays of one origin, what they have met, and their tests against boxes and triangles. In a leaf many rays
// meet one triangle at a time, or one ray eight triangles, whichever is less work; both compute the same numbers.
//
// What a ray answers does not depend on its neighbours: a pair of ray and triangle has one time, not before the ray
// enters the triangle's leaf box; a pair counts where the ray meets that box; the least time wins, and
// of the faces within a tie of it the lowest triangle. A box left out begins behind what the ray has met already.
// Box times are widened by a few units in the last place (Ize 2013).
//
// L: lanes of rays, B: lanes of boxes and triangles. Include after lanes_*.h. Everything here has internal linkage: each
// kind of CPU has its own copy. Never compiled with fused or reassociated arithmetic but for the explicit ones.
#pragma once

#include "rays/leaf.h"
#include "rays/views.h"

namespace navi {
namespace {

constexpr float kFar = 3e38f;
constexpr float kUlps = 4 * 0x1p-24f;     // rounding of a box time, both ways
constexpr float kFlatSlope = 1e-20f;      // a smaller direction component never crosses a plane

enum Way { kForward, kBackward, kBothWays };  // of rays along an axis

// Bounds of the inverse directions of rays: the first and last time that one passes a plane. Where rays go both ways,
// `first` is the bound of those that go forward, `last` that of the others.
struct Cone {
    Way way[3];
    float first[3], last[3];
};

// Inverse of directions along an axis.
template <class L>
typename L::F inverted(typename L::F slope) {
    return L::pick(L::less(L::magnitude(slope), L::fill(kFlatSlope)), L::fill(static_cast<float>(kHuge)),
                   L::div(L::fill(1.0f), slope));
}

template <class L, class B>
struct Tile {
    using F = typename L::F;
    using M = typename L::M;
    using G = typename B::F;
    static constexpr int W = L::width;

    F slope[3], near_inverse[3], far_inverse[3];
    F best, bound;                // least time met; what begins behind the bound is of no interest
    alignas(64) int triangle[W];  // within the scene; -1: none
    const int32_t* ray;           // (W) within the row
    Aim aim;
    Cone cone;
    float far;                    // no ray looks beyond
    unsigned tied, chained;       // bits of rays: a face behind the best is known; faces came in an order that counts

    void turn_to(const F* slopes) {
        for (int a = 0; a < 3; ++a) {
            const F inverse = inverted<L>(slopes[a]);
            slope[a] = slopes[a];
            near_inverse[a] = L::mul(inverse, L::fill(1.0f - kUlps));
            far_inverse[a] = L::mul(inverse, L::fill(1.0f + kUlps));
        }
    }

    void begin(float reach) {
        best = L::fill(kFar);
        bound = L::fill(reach);
        far = reach;
        tied = chained = 0;
        for (int& each : triangle) each = -1;
    }

    // Bits of the rays that meet a box before their bound, and when each enters it.
    unsigned enter(const float* box, const float* origin, F& near) const {
        near = L::fill(0.0f);
        F until = bound;
        for (int a = 0; a < 3; ++a) {
            const F low = L::fill(box[kWide * a] - origin[a]), high = L::fill(box[kWide * (3 + a)] - origin[a]);
            if (cone.way[a] == kBothWays) {
                near = L::greatest(near, L::least(L::mul(low, near_inverse[a]), L::mul(high, near_inverse[a])));
                until = L::least(until, L::greatest(L::mul(low, far_inverse[a]), L::mul(high, far_inverse[a])));
            } else {
                const bool back = cone.way[a] == kBackward;
                near = L::greatest(near, L::mul(back ? high : low, near_inverse[a]));
                until = L::least(until, L::mul(back ? low : high, far_inverse[a]));
            }
        }
        return L::bits(L::at_most(near, until));
    }

    // Let the rays of the bits `active`, which enter the leaf's box at `near`, meet triangles of it; return whether
    // one has.
    bool meet(const Leaf<B>& leaf, unsigned triangles, unsigned active, F near, float tie, float reach) {
        const bool by_rays = __builtin_popcount(active) * (W / B::width) <= __builtin_popcount(triangles);
        if (!(by_rays ? by_ray(leaf, triangles, active, near, tie, reach)
                      : by_triangle(leaf, triangles, active, near, tie, reach)))
            return false;
        far = L::highest(bound);
        return true;
    }

   private:
    // One triangle after the other against all rays.
    bool by_triangle(const Leaf<B>& leaf, unsigned triangles, unsigned active, F near, float tie, float reach) {
        const M on = L::mask(active);
        bool changed = false;
        for (; triangles; triangles &= triangles - 1) {
            const int i = __builtin_ctz(triangles), id = leaf.ids[i];
            F rate;
            M hit = L::both(on, Leaf<B>::template inside<L>(
                                    slope, [&](int k) { return L::fill(leaf.edges[k][i]); }, rate));
            if (!L::bits(hit)) continue;
            const F t = L::greatest(L::div(L::fill(leaf.edges[15][i]), rate), near);
            hit = L::both(hit, L::at_most(t, bound));
            if (!L::bits(hit)) continue;
            const M first = L::less(t, best), apart = L::less(L::add(t, L::fill(tie)), best);
            const unsigned met = L::bits(hit), alone = met & L::bits(apart), again = met & ~alone;
            if (again) {
                // A second face within a tie of the first.
                const unsigned before = again & L::bits(first);
                chained |= tied & before;
                tied |= before | (again & L::bits(L::less(best, t)));
                L::store_least(L::mask(again), triangle, id);
            }
            tied &= ~alone;
            L::store(L::mask(alone), triangle, id);
            best = L::pick(L::both(hit, first), t, best);
            bound = L::least(L::add(best, L::fill(tie)), L::fill(reach));
            changed = true;
        }
        return changed;
    }

    // One ray after the other against all triangles.
    bool by_ray(const Leaf<B>& leaf, unsigned triangles, unsigned active, F near, float tie, float reach) {
        float slopes[3][W], from[W], first[W], last[W];
        for (int a = 0; a < 3; ++a) L::store(slopes[a], slope[a]);
        L::store(from, near);
        L::store(first, best);
        L::store(last, bound);
        bool changed = false;
        for (; active; active &= active - 1) {
            const int l = __builtin_ctz(active);
            const G d[3] = {B::fill(slopes[0][l]), B::fill(slopes[1][l]), B::fill(slopes[2][l])};
            for (int h = 0; h < kWide; h += B::width) {
                G rate;
                unsigned hit = B::bits(Leaf<B>::template inside<B>(
                                   d, [&](int k) { return B::load(leaf.edges[k] + h); }, rate)) & triangles >> h;
                if (!hit) continue;
                float times[B::width];
                B::store(times, B::greatest(B::div(B::load(leaf.edges[15] + h), rate), B::fill(from[l])));
                for (; hit; hit &= hit - 1) {
                    const int i = __builtin_ctz(hit), id = leaf.ids[h + i];
                    const float t = times[i];
                    if (!(t <= last[l])) continue;
                    if (t + tie < first[l]) {
                        first[l] = t;
                        triangle[l] = id;
                        tied &= ~(1u << l);
                    } else {
                        meet_again(l, t, id, first[l]);
                    }
                    last[l] = least(first[l] + tie, reach);
                    changed = true;
                }
            }
        }
        best = L::load(first);
        bound = L::load(last);
        return changed;
    }

    // A second face within a tie of the first.
    void meet_again(int l, float t, int id, float& first) {
        const unsigned bit = 1u << l;
        if (t < first) {
            chained |= tied & bit;
            first = t;
            tied |= bit;
        } else if (t > first) {
            tied |= bit;
        }
        triangle[l] = least(triangle[l], id);
    }
};

}  // namespace
}  // namespace navi
