// Many rays of one origin at once: the walk of trace.h over two groups of `Lanes::width` lanes.
//
// In each round every lane goes through one box. Those that meet a triangle list put their (lane, triangle) pairs
// into one queue, which is tested a full vector of pairs at a time: short and long lists fill the lanes alike. Two
// groups fill the queue better than one and hide each other's waits for memory. A lane that is finished takes the
// next ray. What a ray answers does not depend on its neighbours.
// Include after lanes_*.h. Everything here has internal linkage: each kind of CPU has its own copy.
#pragma once

#include "views.h"

namespace navi {
namespace {

class Packet {
   public:
    Packet(const SceneView& scene, const Rays& rays, int64_t row, int64_t first, int64_t end)
        : scene_(scene), next_(first), end_(end) {
        const float* p = rays.origins + 3 * row;
        for (int a = 0; a < 3; ++a) origin_[a] = (p[a] - scene.lower[a]) / scene.voxel;
        directions_ = rays.directions + (rays.shared ? 0 : 3 * row * rays.rays);
        depth_ = rays.depth + row * rays.rays;
        label_ = rays.label + row * rays.rays;
        valid_ = rays.valid + row * rays.rays;
        range_ = rays.max_distance;
        t_max_ = static_cast<float>(rays.max_distance / scene.voxel);
        last_ = kFine * scene.cells - 1;
        fine_ = static_cast<float>(static_cast<double>(scene.resolution) / (kFine * scene.cells));
        per_fine_ = 1.0f / fine_;
        for (int a = 0; a < 3; ++a) {
            const int cell = static_cast<int>(origin_[a] * per_fine_);
            begin_[a] = cell < last_ ? cell : last_;
        }
    }

    void run() {
        do {
            for (int g = 0; g < kGroups; ++g) {
                Group& group = groups_[g];
                if (next_ < end_ && (count(group.idle) >= kRefill)) refill(group, g * W);
                if (group.idle != kAll) step(group, g * W);
            }
            test();
            for (int g = 0; g < kGroups; ++g) resolve(groups_[g], g * W);
        } while (next_ < end_ || groups_[0].idle != kAll || groups_[1].idle != kAll);
    }

   private:
    using L = Lanes;
    using F = L::F;
    using I = L::I;
    using M = L::M;
    static constexpr int W = L::width;
    static constexpr int kGroups = 2;
    static constexpr unsigned kAll = (1u << W) - 1u;
    static constexpr int kQueue = 1024;
    static constexpr int kRefill = NAVI_REFILL;

    struct Axis {
        F slope, inverse, start;
        I cell, forward;  // forward: 1 or 0
    };

    struct Group {
        Axis axis[3];
        I octant;               // 0..7, where the words of empty cells are read
        F t, low, high;         // walk time; range in which a hit counts
        unsigned idle = kAll, waiting = 0, ended = 0;
    };

    static int count(unsigned bits) { return __builtin_popcount(bits); }

    // Give the next rays to the idle lanes.
    void refill(Group& g, int base) {
        unsigned filled = 0;
        for (unsigned rest = g.idle; rest && next_ < end_; rest &= rest - 1) {
            const int lane = __builtin_ctz(rest);
            ray_[base + lane] = static_cast<int>(next_++);
            filled |= 1u << lane;
        }
        g.idle &= ~filled;
        const M m = L::mask(filled);
        const I ray = L::load(ray_ + base);
        const I at = L::add(L::add(ray, ray), ray);
        I octant = L::fill(0);
        for (int a = 0; a < 3; ++a) {
            Axis& x = g.axis[a];
            F slope = L::gather(m, directions_ + a, at);
            // A flat axis is never the exit: its boundary is at least a voxel and an infinity away.
            const M steep = L::at_least(L::magnitude(slope), L::fill(static_cast<float>(kFlat)));
            const F o = L::fill(static_cast<float>(origin_[a]));
            slope = L::pick(steep, slope, L::fill(0.0f));
            const M backward = L::less(slope, L::fill(0.0f));
            x.slope = L::pick(m, slope, x.slope);
            x.inverse = L::pick(m, L::pick(steep, L::div(L::fill(1.0f), slope), L::fill(static_cast<float>(kHuge))),
                                x.inverse);
            x.start = L::pick(m, L::pick(steep, o, L::sub(o, L::fill(1.0f))), x.start);
            x.cell = L::pick(m, L::fill(begin_[a]), x.cell);
            x.forward = L::pick(m, L::pick(backward, L::fill(0), L::fill(1)), x.forward);
            octant = L::either(octant, L::pick(backward, L::fill(1 << a), L::fill(0)));
        }
        g.octant = L::pick(m, octant, g.octant);
        g.t = L::pick(m, L::fill(0.0f), g.t);
    }

