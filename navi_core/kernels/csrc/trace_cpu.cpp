// The CPU library: blocks of rays over OpenMP threads, packets where the CPU has them. Called through ctypes.
#include <cstdint>

#if defined(_OPENMP)
#include <omp.h>
#endif

#include "packets.h"
#include "trace.h"

#if defined(NAVI_X86)
#define NAVI_PACKETS 1
#endif

namespace navi {

constexpr int64_t kBlock = 2048;      // rays of a job: long enough to keep the lanes full, short enough to share out
constexpr int64_t kFewestRays = 8;    // shorter rows do not fill the lanes
constexpr int kScalar = 1, kAvx2 = 8, kAvx512 = 16;

static int widest() {
#if defined(NAVI_PACKETS)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("fma"))
        return kAvx512;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return kAvx2;
#endif
    return kScalar;
}

// Packets begin at the origin itself, so it must lie in the cube.
static bool inside(const SceneView& s, const Rays& rays, int64_t row) {
    for (int a = 0; a < 3; ++a) {
        const double o = (rays.origins[3 * row + a] - s.lower[a]) / s.voxel;
        if (!(o >= 0.0 && o <= s.resolution)) return false;
    }
    return rays.max_distance > 0.0 && rays.rays >= kFewestRays;
}

static void cast_block(const SceneView& s, const Rays& rays, int64_t row, int64_t first, int64_t end, int lanes) {
#if defined(NAVI_PACKETS)
    if (lanes >= kAvx2 && inside(s, rays, row)) {
        if (lanes == kAvx512)
            cast_packet_avx512(s, rays, row, first, end);
        else
            cast_packet_avx2(s, rays, row, first, end);
        return;
    }
#endif
    const Row shared = row_of(s, rays, row);
    for (int64_t r = first; r < end; ++r) cast_surface_one<double>(shared, rays, row, r);
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

// Lanes of the widest packet path of this CPU: 16, 8, or 1.
int navi_lanes() {
    return navi::widest();
}

// `lanes`: 0 for the widest path, or 1, 8, 16; a path that the CPU lacks gives way to the widest it has.
void navi_cast_surface(const navi::Surface* surface, const navi::Rays* rays, int threads, int lanes) {
    const int best = navi::widest();
    const int width = lanes <= 0 || lanes > best ? best : lanes;
    const int64_t blocks = (rays->rays + navi::kBlock - 1) / navi::kBlock;
    navi::share_out(rays->rows * blocks, threads, rays->rays < 64 ? 64 : 1, [=](int64_t job) {
        const int64_t row = job / blocks, first = job % blocks * navi::kBlock;
        if (rays->scene[row] < 0) return;
        const navi::SceneView view = navi::scene_view(*surface, rays->scene[row]);
        navi::cast_block(view, *rays, row, first, navi::least(first + navi::kBlock, rays->rays), width);
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
        const float* p = points + 3 * i;
        const double infinity = __builtin_huge_val();
        out[i] = static_cast<float>(
            navi::square_root(navi::nearest_squared(*all, scene[i], p[0], p[1], p[2], infinity, false)));
    });
}

void navi_within(const navi::Hierarchies* all, const float* points, const int32_t* scene, int64_t count, double radius,
                 uint8_t* out, int threads) {
    navi::share_out(count, threads, 16, [=](int64_t i) {
        const float* p = points + 3 * i;
        const double limit = radius * radius;
        out[i] = navi::nearest_squared(*all, scene[i], p[0], p[1], p[2], limit, true) < limit;
    });
}

}  // extern "C"
