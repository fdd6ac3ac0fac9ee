// The kernels for CUDA, for NVRTC and nvcc alike: a thread for each job of jobs.h. Blocks lie in one dimension, so
// many to a row of rays. Launched through the driver; the structs are passed by value and hold device memory.
#include "cuda/gae.h"
#include "cuda/jobs.h"

constexpr int kThreads = 128;  // threads of a block at most; kernels/rays/cuda.py launches no more
#if !defined(NAVI_BLOCKS)
#define NAVI_BLOCKS 8
#endif

extern "C" {

// What a row's rays share lies in shared memory: registers are what limits the rays in flight.
__global__ void __launch_bounds__(kThreads, NAVI_BLOCKS) navi_cast(navi::Surface all, navi::Cast cast) {
    __shared__ navi::Row shared;
    __shared__ int scene;
    const unsigned blocks = (static_cast<unsigned>(cast.rays.rays) + blockDim.x - 1) / blockDim.x;
    const unsigned row = blockIdx.x / blocks, first = blockIdx.x % blocks * blockDim.x;
    if (threadIdx.x == 0) {
        scene = navi::scene_of(cast, row);
        if (scene >= 0) shared = navi::row_of(navi::scene_view(all, scene), cast.rays, row);
    }
    __syncthreads();
    navi::cast_job(scene, shared, cast, row, static_cast<int>(first + threadIdx.x));
}

__global__ void __launch_bounds__(kThreads) navi_distance(navi::Hierarchies all, navi::Points ask) {
    navi::distance_job(all, ask, static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x);
}

__global__ void __launch_bounds__(kThreads) navi_within(navi::Hierarchies all, navi::Points ask) {
    navi::within_job(all, ask, static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x);
}

__global__ void __launch_bounds__(kThreads) navi_gae(navi::Advantages rollout) {
    navi::gae_job<1>(rollout, static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x);
}

}  // extern "C"
