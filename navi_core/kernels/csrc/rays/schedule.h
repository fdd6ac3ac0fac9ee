// How calls are shared out: the widest path of the CPU, tiles of a panorama, rows or blocks of rows over threads.
#pragma once

#include <cstdint>

#if defined(_OPENMP)
#include <omp.h>
#endif

#include "step/steps.h"

namespace navi {

constexpr int64_t kBlock = 64;  // tiles of a job, where rows alone would not keep the threads busy
// Rays that are worth a thread more: on a busy machine fewer are cast before it is awake.
constexpr int64_t kWorth = 8192;
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

static Layout layout_of(int64_t rays, int64_t elevations, int lanes) {
    Layout layout{(rays + lanes - 1) / lanes, elevations, lanes, 1, nullptr};
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

// `lanes` as asked for: 0 for the widest path; one that the CPU lacks gives way to the widest it has.
static int width_of(int lanes) {
    const int best = widest();
    return lanes <= 0 || lanes > best ? best : lanes;
}

static const StepPath& path_of(int width) {
#if defined(NAVI_X86)
    if (width == kAvx512) return kStepAvx512;
    if (width == kAvx2) return kStepAvx2;
#endif
    return kStepPortable;
}

// Threads for so many rays, at most as many as are asked for.
static int threads_for(int64_t rays, int threads) {
    return static_cast<int>(least<int64_t>(threads, greatest<int64_t>(1, rays / kWorth)));
}

// A few rows are cut into blocks, many are not: what a job reads of its row is read once.
static bool rows_suffice(int64_t rows, int threads) {
    return threads <= 1 || rows >= 4 * threads;
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
