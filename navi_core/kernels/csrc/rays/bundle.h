// Bundles of tiles of neighbouring rays of one origin through the wide hierarchy of a scene, front to back.
//
// A node's eight boxes are tested against the whole bundle at once (the intervals of its rays' inverse directions), and
// what is left against each tile, a lane each. Where few tiles meet a node, each walks on alone.
//
// L: lanes of rays and of tiles, B: lanes of boxes and triangles. Include after lanes_*.h. Everything here has internal
// linkage: each kind of CPU has its own copy. Never compiled with fused or reassociated arithmetic but for the
// explicit ones.
#pragma once

#include "rays/tile.h"
#include "rays/views.h"

namespace navi {
namespace {

template <class L, class B>
class Bundle {
   public:
    using F = typename L::F;
    using M = typename L::M;
    static constexpr int W = L::width;

    Bundle(const BoxTree& tree, const float* origin, float reach, Leaves<B>& leaves)
        : tree_(tree), leaves_(leaves), reach_(reach) {
        for (int a = 0; a < 3; ++a) origin_[a] = origin[a];
        leaves_.begin();
    }

    Tile<L, B> tiles[W];

    // Set the directions of a tile.
    void aim(int t, const F* slopes) {
        tiles[t].turn_to(slopes);
        for (int a = 0; a < 3; ++a) {
            low_[a][t] = L::lowest(slopes[a]);
            high_[a][t] = L::highest(slopes[a]);
        }
    }

    // Cast the rays of the first `count` tiles.
    void cast(int count) {
        for (int t = count; t < W; ++t)
            for (int a = 0; a < 3; ++a) low_[a][t] = low_[a][0], high_[a][t] = high_[a][0];
        for (int a = 0; a < 3; ++a) bound_axis(a);
        for (int t = 0; t < count; ++t) tiles[t].begin(reach_);
        far_ = L::pick(L::mask((1u << count) - 1u), L::fill(reach_), L::fill(-1.0f));
        farthest_ = reach_;
        walk();
        unsigned again = 0;
        for (int t = 0; t < count; ++t)
            if (tiles[t].chained) again |= 1u << t;
        if (!again) return;
        // Faces apart by less than a tie each, but more together: with the least time known, the order in which they
        // are met no longer matters.
        for (unsigned rest = again; rest; rest &= rest - 1)
            for (int& triangle : tiles[__builtin_ctz(rest)].triangle)
                if (triangle >= 0) triangle = INT32_MAX;
        far_ = L::pick(L::mask(again), far_, L::fill(-1.0f));
        farthest_ = L::highest(far_);
        walk();
    }

   private:
    using G = typename B::F;

    struct Entry {
        float near;   // no ray of the bundle enters the box before
        int32_t box;  // 8 * node + child
    };

    // Bound the inverse directions of each tile and of the bundle along an axis.
    void bound_axis(int a) {
        const F low = L::load(low_[a]), high = L::load(high_[a]), flat = L::fill(-kFlatSlope);
        const M back = L::at_most(high, flat), forth = L::less(flat, low);
        backward_[a] = L::bits(back);
        mixed_[a] = kAll & ~(backward_[a] | L::bits(forth));
        const M mixed = L::mask(mixed_[a]);
        const F shorter = L::fill(1.0f - kUlps), longer = L::fill(1.0f + kUlps);
        enter_[a] = L::mul(inverted<L>(L::pick(back, low, high)), shorter);
        leave_[a] = L::mul(inverted<L>(L::pick(back, high, low)), L::pick(mixed, shorter, longer));
        cone_.way[a] = backward_[a] == kAll ? kBackward : backward_[a] || mixed_[a] ? kBothWays : kForward;
        if (cone_.way[a] == kBackward) {
            cone_.first[a] = L::highest(enter_[a]);
            cone_.last[a] = L::lowest(leave_[a]);
        } else if (cone_.way[a] == kForward) {
            cone_.first[a] = L::lowest(enter_[a]);
            cone_.last[a] = L::highest(leave_[a]);
        } else {
            cone_.first[a] = L::lowest(L::pick(back, L::fill(kFar), enter_[a]));
            cone_.last[a] = L::highest(L::pick(back, enter_[a], L::pick(mixed, leave_[a], L::fill(-kFar))));
        }
        alignas(64) float centre[W], half[W], enter[W], leave[W];
        const F widened = L::mul(L::add(L::magnitude(low), L::magnitude(high)), L::fill(kAimRounding));
        L::store(centre, L::mul(L::add(low, high), L::fill(0.5f)));
        L::store(half, L::add(L::mul(L::sub(high, low), L::fill(0.5f)), L::add(widened, L::fill(kAimRounding))));
        L::store(enter, enter_[a]);
        L::store(leave, leave_[a]);
        for (int t = 0; t < W; ++t) {
            Tile<L, B>& tile = tiles[t];
            tile.aim.centre[a] = centre[t];
            tile.aim.half[a] = half[t];
            tile.cone.way[a] = backward_[a] >> t & 1 ? kBackward : mixed_[a] >> t & 1 ? kBothWays : kForward;
            tile.cone.first[a] = enter[t];
            tile.cone.last[a] = leave[t];
        }
    }

