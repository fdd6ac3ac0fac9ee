// Many rays of one origin at once: the walk of trace.h over `Lanes::width` lanes.
//
// A lane that meets a triangle list puts its (lane, triangle) pairs into a queue and waits; the queue is tested
// when enough lanes wait, a full vector of pairs at a time, so that short and long lists fill the lanes alike.
// A lane that is finished takes the next ray. What a ray answers does not depend on its neighbours.
// Include after lanes_*.h. Everything here has internal linkage: each CPU has its own copy.
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
        for (int i = 0; i < kQueue + 2 * W; ++i) pair_item_[i] = pair_lane_[i] = 0;
    }

    void run() {
        for (;;) {
            if (idle_ && next_ < end_ && (count(idle_) >= kRefill || (idle_ | waiting_) == kAll)) refill();
            const unsigned going = kAll & ~(idle_ | waiting_);
            if (going) step(going);
            if (waiting_ && (count(waiting_) >= kFlush || (idle_ | waiting_) == kAll)) resolve();
            if (idle_ == kAll && next_ >= end_) return;
        }
    }

   private:
    using L = Lanes;
    using F = L::F;
    using I = L::I;
    using M = L::M;
    static constexpr int W = L::width;
    static constexpr unsigned kAll = (1u << W) - 1u;
    static constexpr int kQueue = 512;
    static constexpr int kRefill = NAVI_REFILL;
    static constexpr int kFlush = NAVI_FLUSH;

    struct Axis {
        F slope, inverse, start;
        I cell, forward;  // forward: 1 or 0
    };

    static int count(unsigned bits) { return __builtin_popcount(bits); }

    // Give the next rays to the idle lanes.
    void refill() {
        unsigned filled = 0;
        for (unsigned rest = idle_; rest && next_ < end_; rest &= rest - 1) {
            const int lane = __builtin_ctz(rest);
            ray_[lane] = static_cast<int>(next_++);
            filled |= 1u << lane;
        }
        idle_ &= ~filled;
        const M m = L::mask(filled);
        const I ray = L::load(ray_);
        const I at = L::add(L::add(ray, ray), ray);
        octant_ = L::pick(m, L::fill(0), octant_);
        for (int a = 0; a < 3; ++a) {
            Axis& x = axis_[a];
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
            const int cube = (1 << a) * scene_.cells * scene_.cells * scene_.cells;
            octant_ = L::pick(m, L::add(octant_, L::pick(backward, L::fill(cube), L::fill(0))), octant_);
        }
        t_ = L::pick(m, L::fill(0.0f), t_);
    }

    // One box for every lane of `going`.
    void step(unsigned going) {
        const M go = L::mask(going);
        const I zero = L::fill(0), three = L::fill(3);
        Axis &x = axis_[0], &y = axis_[1], &z = axis_[2];
        const I cells = L::fill(scene_.cells);
        const I index = L::add(
            L::mul(L::add(L::mul(L::right(x.cell, 4), cells), L::right(y.cell, 4)), cells), L::right(z.cell, 4));
        const I empty = L::gather_bytes(go, scene_.cubes, L::add(octant_, index));
        I size = L::fill(kFine), reach = L::left(empty, 4), start = zero, length = zero;
        const unsigned surface = going & L::bits(L::equal(empty, zero));
        if (surface) {
            const M at_surface = L::mask(surface);
            const I record = L::gather(at_surface, scene_.grid, index);
            L::gather_pairs(at_surface, scene_.records, record, start, length);
            unsigned split = L::bits(L::less(length, zero));
            for (int shift = 2; split && shift >= 0; shift -= 2) {
                const M inside = L::mask(split);
                const I i = L::left(L::both(L::right(x.cell, shift), three), 4);
                const I j = L::left(L::both(L::right(y.cell, shift), three), 2);
                const I k = L::both(L::right(z.cell, shift), three);
                I deep_start, deep_length;
                L::gather_pairs(inside, scene_.records, L::add(start, L::either(i, L::either(j, k))), deep_start,
                                deep_length);
                start = L::pick(inside, deep_start, start);
                length = L::pick(inside, deep_length, length);
                size = L::pick(inside, L::fill(1 << shift), size);
                split &= L::bits(L::less(length, zero));
            }
            reach = L::pick(at_surface, size, reach);
        }
        const I box = L::sub(zero, size);  // mask of the box's first subcell
        const I ex = last_of(x, box, size, reach), ey = last_of(y, box, size, reach), ez = last_of(z, box, size, reach);
        const F fine = L::fill(fine_);
        const F tx = leaves(x, ex, fine), ty = leaves(y, ey, fine), tz = leaves(z, ez, fine);
        const F leave = L::least(tx, L::least(ty, tz));
        const unsigned list = surface & L::bits(L::less(zero, length));
        if (list) {
            const M m = L::mask(list);
            const F low = L::greatest(L::sub(t_, L::fill(static_cast<float>(kBefore))), L::fill(0.0f));
            const F high = L::add(L::least(L::add(leave, L::fill(static_cast<float>(kAfter))), L::fill(t_max_)),
                                  L::fill(static_cast<float>(kTie)));
            low_ = L::pick(m, low, low_);
            high_ = L::pick(m, high, high_);
            L::store(m, best_, high);
            L::store(m, winner_, L::fill(-1));
            L::store(start_, start);
            L::store(length_, length);
            for (unsigned rest = list; rest; rest &= rest - 1) enqueue(__builtin_ctz(rest));
        }
        // On to the next box: across the boundary on the exit axis, not behind and not beyond it on the others.
        const unsigned out_x = L::bits(L::equal(tx, leave));
        const unsigned out_y = ~out_x & L::bits(L::equal(ty, leave));
        const M cross_x = L::mask(out_x), cross_y = L::mask(out_y), cross_z = L::mask(~(out_x | out_y) & kAll);
        const I nx = advance(x, ex, leave, cross_x), ny = advance(y, ey, leave, cross_y);
        const I nz = advance(z, ez, leave, cross_z);
        // Negative coordinates have their highest bit set, those beyond the grid exceed `last`.
        const I worst = L::greatest(nx, L::greatest(ny, nz)), lowest = L::least(nx, L::least(ny, nz));
        const unsigned outside = L::bits(L::less(lowest, zero)) | L::bits(L::less(L::fill(last_), worst));
        const unsigned done = going & (outside | L::bits(L::at_least(leave, L::fill(t_max_))));
        x.cell = L::pick(go, nx, x.cell);
        y.cell = L::pick(go, ny, y.cell);
        z.cell = L::pick(go, nz, z.cell);
        t_ = L::pick(go, L::greatest(t_, leave), t_);
        waiting_ |= list;
        ended_ = (ended_ & ~going) | done;
        const unsigned missed = done & ~list;
        for (unsigned rest = missed; rest; rest &= rest - 1) miss(__builtin_ctz(rest));
        idle_ |= missed;
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

    void enqueue(int lane) {
        const int* from = scene_.items + start_[lane];
        for (int left = length_[lane]; left > 0;) {
            const int take = left < kQueue - queued_ ? left : kQueue - queued_;
            for (int i = 0; i < take; i += W) {
                L::store(pair_item_ + queued_ + i, L::load(from + i));
                L::store(pair_lane_ + queued_ + i, L::fill(lane));
            }
            queued_ += take;
            from += take;
            left -= take;
            if (queued_ == kQueue) test();
        }
    }

    // Test all queued pairs; lanes keep their best.
    void test() {
        // Entries past the end belong to the last copy: masked, but their rows are read.
        const F ox = L::fill(static_cast<float>(origin_[0])), oy = L::fill(static_cast<float>(origin_[1])),
                oz = L::fill(static_cast<float>(origin_[2]));
        const F edge = L::fill(static_cast<float>(-kEdgeDilation)), tie = L::fill(static_cast<float>(kTie));
        L::store(pair_item_ + queued_, L::fill(0));
        L::store(pair_lane_ + queued_, L::fill(0));
        for (int q = 0; q < queued_; q += W) {
            const unsigned present = queued_ - q >= W ? kAll : (1u << (queued_ - q)) - 1u;
            const I lane = L::load(pair_lane_ + q);
            F nx, ny, nz, nw;
            L::rows(scene_.planes, pair_item_ + q, nx, ny, nz, nw);
            const F dx = L::of_lane(axis_[0].slope, lane), dy = L::of_lane(axis_[1].slope, lane),
                    dz = L::of_lane(axis_[2].slope, lane);
            const F t = L::plane_time(nx, ny, nz, nw, dx, dy, dz, origin_);
            unsigned hit = present & L::bits(L::at_least(t, L::of_lane(low_, lane))) &
                           L::bits(L::at_least(L::sub(L::of_lane(high_, lane), tie), t));
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

    // Test what is queued and let the waiting lanes go on.
    void resolve() {
        test();
        for (unsigned rest = waiting_; rest; rest &= rest - 1) {
            const int lane = __builtin_ctz(rest);
            const unsigned bit = 1u << lane;
            if (winner_[lane] >= 0 && best_[lane] <= t_max_) {
                const int r = ray_[lane];
                const float t = best_[lane] > 0.0f ? best_[lane] : 0.0f;
                depth_[r] = static_cast<float>(t * scene_.voxel);
                label_[r] = scene_.semantic[winner_[lane]];
                valid_[r] = 1;
                idle_ |= bit;
            } else if (winner_[lane] >= 0 || ended_ & bit) {
                miss(lane);
                idle_ |= bit;
            }
        }
        waiting_ = 0;
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
    unsigned idle_ = kAll, waiting_ = 0, ended_ = 0;
    Axis axis_[3] = {};
    I octant_ = L::fill(0);
    F t_ = L::fill(0.0f), low_ = L::fill(0.0f), high_ = L::fill(0.0f);
    int ray_[W] = {}, start_[W], length_[W], winner_[W];
    float best_[W];
    int pair_item_[kQueue + 2 * W], pair_lane_[kQueue + 2 * W];
};

}  // namespace
}  // namespace navi
