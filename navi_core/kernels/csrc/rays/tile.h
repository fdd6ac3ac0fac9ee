// A tile of neighbouring rays of one origin through the wide hierarchy of a scene, front to back.
//
// A node's eight boxes are tested against the whole tile at once (the intervals of its rays' inverse directions),
// what is left against each ray. In a leaf many rays meet one triangle at a time, or one ray eight triangles,
// whichever is less work; both compute the same numbers.
//
// What a ray answers does not depend on its neighbours: a pair of ray and triangle has one time, not before the ray
// enters the triangle's leaf box; a pair counts where the ray meets that box; the least time wins, and
// of the faces within a tie of it the lowest triangle. A box left out begins behind what the ray has met already.
//
// Triangles are tested by the side on which the ray passes each edge (Plücker coordinates about the origin), with a
// tolerance above the rounding of that test, so that no ray passes between neighbours. Box times are widened by a
// few units in the last place (Ize 2013).
//
// L: lanes of rays, B: lanes of boxes and triangles. Include after lanes_*.h. Everything here has internal linkage:
// each kind of CPU has its own copy. Never compiled with fused or reassociated arithmetic but for the explicit ones.
#pragma once

#include "rays/views.h"

namespace navi {
namespace {

constexpr float kFar = 3e38f;
constexpr float kUlps = 4 * 0x1p-24f;     // rounding of a box time, both ways
constexpr float kEdgeRounding = 4e-7f;    // of an edge test, over the one-norms of its vectors
constexpr float kFlatSlope = 1e-20f;      // a smaller direction component never crosses a plane

template <class L, class B>
class Tile {
   public:
    using F = typename L::F;
    using M = typename L::M;
    static constexpr int W = L::width;

    Tile(const BoxTree& tree, const float* origin, float reach) : tree_(tree), reach_(reach) {
        for (int a = 0; a < 3; ++a) origin_[a] = origin[a];
    }

    // Cast the rays of the directions (3, W), axis by axis.
    void cast(const float* directions) {
        mixed_ = 0;
        for (int a = 0; a < 3; ++a) aim(a, L::load(directions + a * W));
        best_ = L::fill(kFar);
        bound_ = L::fill(reach_);
        far_ = reach_;
        tied_ = chained_ = 0;
        for (int l = 0; l < W; ++l) triangle[l] = -1;
        mixed_ ? walk<true>() : walk<false>();
        if (chained_) {
            // Faces apart by less than a tie each, but more together: with the least time known, the order in which
            // they are met no longer matters.
            for (int l = 0; l < W; ++l)
                if (triangle[l] >= 0) triangle[l] = INT32_MAX;
            mixed_ ? walk<true>() : walk<false>();
        }
        L::store(time, best_);
    }

    alignas(64) float time[W];    // [m], where there is a triangle
    alignas(64) int triangle[W];  // within the scene; -1: none

   private:
    using G = typename B::F;
    static constexpr unsigned kAll = (1u << W) - 1u;

    struct Entry {
        float near;   // no ray of the tile enters the box before
        int32_t box;  // 8 * node + child
    };

    // A leaf as the test reads it: U, V, W edges (x, y, z, tolerance), normal, height over the origin.
    using Edges = float[16][kWide];

    void aim(int a, F slope) {
        const F inverse = L::pick(L::less(L::magnitude(slope), L::fill(kFlatSlope)), L::fill(static_cast<float>(kHuge)),
                                  L::div(L::fill(1.0f), slope));
        slope_[a] = slope;
        near_inverse_[a] = L::mul(inverse, L::fill(1.0f - kUlps));
        far_inverse_[a] = L::mul(inverse, L::fill(1.0f + kUlps));
        const unsigned backward = L::bits(L::less(inverse, L::fill(0.0f)));
        float near[W], far[W];
        L::store(near, near_inverse_[a]);
        L::store(far, far_inverse_[a]);
        float forward_near = kFar, backward_near = -kFar, forward_far = 0.0f, backward_far = 0.0f;
        for (int l = 0; l < W; ++l) {
            if (backward >> l & 1) {
                backward_near = greatest(backward_near, near[l]);
                backward_far = least(backward_far, far[l]);
            } else {
                forward_near = least(forward_near, near[l]);
                forward_far = greatest(forward_far, far[l]);
            }
        }
        if (backward != 0 && backward != kAll) {
            mixed_ |= 1u << a;
            enter_[a] = forward_near;
            leave_[a] = backward_near;
        } else {
            entry_[a] = backward ? 3 + a : a;
            exit_[a] = backward ? a : 3 + a;
            enter_[a] = backward ? backward_near : forward_near;
            leave_[a] = backward ? backward_far : forward_far;
        }
    }