    void walk() {
        Entry stack[kTreeStack];
        int top = open(cone_, farthest_, 0, stack, 0);
        while (top > 0) {
            const Entry e = stack[--top];
            if (e.near > farthest_) continue;
            const float* box = box_of(e);
            unsigned met = tiles_in(box);
            if (!met) continue;
            const int child = tree_.child[e.box];
            if (child >= 0 && __builtin_popcount(met) > kFew) {
                top = open(cone_, farthest_, child, stack, top);
                continue;
            }
            bool changed = false;
            for (; met; met &= met - 1) {
                const int t = __builtin_ctz(met);
                if (child >= 0)
                    changed |= walk(t, child);
                else if (child != kNobody)  // rays that are no unit vectors may reach a void
                    changed |= leaf(t, -1 - child, box);
            }
            if (changed) farthest_ = L::highest(far_);
        }
    }

    // One tile through the boxes below a node.
    bool walk(int t, int node) {
        const Tile<L, B>& tile = tiles[t];
        Entry stack[kTreeStack];
        bool changed = false;
        int top = open(tile.cone, tile.far, node, stack, 0);
        while (top > 0) {
            const Entry e = stack[--top];
            if (e.near > tile.far) continue;
            const int child = tree_.child[e.box];
            if (child >= 0) {
                F near;
                if (tile.enter(box_of(e), origin_, near)) top = open(tile.cone, tile.far, child, stack, top);
            } else if (child != kNobody) {
                changed |= leaf(t, -1 - child, box_of(e));
            }
        }
        return changed;
    }

    const float* box_of(const Entry& e) const {
        return tree_.planes + 6 * kWide * static_cast<int64_t>(e.box / kWide) + e.box % kWide;
    }

    // Push those children of a node that rays may meet before `far`, the nearest on top.
    int open(const Cone& cone, float until, int node, Entry* stack, int top) const {
        alignas(32) float near[kWide];
        unsigned met = 0;
        const float* planes = tree_.planes + 6 * kWide * static_cast<int64_t>(node);
        for (int h = 0; h < kWide; h += B::width) {
            G n = B::fill(0.0f), f = B::fill(until);
            for (int a = 0; a < 3; ++a) {
                const G origin = B::fill(origin_[a]), first = B::fill(cone.first[a]), last = B::fill(cone.last[a]);
                const G low = B::sub(B::load(planes + kWide * a + h), origin);
                const G high = B::sub(B::load(planes + kWide * (3 + a) + h), origin);
                if (cone.way[a] == kBothWays) {
                    n = B::greatest(n, B::greatest(B::mul(low, first), B::mul(high, last)));
                } else if (cone.way[a] == kForward) {
                    n = B::greatest(n, B::mul(low, first));
                    f = B::least(f, B::mul(high, last));
                } else {
                    n = B::greatest(n, B::mul(high, first));
                    f = B::least(f, B::mul(low, last));
                }
            }
            B::store(near + h, n);
            met |= B::bits(B::at_most(n, f)) << h;
        }
        const int bottom = top;
        for (; met; met &= met - 1) {
            const int k = __builtin_ctz(met);
            const Entry e{near[k], node * kWide + k};
            int i = top++;
            for (; i > bottom && stack[i - 1].near < e.near; --i) stack[i] = stack[i - 1];
            stack[i] = e;
        }
        return top;
    }

    // Bits of the tiles that may meet a box.
    unsigned tiles_in(const float* box) const {
        F near = L::fill(0.0f), far = far_;
        for (int a = 0; a < 3; ++a) {
            const F low = L::fill(box[kWide * a] - origin_[a]), high = L::fill(box[kWide * (3 + a)] - origin_[a]);
            if (cone_.way[a] == kForward) {
                near = L::greatest(near, L::mul(low, enter_[a]));
                far = L::least(far, L::mul(high, leave_[a]));
            } else if (cone_.way[a] == kBackward) {
                near = L::greatest(near, L::mul(high, enter_[a]));
                far = L::least(far, L::mul(low, leave_[a]));
            } else {
                const M back = L::mask(backward_[a]), mixed = L::mask(mixed_[a]);
                const F other = L::mul(L::pick(back, low, high), leave_[a]);
                near = L::greatest(near, L::mul(L::pick(back, high, low), enter_[a]));
                near = L::pick(mixed, L::greatest(near, other), near);
                far = L::pick(mixed, far, L::least(far, other));
            }
        }
        return L::bits(L::at_most(near, far));
    }

