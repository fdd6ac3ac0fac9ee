// The kernels for CUDA: one thread for each ray, the same function as the CPU's with a walk in float.
#include <cuda_runtime.h>

#include "trace.h"

namespace navi {

constexpr int kThreads = 128;

__global__ void cast_surface_kernel(Surface surface, Rays rays) {
    const int64_t job = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (job >= rays.rows * rays.rays) return;
    const int64_t row = job / rays.rays;
    const int scene = rays.scene[row];
    if (scene < 0) return;
    cast_surface_one<float>(scene_view(surface, scene), rays, row, job % rays.rays);
}

__global__ void cast_octree_kernel(Octrees octrees, Rays rays) {
    const int64_t job = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (job >= rays.rows * rays.rays) return;
    const int64_t row = job / rays.rays;
    const int scene = rays.scene[row];
    if (scene >= 0) cast_octree_one(octrees, rays, scene, row, job % rays.rays);
}

__global__ void distance_kernel(Hierarchies all, const float* points, const int32_t* scene, int64_t count, float* out) {
    const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i >= count) return;
    const float* p = points + 3 * i;
    out[i] = static_cast<float>(square_root(nearest_squared(all, scene[i], p[0], p[1], p[2], 1e300, false)));
}

__global__ void within_kernel(Hierarchies all, const float* points, const int32_t* scene, int64_t count, double radius,
                              uint8_t* out) {
    const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i >= count) return;
    const float* p = points + 3 * i;
    const double limit = radius * radius;
    out[i] = nearest_squared(all, scene[i], p[0], p[1], p[2], limit, true) < limit;
}

static unsigned blocks_for(int64_t jobs) {
    return static_cast<unsigned>((jobs + kThreads - 1) / kThreads);
}

}  // namespace navi

// All pointers within the structs are device memory; the structs themselves are read on the host. Each returns the
// launch's cudaError_t and does not wait for the stream.
extern "C" {

int navi_cuda_cast_surface(const navi::Surface* surface, const navi::Rays* rays, void* stream) {
    const int64_t jobs = rays->rows * rays->rays;
    if (jobs == 0) return 0;
    navi::cast_surface_kernel<<<navi::blocks_for(jobs), navi::kThreads, 0, static_cast<cudaStream_t>(stream)>>>(*surface,
                                                                                                             *rays);
    return static_cast<int>(cudaGetLastError());
}

int navi_cuda_cast_octree(const navi::Octrees* octrees, const navi::Rays* rays, void* stream) {
    const int64_t jobs = rays->rows * rays->rays;
    if (jobs == 0) return 0;
    navi::cast_octree_kernel<<<navi::blocks_for(jobs), navi::kThreads, 0, static_cast<cudaStream_t>(stream)>>>(*octrees,
                                                                                                            *rays);
    return static_cast<int>(cudaGetLastError());
}

int navi_cuda_distance(const navi::Hierarchies* all, const float* points, const int32_t* scene, int64_t count,
                       float* out, void* stream) {
    if (count == 0) return 0;
    navi::distance_kernel<<<navi::blocks_for(count), navi::kThreads, 0, static_cast<cudaStream_t>(stream)>>>(
        *all, points, scene, count, out);
    return static_cast<int>(cudaGetLastError());
}

int navi_cuda_within(const navi::Hierarchies* all, const float* points, const int32_t* scene, int64_t count,
                     double radius, uint8_t* out, void* stream) {
    if (count == 0) return 0;
    navi::within_kernel<<<navi::blocks_for(count), navi::kThreads, 0, static_cast<cudaStream_t>(stream)>>>(
        *all, points, scene, count, radius, out);
    return static_cast<int>(cudaGetLastError());
}

}  // extern "C"