    template <bool kMixed>
    void walk() {
        Entry stack[kTreeStack];
        int top = open<kMixed>(0, stack, 0);
        while (top > 0) {
            const Entry e = stack[--top];
            if (e.near > far_) continue;
            F near, far;
            stay<kMixed>(tree_.planes + 6 * kWide * static_cast<int64_t>(e.box / kWide) + e.box % kWide, near, far);
            const unsigned active = L::bits(L::at_most(near, L::least(far, bound_)));
            if (!active) continue;
            const int child = tree_.child[e.box];
            if (child >= 0)
                top = open<kMixed>(child, stack, top);
            else if (child != kNobody)  // rays that are no unit vectors may reach a void
                leaf(-1 - child, active, near);
        }
    }

    // When each ray is in the box of these planes.
    template <bool kMixed>
    void stay(const float* box, F& near, F& far) const {
        near = L::fill(0.0f);
        far = L::fill(kFar);
        for (int a = 0; a < 3; ++a) {
            if constexpr (kMixed) {
                near = L::greatest(near, L::least(at(box, a, a, near_inverse_), at(box, 3 + a, a, near_inverse_)));
                far = L::least(far, L::greatest(at(box, a, a, far_inverse_), at(box, 3 + a, a, far_inverse_)));
            } else {
                near = L::greatest(at(box, entry_[a], a, near_inverse_), near);
                far = L::least(at(box, exit_[a], a, far_inverse_), far);
            }
        }
    }
    F at(const float* box, int plane, int axis, const F* inverse) const {
        return L::mul(L::fill(box[kWide * plane] - origin_[axis]), inverse[axis]);
    }

