// The CPU library: tiles of rays over OpenMP threads, as wide as the CPU allows. Called through ctypes.
#include <cstdint>

#include "rays/closest.h"
#include "rays/schedule.h"

namespace navi {

// Rays of an azimuth where the directions are a panorama, azimuth by azimuth: their heights come again and again.
// 0 where they do not. A wrong guess would cost time, never a wrong answer.
static int64_t elevations(const float* directions, int64_t rays) {
    int64_t period = 1;
    while (period < rays && directions[3 * period + 1] != directions[1]) ++period;
    if (rays % period != 0 || period == rays) return 0;
    for (int64_t r = period; r < rays; ++r)
        if (directions[3 * r + 1] != directions[3 * (r - period) + 1]) return 0;
    return period;
}

}  // namespace navi

extern "C" {

// Lanes of the widest path of this CPU: 16, 8, or 4.
int navi_lanes() {
    return navi::widest();
}

// `turns`: (B, 2) cosine and sine of the yaw by which each row's directions are turned; null: as they are.
// `lanes`: 0 for the widest path, or 4, 8, 16; a path that the CPU lacks gives way to the widest it has.
void navi_cast(const navi::Hierarchies* all, const navi::Rays* rays, const float* turns, int most_threads,
                       int lanes) {
    const int width = navi::width_of(lanes);
    if (rays->rows == 0 || rays->rays == 0) return;
    const int threads = navi::threads_for(rays->rows * rays->rays, most_threads);
    const auto layout_at = [&](const float* directions) {
        return navi::layout_of(rays->rays, navi::elevations(directions, rays->rays), width);
    };
    const navi::Layout first = layout_at(rays->directions);
    const bool whole = navi::rows_suffice(rays->rows, threads);
    const int64_t widest = (rays->rays + width - 1) / width;
    const int64_t most = navi::greatest(first.count, widest);
    const int64_t blocks = whole ? 1 : (most + navi::kBlock - 1) / navi::kBlock;
    navi::share_out(rays->rows * blocks, threads, rays->rays < 64 ? 64 : 1, [&](int64_t job) {
        const int64_t row = job / blocks, begin = job % blocks * navi::kBlock;
        if (rays->scene[row] < 0) return;
        navi::Layout layout =
            rays->shared ? first : layout_at(rays->directions + 3 * row * rays->rays);
        if (turns) layout.turn = turns + 2 * row;
        // The last block takes what is left, however the row is laid out.
        const int64_t end = job % blocks == blocks - 1 ? layout.count : begin + navi::kBlock;
        if (begin >= layout.count) return;
        const navi::BoxTree tree = navi::box_tree(*all, rays->scene[row]);
        navi::path_of(width).cast(tree, *rays, layout, row, begin, navi::least(end, layout.count));
    });
}

void navi_distance(const navi::Hierarchies* all, const float* points, const int32_t* scene, int64_t count, float* out,
                   int threads) {
    navi::share_out(count, threads, 16, [=](int64_t i) {
        out[i] = static_cast<float>(navi::distance_to(navi::box_tree(*all, scene[i]), points + 3 * i));
    });
}

void navi_within(const navi::Hierarchies* all, const float* points, const int32_t* scene, int64_t count, double radius,
                 uint8_t* out, int threads) {
    navi::share_out(count, threads, 16, [=](int64_t i) {
        const double p[3] = {points[3 * i], points[3 * i + 1], points[3 * i + 2]};
        const double limit = radius * radius;
        out[i] = navi::nearest_squared(navi::box_tree(*all, scene[i]), p, limit, true) < limit;
    });
}

}  // extern "C"
