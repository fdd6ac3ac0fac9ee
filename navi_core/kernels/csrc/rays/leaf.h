// A leaf's triangles about the origin of the rays, and which of them a tile of rays may meet.
//
// Triangles are tested by the side on which the ray passes each edge (Plücker coordinates about the origin), with a
// tolerance above the rounding of that test, so that no ray passes between neighbours. The edges depend on the origin
// alone: all tiles of a panorama share them.
//
// B: lanes of triangles. Include after lanes_*.h. Everything here has internal linkage: each kind of CPU has its own
// copy. Never compiled with fused or reassociated arithmetic but for the explicit ones.
#pragma once

#include <cstring>
#include <vector>

#include "rays/views.h"

namespace navi {
namespace {

constexpr float kEdgeRounding = 4e-7f;    // of an edge test, over the one-norms of its vectors
constexpr float kAimRounding = 4e-6f;     // widening of a tile's directions, above the rounding of edge tests
constexpr float kDepthRounding = 1e-5f;   // widening of a tile's range, above the rounding of hit times

// Directions of a tile as an axis-aligned box.
struct Aim {
    float centre[3], half[3];
};

template <class B>
struct alignas(64) Leaf {
    using G = typename B::F;

    // U, V, W edges (x, y, z, tolerance), normal, height over the origin.
    float edges[16][kWide];
    const int32_t* ids;
    unsigned present;  // bit for each triangle that is no sliver

    void prepare(const BoxTree& tree, int group, const float* origin) {
        ids = tree.ids + kWide * static_cast<int64_t>(group);
        present = 0;
        for (int i = 0; i < kWide; ++i) present |= static_cast<unsigned>(ids[i] >= 0) << i;
        const float* corners = tree.corners + 9 * kWide * static_cast<int64_t>(group);
        for (int h = 0; h < kWide; h += B::width) {
            G v[3][3], s[3], d[3], n[3];
            for (int c = 0; c < 3; ++c)
                for (int a = 0; a < 3; ++a)
                    v[c][a] = B::sub(B::load(corners + kWide * (3 * c + a) + h), B::fill(origin[a]));
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
                const G rounding = B::add(B::mul(norm(s), B::fill(kEdgeRounding)), B::fill(tree.slack));
                for (int a = 0; a < 3; ++a) B::store(edges[4 * e + a] + h, B::flip(n[a], height));
                B::store(edges[4 * e + 3] + h, B::mul(norm(d), rounding));
            }
        }
    }

    // Bits of the triangles that a ray of these directions may meet up to `far`.
    unsigned before(const Aim& aim, float far) const {
        unsigned met = 0;
        G centre[3], half[3];
        for (int a = 0; a < 3; ++a) {
            centre[a] = B::fill(aim.centre[a]);
            half[a] = B::fill(aim.half[a]);
        }
        for (int h = 0; h < kWide; h += B::width) {
            const auto most = [&](int row) {
                const G x = B::load(edges[row] + h), y = B::load(edges[row + 1] + h), z = B::load(edges[row + 2] + h);
                return B::fma(x, centre[0], B::fma(y, centre[1], B::fma(z, centre[2],
                       B::fma(B::magnitude(x), half[0], B::fma(B::magnitude(y), half[1], B::mul(B::magnitude(z), half[2]))))));
            };
            const auto edge = [&](int e) {
                const G tolerance = B::load(edges[4 * e + 3] + h);
                return B::add(most(4 * e), B::add(tolerance, tolerance));
            };
            const G slope = most(12);
            const G inner = B::least(edge(0), B::least(edge(1), edge(2)));
            met |= B::bits(B::both(B::at_most(B::fill(0.0f), inner),
                                   B::at_most(B::load(edges[15] + h), B::mul(slope, B::fill(far * (1.0f + kDepthRounding))))))
                   << h;
        }
        return met & present;
    }

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

   private:
    static void cross(const G* a, const G* b, G* out) {
        for (int i = 0; i < 3; ++i) {
            const int j = (i + 1) % 3, k = (i + 2) % 3;
            out[i] = B::sub(B::mul(a[j], b[k]), B::mul(a[k], b[j]));
        }
    }
    static G norm(const G* a) { return B::add(B::add(B::magnitude(a[0]), B::magnitude(a[1])), B::magnitude(a[2])); }
};

// The leaves that the tiles of one origin have met lately.
template <class B>
class Leaves {
   public:
    // Forget the leaves of another origin.
    void begin() {
        leaves_.resize(kKept);
        group_.assign(kKept, -1);
    }
    const Leaf<B>& at(const BoxTree& tree, int group, const float* origin) {
        const int place = group % kKept;
        if (group_[place] != group) {
            group_[place] = group;
            leaves_[place].prepare(tree, group, origin);
        }
        return leaves_[place];
    }

   private:
    static constexpr int kKept = 512;  // about 300 kB: they stay in the second cache
    std::vector<Leaf<B>> leaves_;
    std::vector<int> group_;
};

}  // namespace
}  // namespace navi