    // Push those children of a node that the tile may meet, the nearest on top.
    template <bool kMixed>
    int open(int node, Entry* stack, int top) const {
        alignas(32) float near[kWide];
        unsigned met = 0;
        const float* planes = tree_.planes + 6 * kWide * static_cast<int64_t>(node);
        for (int h = 0; h < kWide; h += B::width) {
            G n = B::fill(0.0f), f = B::fill(far_);
            for (int a = 0; a < 3; ++a) {
                const auto reach = [&](int plane, float inverse) {
                    return B::mul(B::sub(B::load(planes + kWide * plane + h), B::fill(origin_[a])), B::fill(inverse));
                };
                if (kMixed && (mixed_ >> a & 1)) {
                    n = B::greatest(n, B::greatest(reach(a, enter_[a]), reach(3 + a, leave_[a])));
                } else {
                    n = B::greatest(n, reach(entry_[a], enter_[a]));
                    f = B::least(f, reach(exit_[a], leave_[a]));
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

    void leaf(int group, unsigned active, F near) {
        alignas(64) Edges edges;
        const int32_t* ids = tree_.ids + kWide * static_cast<int64_t>(group);
        prepare(tree_.corners + 9 * kWide * static_cast<int64_t>(group), edges);
        int count = kWide;
        while (count > 1 && ids[count - 1] < 0) --count;
        const bool changed = __builtin_popcount(active) * (W / B::width) <= count
                                 ? by_ray(edges, ids, active, near)
                                 : by_triangle(edges, ids, count, active, near);
        if (!changed) return;
        float bound[W];
        L::store(bound, bound_);
        far_ = bound[0];
        for (int l = 1; l < W; ++l) far_ = greatest(far_, bound[l]);
    }

    void prepare(const float* corners, Edges edges) const {
        for (int h = 0; h < kWide; h += B::width) {
            G v[3][3], s[3], d[3], n[3];
            for (int c = 0; c < 3; ++c)
                for (int a = 0; a < 3; ++a)
                    v[c][a] = B::sub(B::load(corners + kWide * (3 * c + a) + h), B::fill(origin_[a]));
            for (int a = 0; a < 3; ++a) {
                s[a] = B::sub(v[1][a], v[0][a]);
                d[a] = B::sub(v[2][a], v[0][a]);
            }
            cross(s, d, n);
            const G height = B::add(B::add(B::mul(n[0], v[0][0]), B::mul(n[1], v[0][1])), B::mul(n[2], v[0][2]));
            // Turned so that a ray ahead of the origin has the triangle on its positive side.
            for (int a = 0; a < 3; ++a) B::store(edges[12 + a] + h, B::flip(n[a], height));
            B::store(edges[15] + h, B::magnitude(height));
            for (int e = 0; e < 3; ++e) {
                const G *p = v[(e + 1) % 3], *q = v[(e + 2) % 3];
                for (int a = 0; a < 3; ++a) {
                    s[a] = B::add(p[a], q[a]);
                    d[a] = B::sub(q[a], p[a]);
                }
                cross(s, d, n);
                const G rounding = B::add(B::mul(norm(s), B::fill(kEdgeRounding)), B::fill(tree_.slack));
                for (int a = 0; a < 3; ++a) B::store(edges[4 * e + a] + h, B::flip(n[a], height));
                B::store(edges[4 * e + 3] + h, B::mul(norm(d), rounding));
            }
        }
    }
    static void cross(const G* a, const G* b, G* out) {
        for (int i = 0; i < 3; ++i) {
            const int j = (i + 1) % 3, k = (i + 2) % 3;
            out[i] = B::sub(B::mul(a[j], b[k]), B::mul(a[k], b[j]));
        }
    }
    static G norm(const G* a) { return B::add(B::add(B::magnitude(a[0]), B::magnitude(a[1])), B::magnitude(a[2])); }

    // Does the ray pass on the inner side of the three edges? `slope`: its rate towards the plane.
    template <class V, class Get>
    static typename V::M inside(const typename V::F* d, const Get& get, typename V::F& slope) {
        using X = typename V::F;
        const auto edge = [&](int e) {
            return V::fma(d[0], get(4 * e), V::fma(d[1], get(4 * e + 1), V::fma(d[2], get(4 * e + 2), get(4 * e + 3))));
        };
        const X u = edge(0), v = edge(1), w = edge(2), zero = V::fill(0.0f);
        slope = V::fma(d[0], get(12), V::fma(d[1], get(13), V::mul(d[2], get(14))));
        return V::both(V::at_most(zero, V::least(u, V::least(v, w))), V::less(zero, slope));
    }

    // One triangle after the other against all rays.
    bool by_triangle(const Edges edges, const int32_t* ids, int count, unsigned active, F near) {
        const M on = L::mask(active);
        bool changed = false;
        for (int i = 0; i < count; ++i) {
            if (ids[i] < 0) continue;  // a sliver
            F slope;
            M hit = L::both(on, inside<L>(slope_, [&](int k) { return L::fill(edges[k][i]); }, slope));
            if (!L::bits(hit)) continue;
            const F t = L::greatest(L::div(L::fill(edges[15][i]), slope), near);
            hit = L::both(hit, L::at_most(t, bound_));
            if (!L::bits(hit)) continue;
            const unsigned apart = L::bits(L::both(hit, L::less(L::add(t, L::fill(tree_.tie)), best_)));
            best_ = L::pick(L::mask(apart), t, best_);
            L::store(L::mask(apart), triangle, ids[i]);
            tied_ &= ~apart;
            if (unsigned rest = L::bits(hit) & ~apart) {
                float times[W], best[W];
                L::store(times, t);
                L::store(best, best_);
                for (; rest; rest &= rest - 1) {
                    const int l = __builtin_ctz(rest);
                    tie(l, times[l], ids[i], best[l]);
                }
                best_ = L::load(best);
            }
            bound_ = L::least(L::add(best_, L::fill(tree_.tie)), L::fill(reach_));
            changed = true;
        }
        return changed;
    }

    // One ray after the other against all triangles.
    bool by_ray(const Edges edges, const int32_t* ids, unsigned active, F near) {
        float slopes[3][W], from[W], best[W], bound[W];
        for (int a = 0; a < 3; ++a) L::store(slopes[a], slope_[a]);
        L::store(from, near);
        L::store(best, best_);
        L::store(bound, bound_);
        bool changed = false;
        for (; active; active &= active - 1) {
            const int l = __builtin_ctz(active);
            const G d[3] = {B::fill(slopes[0][l]), B::fill(slopes[1][l]), B::fill(slopes[2][l])};
            for (int h = 0; h < kWide; h += B::width) {
                G slope;
                unsigned hit = B::bits(inside<B>(d, [&](int k) { return B::load(edges[k] + h); }, slope));
                if (!hit) continue;
                float times[B::width];
                B::store(times, B::greatest(B::div(B::load(edges[15] + h), slope), B::fill(from[l])));
                for (; hit; hit &= hit - 1) {
                    const int i = __builtin_ctz(hit), id = ids[h + i];
                    const float t = times[i];
                    if (id < 0 || !(t <= bound[l])) continue;
                    if (t + tree_.tie < best[l]) {
                        best[l] = t;
                        triangle[l] = id;
                        tied_ &= ~(1u << l);
                    } else {
                        tie(l, t, id, best[l]);
                    }
                    bound[l] = least(best[l] + tree_.tie, reach_);
                    changed = true;
                }
            }
        }
        best_ = L::load(best);
        bound_ = L::load(bound);
        return changed;
    }

    // A second face within a tie of the first. `tied_`: one that lies behind the best is known.
    void tie(int l, float t, int id, float& best) {
        const unsigned bit = 1u << l;
        if (t < best) {
            chained_ |= tied_ & bit;
            best = t;
            tied_ |= bit;
        } else if (t > best) {
            tied_ |= bit;
        }
        triangle[l] = least(triangle[l], id);
    }

    const BoxTree& tree_;
    float origin_[3], reach_, far_;  // far_: no ray of the tile looks beyond
    F slope_[3], near_inverse_[3], far_inverse_[3];
    F best_, bound_;                 // least time met; what begins behind the bound is of no interest
    unsigned mixed_, tied_, chained_;
    int entry_[3], exit_[3];         // plane through which the tile enters and leaves boxes
    float enter_[3], leave_[3];      // and the inverse direction that does so first and last; forward and backward
                                     // where the tile's rays go both ways
};

// Cast tiles [first, end) of the rays that leave `origin`; `sink` takes the numbers of a tile's rays, and the tile.
template <class L, class B, class Sink>
void each_tile(const BoxTree& tree, const float* origin, const float* directions, int64_t rays, float max_distance,
               const Layout& layout, int64_t first, int64_t end, const Sink& sink) {
    constexpr int W = L::width;
    Tile<L, B> tile(tree, origin, least(max_distance, static_cast<float>(kHuge)));
    const int64_t columns = layout.elevations ? rays / layout.elevations : 0;
    const int64_t bands = layout.elevations ? (layout.elevations + layout.high - 1) / layout.high : 0;
    for (int64_t number = first; number < end; ++number) {
        int64_t ray[W];
        alignas(64) float d[3 * W];
        for (int l = 0; l < W; ++l) {
            // Beyond the edge of the grid its last rays are taken again.
            if (layout.elevations) {
                const int64_t azimuth = least(number / bands * layout.wide + l / layout.high, columns - 1);
                const int64_t elevation = least(number % bands * layout.high + l % layout.high, layout.elevations - 1);
                ray[l] = azimuth * layout.elevations + elevation;
            } else {
                ray[l] = least(number * W + l, rays - 1);
            }
            const float* aim = directions + 3 * ray[l];
            for (int a = 0; a < 3; ++a) d[a * W + l] = aim[a];
            if (layout.turn) {
                d[l] = aim[0] * layout.turn[0] + aim[2] * layout.turn[1];
                d[2 * W + l] = aim[2] * layout.turn[0] - aim[0] * layout.turn[1];
            }
        }
        tile.cast(d);
        sink(ray, tile);
    }
}

template <class L, class B>
void cast_tiles(const BoxTree& tree, const Rays& rays, const Layout& layout, int64_t row, int64_t first, int64_t end) {
    const float* directions = rays.directions + (rays.shared ? 0 : 3 * row * rays.rays);
    const int64_t start = row * rays.rays;
    const float max_distance = static_cast<float>(rays.max_distance);
    each_tile<L, B>(tree, rays.origins + 3 * row, directions, rays.rays, max_distance, layout, first, end,
                    [&](const int64_t* ray, const Tile<L, B>& tile) {
                        for (int l = 0; l < L::width; ++l) {
                            const int f = tile.triangle[l];
                            rays.depth[start + ray[l]] = f >= 0 ? tile.time[l] : max_distance;
                            rays.label[start + ray[l]] = f >= 0 ? tree.semantic[f] : 0;
                            rays.valid[start + ray[l]] = f >= 0;
                        }
                    });
}

}  // namespace
}  // namespace navi
