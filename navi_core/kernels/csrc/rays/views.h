// The packed arrays of a field as the kernels see them, and the constants that all tracers share.
#pragma once

#if defined(__CUDACC_RTC__)
// NVRTC comes without a standard library.
using int32_t = int;
using uint32_t = unsigned;
using int64_t = long long;
using uint64_t = unsigned long long;
using uint8_t = unsigned char;
#else
#include <cstdint>
#endif

// `static`: translation units are compiled for different CPUs, so no inline function may be shared by the linker.
#if defined(__CUDACC__)
#define NAVI_INLINE static __host__ __device__ __forceinline__
#else
#define NAVI_INLINE static inline
#endif

namespace navi {

constexpr int kSplit = 4;                // subcells of a split cell along an edge
constexpr int kFine = kSplit * kSplit;   // finest subcells of a coarse cell along an edge
static_assert(kFine == 16, "cells are addressed by shifts of 4 and 2 bits");
constexpr double kEdgeDilation = 1e-3;   // widening of a triangle in its plane [voxel]: shared edges cannot leak
constexpr double kBefore = 0.02;         // a hit this far before the cell's entry is accepted [voxel]
constexpr double kAfter = 0.01;          // a hit this far behind the cell's exit is accepted at once [voxel]
constexpr double kTie = 1e-3;            // faces closer together are coincident: the lowest index wins [voxel]
constexpr double kFlat = 1e-20;          // a direction component below this never leaves its cell
constexpr double kHuge = 1e30;

// The word of an empty cell holds the edge of the largest empty cube for each octant, a byte each, never 0. That
// of a surface cell has a zero in its highest byte, the count of its list below (24 bits, kSplitWord where the cell
// is split), and the start of the list or of the subcells' records in its lower half.
constexpr uint32_t kSplitWord = 0xFFFFFF;

// Surface trees of all scenes, one after the other; layout as `Field` packs them.
struct Surface {
    const uint64_t* words;    // (sum G^3) one word a coarse cell, see below
    const int32_t* records;   // (N, 2) start, count
    const int32_t* items;     // (M + 16) triangles of the lists
    const float* planes;      // (F, 16) plane and three edge planes [voxel]
    const int32_t* semantic;  // (F)
    const int64_t* bases;     // (S, 4) first cell, record, item, triangle
    const double* frame;      // (S, 4) minimum corner and voxel size [m]
    const int32_t* cells;     // (S, 2) coarse cells per edge, resolution
};

constexpr int kWide = 8;         // children of a node, triangles of a group
constexpr int kTreeStack = 192;  // boxes that wait in a walk; the build keeps to it
constexpr int32_t kNobody = -2147483647 - 1;

// Wide hierarchies of all scenes, one after the other: bvh_build.py.
struct Hierarchies {
    const float* planes;      // (N, 6, 8) lower x y z, upper x y z of each child [m]; a child that is not there is void
    const int32_t* child;     // (N, 8) node, -1 - group at a leaf, or kNobody
    const float* corners;     // (L, 9, 8) ax ay az bx by bz cx cy cz [m]
    const int32_t* ids;       // (L, 8) triangle; -1 - triangle for a sliver, which no ray meets; kNobody behind the last
    const int32_t* semantic;  // (F)
    const int64_t* bases;     // (S, 3) first node, group, triangle
    const float* limits;      // (S, 2) tie and slack [m]
};

// One scene of them.
struct BoxTree {
    const float* planes;
    const int32_t* child;
    const float* corners;
    const int32_t* ids;
    const int32_t* semantic;
    float tie;    // faces closer together are coincident: the lowest triangle wins [m]
    float slack;  // widening of a triangle: a few units in the last place of the scene's coordinates [m]
};

NAVI_INLINE BoxTree box_tree(const Hierarchies& all, int scene) {
    const int64_t* base = all.bases + 3 * static_cast<int64_t>(scene);
    return BoxTree{all.planes + 6 * kWide * base[0],
                   all.child + kWide * base[0],
                   all.corners + 9 * kWide * base[1],
                   all.ids + kWide * base[1],
                   all.semantic + base[2],
                   all.limits[2 * scene],
                   all.limits[2 * scene + 1]};
}

// R rays from each of B origins, and where the answers go.
struct Rays {
    const float* origins;     // (B, 3) [m]
    const float* directions;  // (B or 1, R, 3)
    const int32_t* scene;     // (B), -1 skips the row
    int64_t rows;
    int64_t rays;
    int64_t shared;           // 1: one set of directions for all rows
    double max_distance;      // [m]
    float* depth;             // (B, R) [m]
    int32_t* label;           // (B, R)
    uint8_t* valid;           // (B, R)
};

struct Hit {
    double t;      // [voxel]
    int triangle;  // within the scene; -1 at a miss
};

// One scene of a Surface.
struct SceneView {
    const uint64_t* words;
    const int32_t* records;
    const int32_t* items;
    const float* planes;
    const int32_t* semantic;
    int cells;
    int resolution;
    double lower[3];
    double voxel;
};

NAVI_INLINE SceneView scene_view(const Surface& all, int scene) {
    const int64_t* base = all.bases + 4 * static_cast<int64_t>(scene);
    const double* frame = all.frame + 4 * static_cast<int64_t>(scene);
    return SceneView{all.words + base[0],
                     all.records + 2 * base[1],
                     all.items + base[2],
                     all.planes + 16 * base[3],
                     all.semantic + base[3],
                     all.cells[2 * scene],
                     all.cells[2 * scene + 1],
                     {frame[0], frame[1], frame[2]},
                     frame[3]};
}

// Load what no kernel writes: on CUDA through the read-only cache.
template <typename T>
NAVI_INLINE T read(const T* p) {
#if defined(__CUDA_ARCH__)
    return __ldg(p);
#else
    return *p;
#endif
}

// Load four floats at a multiple of 16 bytes, in one access on CUDA.
NAVI_INLINE void read4(const float* p, float out[4]) {
#if defined(__CUDA_ARCH__)
    const float4 v = __ldg(reinterpret_cast<const float4*>(p));
    out[0] = v.x, out[1] = v.y, out[2] = v.z, out[3] = v.w;
#else
    for (int i = 0; i < 4; ++i) out[i] = p[i];
#endif
}

template <typename T>
NAVI_INLINE T least(T a, T b) {
    return a < b ? a : b;
}

template <typename T>
NAVI_INLINE T greatest(T a, T b) {
    return a > b ? a : b;
}

constexpr int kRootHalf = 0x3F3504F3;  // bits of the root of 1/2

// The rays of a row in bundles of tiles of neighbouring rays, see cpu/plan.h: W tiles a bundle, W rays a tile.
struct Layout {
    int64_t bundles;
    const int32_t* tiles;  // (bundles + 1) first tile of each bundle
    const int32_t* ray;    // (T, W) within the row
    const float* slopes;   // (T, 3, W) directions
    const float* turn;     // cosine and sine of the yaw by which the directions are turned; null: as they are
    int run;               // so many neighbouring lanes always lie in a row in memory: 4, 2 or 1
    int64_t next;          // rays from a tile to the one beside it
};

}  // namespace navi