    // One box for every lane that has a ray.
    void step(Group& g, int base) {
        const unsigned going = kAll & ~g.idle;
        const M go = L::mask(going);
        const I zero = L::fill(0), three = L::fill(3);
        Axis &x = g.axis[0], &y = g.axis[1], &z = g.axis[2];
        const I cells = L::fill(scene_.cells);
        const I index = L::add(
            L::mul(L::add(L::mul(L::right(x.cell, 4), cells), L::right(y.cell, 4)), cells), L::right(z.cell, 4));
        I start, length;
        L::gather_halves(go, scene_.words, index, start, length);
        const I half = L::pick(L::less(three, g.octant), length, start);
        const I empty = L::both(L::right(half, L::left(L::both(g.octant, three), 3)), L::fill(255));
        I size = L::fill(kFine), reach = L::left(empty, 4);
        const unsigned surface = going & L::bits(L::equal(L::right(length, 24), zero));
        unsigned list = 0;
        if (surface) {
            const I mark = L::fill(static_cast<int>(kSplitWord));
            unsigned split = surface & L::bits(L::equal(length, mark));
            for (int shift = 2; split && shift >= 0; shift -= 2) {
                const M inside = L::mask(split);
                const I i = L::left(L::both(L::right(x.cell, shift), three), 4);
                const I j = L::left(L::both(L::right(y.cell, shift), three), 2);
                const I k = L::both(L::right(z.cell, shift), three);
                I deep_start, deep_length;
                L::gather_halves(inside, scene_.records, L::add(start, L::either(i, L::either(j, k))), deep_start,
                                 deep_length);
                start = L::pick(inside, deep_start, start);
                length = L::pick(inside, deep_length, length);
                size = L::pick(inside, L::fill(1 << shift), size);
                split &= L::bits(L::less(length, zero));
            }
            reach = L::pick(L::mask(surface), size, reach);
            list = surface & L::bits(L::less(zero, length));
        }
        const I box = L::sub(zero, size);  // mask of the box's first subcell
        const I ex = last_of(x, box, size, reach), ey = last_of(y, box, size, reach), ez = last_of(z, box, size, reach);
        const F fine = L::fill(fine_);
        const F tx = leaves(x, ex, fine), ty = leaves(y, ey, fine), tz = leaves(z, ez, fine);
        const F leave = L::least(tx, L::least(ty, tz));
        if (list) {
            const M m = L::mask(list);
            const F low = L::greatest(L::sub(g.t, L::fill(static_cast<float>(kBefore))), L::fill(0.0f));
            const F high = L::add(L::least(L::add(leave, L::fill(static_cast<float>(kAfter))), L::fill(t_max_)),
                                  L::fill(static_cast<float>(kTie)));
            g.low = L::pick(m, low, g.low);
            g.high = L::pick(m, high, g.high);
            L::store(m, best_ + base, high);
            L::store(m, winner_ + base, L::fill(-1));
            int starts[W], lengths[W];
            L::store(starts, start);
            L::store(lengths, length);
            for (unsigned rest = list; rest; rest &= rest - 1) {
                const int lane = __builtin_ctz(rest);
                enqueue(base + lane, scene_.items + starts[lane], lengths[lane]);
            }
        }
        // On to the next box: across the boundary on the exit axis, not behind and not beyond it on the others.
        const unsigned out_x = L::bits(L::equal(tx, leave));
        const unsigned out_y = ~out_x & L::bits(L::equal(ty, leave));
        const M cross_x = L::mask(out_x), cross_y = L::mask(out_y), cross_z = L::mask(~(out_x | out_y) & kAll);
        x.cell = advance(x, ex, leave, cross_x);
        y.cell = advance(y, ey, leave, cross_y);
        z.cell = advance(z, ez, leave, cross_z);
        g.t = L::greatest(g.t, leave);
        // An empty cube may reach beyond the grid, so the ray may have left it on any axis.
        const I worst = L::either(x.cell, L::either(y.cell, z.cell));
        const unsigned outside = L::bits(L::less(worst, zero)) | L::bits(L::less(L::fill(last_), x.cell)) |
                                 L::bits(L::less(L::fill(last_), y.cell)) | L::bits(L::less(L::fill(last_), z.cell));
        g.ended = going & (outside | L::bits(L::at_least(leave, L::fill(t_max_))));
        g.waiting = list;
        const unsigned missed = g.ended & ~list;
        for (unsigned rest = missed; rest; rest &= rest - 1) miss(base + __builtin_ctz(rest));
        g.idle |= missed;
    }

    static I last_of(const Axis& a, I box, I size, I reach) {
        const I low = L::both(a.cell, box);
        const I forward = L::sub(L::add(low, reach), L::fill(1)), backward = L::sub(L::add(low, size), reach);
        return L::pick(L::equal(a.forward, L::fill(0)), backward, forward);
    }
    static F leaves(const Axis& a, I last, F fine) {
        return L::mul(L::sub(L::mul(L::to_float(L::add(last, a.forward)), fine), a.start), a.inverse);
    }
    I advance(const Axis& a, I last, F leave, M crosses) const {
        const I low = L::least(a.cell, last), high = L::greatest(a.cell, last);
        const I at = L::to_int(L::mul(L::fma(leave, a.slope, a.start), L::fill(per_fine_)));
        const I stay = L::least(L::greatest(at, low), high);
        const I beyond = L::sub(L::add(last, L::add(a.forward, a.forward)), L::fill(1));
        return L::pick(crosses, beyond, stay);
    }