    // Let a tile meet a leaf; return whether it has met a triangle.
    bool leaf(int t, int group, const float* box) {
        Tile<L, B>& tile = tiles[t];
        F near;
        const unsigned active = tile.enter(box, origin_, near);
        if (!active) return false;
        const Leaf<B>& leaf = leaves_.at(tree_, group, origin_);
        const unsigned triangles = leaf.before(tile.aim, tile.far);
        if (!triangles || !tile.meet(leaf, triangles, active, near, tree_.tie, reach_)) return false;
        far_ = L::pick(L::mask(1u << t), L::fill(tile.far), far_);
        return true;
    }

    static constexpr int kFew = 2;  // tiles that walk on alone
    static constexpr unsigned kAll = (1u << W) - 1u;

    const BoxTree& tree_;
    Leaves<B>& leaves_;
    float origin_[3], reach_;
    alignas(64) float low_[3][W], high_[3][W];  // bounds of each tile's directions
    // Bounds of each tile's inverse directions: the least and greatest times of a plane. Where a tile's rays go both
    // ways, `leave_` has the bound of those that go backward.
    F enter_[3], leave_[3];
    F far_;  // of each tile; -1: it takes no part
    unsigned backward_[3], mixed_[3];
    Cone cone_;
    float farthest_;
};

// Cast bundles [first, end) of the rays that leave `origin`; `sink` takes each tile.
template <class L, class B, class Sink>
void each_tile(const BoxTree& tree, const float* origin, float max_distance, const Layout& layout, int64_t first,
               int64_t end, const Sink& sink) {
    constexpr int W = L::width;
    static thread_local Leaves<B> leaves;
    Bundle<L, B> bundle(tree, origin, least(max_distance, static_cast<float>(kHuge)), leaves);
    for (int64_t number = first; number < end; ++number) {
        const int64_t start = layout.tiles[number];
        const int count = static_cast<int>(layout.tiles[number + 1] - start);
        for (int t = 0; t < count; ++t) {
            const float* d = layout.slopes + 3 * W * (start + t);
            typename L::F slopes[3] = {L::load(d), L::load(d + W), L::load(d + 2 * W)};
            if (layout.turn) {
                const auto x = slopes[0], z = slopes[2], cosine = L::fill(layout.turn[0]), sine = L::fill(layout.turn[1]);
                slopes[0] = L::add(L::mul(x, cosine), L::mul(z, sine));
                slopes[2] = L::sub(L::mul(z, cosine), L::mul(x, sine));
            }
            bundle.tiles[t].ray = layout.ray + W * (start + t);
            bundle.aim(t, slopes);
        }
        bundle.cast(count);
        for (int t = 0; t < count; ++t) sink(bundle.tiles[t]);
    }
}

// Write the lanes of a tile to the places of its rays in a channel.
template <int kRun, class L, class B, typename T>
void put_runs(T* channel, const Tile<L, B>& tile, const T* lanes) {
    for (int l = 0; l < L::width; l += kRun) __builtin_memcpy(channel + tile.ray[l], lanes + l, kRun * sizeof(T));
}
template <class L, class B, typename T>
void put(T* channel, const Tile<L, B>& tile, const T* lanes, int run) {
    if (run == 4)
        put_runs<4>(channel, tile, lanes);
    else if (run == 2)
        put_runs<2>(channel, tile, lanes);
    else
        put_runs<1>(channel, tile, lanes);
}

template <class L, class B>
void cast_tiles(const BoxTree& tree, const Rays& rays, const Layout& layout, int64_t row, int64_t first, int64_t end) {
    constexpr int W = L::width;
    const int64_t start = row * rays.rays;
    const float max_distance = static_cast<float>(rays.max_distance);
    each_tile<L, B>(tree, rays.origins + 3 * row, max_distance, layout, first, end, [&](const Tile<L, B>& tile) {
        alignas(64) float time[W];
        alignas(64) int label[W];
        alignas(64) uint8_t valid[W];
        L::store(time, L::pick(L::less(tile.best, L::fill(kFar)), tile.best, L::fill(max_distance)));
        for (int l = 0; l < W; ++l) {
            const int met = ~(tile.triangle[l] >> 31);
            label[l] = tree.semantic[tile.triangle[l] & met] & met;
            valid[l] = static_cast<uint8_t>(met & 1);
        }
        put(rays.depth + start, tile, time, layout.run);
        put(rays.label + start, tile, label, layout.run);
        put(rays.valid + start, tile, valid, layout.run);
    });
}

}  // namespace
}  // namespace navi
