// The CPU library: tiles of rays over OpenMP threads, as wide as the CPU allows. Called through ctypes.
#include <cstdint>

#if defined(_OPENMP)
#include <omp.h>
#endif

#include "closest.h"
#include "octree.h"
#include "tiles.h"

namespace navi {

constexpr int64_t kBlock = 64;  // tiles of a job, where rows alone would not keep the threads busy
constexpr int kPortable = 4, kAvx2 = 8, kAvx512 = 16;

static int widest() {
#if defined(NAVI_X86)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("fma"))
        return kAvx512;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return kAvx2;
#endif
    return kPortable;
}

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

static Layout layout_of(const float* directions, int64_t rays, int lanes) {
    Layout layout{(rays + lanes - 1) / lanes, elevations(directions, rays), lanes, 1, nullptr};
    if (layout.elevations == 0) return layout;
    // As wide as high, near enough: an azimuth step is 2 pi / columns, an elevation step pi / elevations.
    const double columns = static_cast<double>(rays / layout.elevations);
    double best = 0.0;
    for (int high = 1; high <= lanes; high *= 2) {
        const double extent = 2.0 * (lanes / high) / columns + static_cast<double>(high) / layout.elevations;
        if (high > 1 && extent >= best) continue;
        best = extent;
        layout.high = high;
    }
    layout.wide = lanes / layout.high;
    const int64_t across = (rays / layout.elevations + layout.wide - 1) / layout.wide;
    layout.count = across * ((layout.elevations + layout.high - 1) / layout.high);
    return layout;
}

static void cast_tiles(const BoxTree& tree, const Rays& rays, const Layout& layout, int64_t row, int64_t first,
                       int64_t end, int lanes) {
#if defined(NAVI_X86)
    if (lanes == kAvx512) return cast_tiles_avx512(tree, rays, layout, row, first, end);
    if (lanes == kAvx2) return cast_tiles_avx2(tree, rays, layout, row, first, end);
#endif
    cast_tiles_portable(tree, rays, layout, row, first, end);
}

// Run job(0) .. job(jobs - 1), on the calling thread alone where one thread is asked for.
template <typename Job>
static void share_out(int64_t jobs, int threads, int64_t grain, const Job& job) {
    if (threads <= 1 || jobs <= grain) {
        for (int64_t i = 0; i < jobs; ++i) job(i);
        return;
    }
#if defined(_OPENMP)
#pragma omp parallel for schedule(dynamic, grain) num_threads(threads)
#endif
    for (int64_t i = 0; i < jobs; ++i) job(i);
}

}  // namespace navi

extern "C" {

// Lanes of the widest path of this CPU: 16, 8, or 4.
int navi_lanes() {
    return navi::widest();
}

// `turns`: (B, 2) cosine and sine of the yaw by which each row's directions are turned; null: as they are.
// `lanes`: 0 for the widest path, or 4, 8, 16; a path that the CPU lacks gives way to the widest it has.
void navi_cast_surface(const navi::Hierarchies* all, const navi::Rays* rays, const float* turns, int threads,
                       int lanes) {
    const int best = navi::widest();
    const int width = lanes <= 0 || lanes > best ? best : lanes;
    if (rays->rows == 0 || rays->rays == 0) return;
    const navi::Layout first = navi::layout_of(rays->directions, rays->rays, width);
    // A few rows are cut into blocks, many are not: each job then looks at the directions of its row once.
    const bool whole = threads <= 1 || rays->rows >= 4 * threads;
    const int64_t widest = (rays->rays + width - 1) / width;
    const int64_t most = navi::greatest(first.count, widest);
    const int64_t blocks = whole ? 1 : (most + navi::kBlock - 1) / navi::kBlock;
    navi::share_out(rays->rows * blocks, threads, rays->rays < 64 ? 64 : 1, [&](int64_t job) {
        const int64_t row = job / blocks, begin = job % blocks * navi::kBlock;
        if (rays->scene[row] < 0) return;
        navi::Layout layout =
            rays->shared ? first : navi::layout_of(rays->directions + 3 * row * rays->rays, rays->rays, width);
        if (turns) layout.turn = turns + 2 * row;
        // The last block takes what is left, however the row is laid out.
        const int64_t end = job % blocks == blocks - 1 ? layout.count : begin + navi::kBlock;
        if (begin >= layout.count) return;
        navi::cast_tiles(navi::box_tree(*all, rays->scene[row]), *rays, layout, row, begin,
                         navi::least(end, layout.count), width);
    });
}

void navi_cast_octree(const navi::Octrees* octrees, const navi::Rays* rays, int threads) {
    const int64_t block = 64, blocks = (rays->rays + block - 1) / block;
    navi::share_out(rays->rows * blocks, threads, 4, [=](int64_t job) {
        const int64_t row = job / blocks, first = job % blocks * block;
        if (rays->scene[row] < 0) return;
        const int64_t end = navi::least(first + block, rays->rays);
        for (int64_t r = first; r < end; ++r) navi::cast_octree_one(*octrees, *rays, rays->scene[row], row, r);
    });
}

void navi_distance(const navi::Hierarchies* all, const float* points, const int32_t* scene, int64_t count, float* out,
                   int threads) {
    navi::share_out(count, threads, 16, [=](int64_t i) {
        const double p[3] = {points[3 * i], points[3 * i + 1], points[3 * i + 2]};
        const double infinity = __builtin_huge_val();
        out[i] = static_cast<float>(
            navi::square_root(navi::nearest_squared(navi::box_tree(*all, scene[i]), p, infinity, false)));
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