    void enqueue(int lane, const int* from, int left) {
        const I lanes = L::fill(lane);
        while (left > 0) {
            const int take = left < kQueue - queued_ ? left : kQueue - queued_;
            for (int i = 0; i < take; i += W) {
                L::store(pair_item_ + queued_ + i, L::load(from + i));
                L::store(pair_lane_ + queued_ + i, lanes);
            }
            queued_ += take;
            from += take;
            left -= take;
            if (queued_ == kQueue) test();
        }
    }

    F of_lane(F Group::*member, I lane) const { return L::of_lane(groups_[0].*member, groups_[1].*member, lane); }
    F slope(int axis, I lane) const { return L::of_lane(groups_[0].axis[axis].slope, groups_[1].axis[axis].slope, lane); }

    // Test all queued pairs; lanes keep their best.
    void test() {
        const F ox = L::fill(static_cast<float>(origin_[0])), oy = L::fill(static_cast<float>(origin_[1])),
                oz = L::fill(static_cast<float>(origin_[2]));
        const F edge = L::fill(static_cast<float>(-kEdgeDilation)), tie = L::fill(static_cast<float>(kTie));
        // The last vector may be partly empty: masked, but its rows are read.
        L::store(pair_item_ + queued_, L::fill(0));
        L::store(pair_lane_ + queued_, L::fill(0));
        for (int q = 0; q < queued_; q += W) {
            const unsigned present = queued_ - q >= W ? kAll : (1u << (queued_ - q)) - 1u;
            const I lane = L::load(pair_lane_ + q);
            F nx, ny, nz, nw;
            L::rows(scene_.planes, pair_item_ + q, nx, ny, nz, nw);
            const F dx = slope(0, lane), dy = slope(1, lane), dz = slope(2, lane);
            const F t = L::plane_time(nx, ny, nz, nw, dx, dy, dz, origin_);
            unsigned hit = present & L::bits(L::at_least(t, of_lane(&Group::low, lane))) &
                           L::bits(L::at_least(L::sub(of_lane(&Group::high, lane), tie), t));
            if (!hit) continue;
            const F px = L::fma(t, dx, ox), py = L::fma(t, dy, oy), pz = L::fma(t, dz, oz);
            for (int e = 4; e < 16 && hit; e += 4) {
                L::rows(scene_.planes + e, pair_item_ + q, nx, ny, nz, nw);
                hit &= L::bits(L::at_least(L::fma(nx, px, L::fma(ny, py, L::fma(nz, pz, nw))), edge));
            }
            if (!hit) continue;
            float times[W];
            L::store(times, t);
            // In the order of the list, as a single ray would meet them.
            for (; hit; hit &= hit - 1) {
                const int i = __builtin_ctz(hit), l = pair_lane_[q + i];
                if (!(times[i] <= best_[l] - static_cast<float>(kTie))) continue;
                best_[l] = times[i];
                winner_[l] = pair_item_[q + i];
            }
        }
        queued_ = 0;
    }

    // Finish the lanes whose list held a hit, or whose way ended behind it.
    void resolve(Group& g, int base) {
        for (unsigned rest = g.waiting; rest; rest &= rest - 1) {
            const int l = __builtin_ctz(rest), lane = base + l;
            if (winner_[lane] >= 0 && best_[lane] <= t_max_) {
                const int r = ray_[lane];
                const float t = best_[lane] > 0.0f ? best_[lane] : 0.0f;
                depth_[r] = static_cast<float>(t * scene_.voxel);
                label_[r] = scene_.semantic[winner_[lane]];
                valid_[r] = 1;
            } else if (winner_[lane] >= 0 || g.ended & 1u << l) {
                miss(lane);
            } else {
                continue;
            }
            g.idle |= 1u << l;
        }
        g.waiting = 0;
    }

    void miss(int lane) {
        const int r = ray_[lane];
        depth_[r] = static_cast<float>(range_);
        label_[r] = 0;
        valid_[r] = 0;
    }

    const SceneView& scene_;
    int64_t next_, end_;
    double origin_[3], range_;
    const float* directions_;
    float *depth_, t_max_, fine_, per_fine_;
    int32_t* label_;
    uint8_t* valid_;
    int last_, begin_[3], queued_ = 0;
    Group groups_[kGroups] = {};
    int ray_[kGroups * W] = {}, winner_[kGroups * W];
    float best_[kGroups * W];
    int pair_item_[kQueue + 2 * W], pair_lane_[kQueue + 2 * W];
};

}  // namespace
}  // namespace navi
