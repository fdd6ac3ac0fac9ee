// The CPU library, called through ctypes: casts and steps over OpenMP threads, as wide as the CPU allows, and the jobs of
// the CUDA kernels in plain loops, the twin that checks them where there is no device.
#include <cmath>
#include <cstdint>
#include <vector>

#if defined(_OPENMP)
#include <omp.h>
#endif

#include "cpu/plan.h"
#include "cuda/gae.h"
#include "cuda/jobs.h"
#include "step/lookahead.h"
#include "step/steps.h"

namespace navi {

constexpr int64_t kBlock = 1024;  // rays of a job, where rows alone would not keep the threads busy
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

// The layout of directions that many rows share; valid until this thread asks for that of others.
static Layout layout_of(const float* directions, int64_t rays, int lanes) {
    static thread_local Plan plan;
    plan.take(directions, rays, lanes);
    return plan.layout();
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

// The first row whose action is no number; `rows` where there is none.
static int64_t first_fault(const float* action, int64_t rows) {
    for (int64_t row = 0; row < rows; ++row)
        for (int axis = 0; axis < 4; ++axis)
            if (!std::isfinite(action[4 * row + axis])) return row;
    return rows;
}

}  // namespace navi

using namespace navi;

extern "C" {

// Lanes of the widest path of this CPU: 16, 8, or 4.
int navi_lanes() {
    return widest();
}

// `turns`: (B, 2) cosine and sine of the yaw by which each row's directions are turned; null: as they are.
// `lanes`: 0 for the widest path, or 4, 8, 16; a path that the CPU lacks gives way to the widest it has.
void navi_cast(const Hierarchies* all, const Rays* rays, const float* turns, int most_threads,
                       int lanes) {
    const int width = width_of(lanes);
    if (rays->rows == 0 || rays->rays == 0) return;
    const int threads = threads_for(rays->rows * rays->rays, most_threads);
    const Layout shared = rays->shared ? layout_of(rays->directions, rays->rays, width) : Layout{};
    const int64_t block = kBlock / (width * width);
    const int64_t most = rays->shared ? shared.bundles : (rays->rays + width * width - 1) / (width * width);
    const int64_t blocks = rows_suffice(rays->rows, threads) ? 1 : (most + block - 1) / block;
    share_out(rays->rows * blocks, threads, rays->rays < 64 ? 64 : 1, [&](int64_t job) {
        // The last block takes what is left, however the row is laid out.
        const int64_t row = job / blocks, begin = job % blocks * block;
        const int64_t end = job % blocks == blocks - 1 ? INT64_MAX : begin + block;
        if (rays->scene[row] < 0) return;
        Layout layout = shared;
        if (!rays->shared) {
            static thread_local Plan plan;
            plan.take(rays->directions + 3 * row * rays->rays, rays->rays, width, begin, end);
            layout = plan.layout();
        }
        if (turns) layout.turn = turns + 2 * row;
        const int64_t from = rays->shared ? begin : 0, to = rays->shared ? least(end, layout.bundles) : layout.bundles;
        path_of(width).cast(box_tree(*all, rays->scene[row]), *rays, layout, row, from, to);
    });
}

void navi_distance(const Hierarchies* all, const float* points, const int32_t* scene, int64_t count, float* out,
                   int threads) {
    share_out(count, threads, 16, [=](int64_t i) {
        out[i] = static_cast<float>(distance_to(box_tree(*all, scene[i]), points + 3 * i));
    });
}

void navi_within(const Hierarchies* all, const float* points, const int32_t* scene, int64_t count, double radius,
                 uint8_t* out, int threads) {
    share_out(count, threads, 16, [=](int64_t i) {
        const double p[3] = {points[3 * i], points[3 * i + 1], points[3 * i + 2]};
        const double limit = radius * radius;
        out[i] = nearest_squared(box_tree(*all, scene[i]), p, limit, true) < limit;
    });
}

// Fly one decision in every row. Returns how many episodes ended, or -1 - the first row whose action is no number;
// then nothing has moved. `most`: threads at most; `lanes` as in navi_cast.
int64_t navi_step(const Step* step, int most, int lanes) {
    const Step& s = *step;
    const int64_t fault = first_fault(s.action, s.rows);
    if (fault < s.rows) return -1 - fault;
    const int width = width_of(lanes);
    const StepPath& path = path_of(width);
    const int64_t rays = rays_of(s.sensor);
    const int threads = threads_for(s.rows * rays, most);
    const Layout layout = layout_of(s.sensor.directions, rays, width);
    const size_t room = static_cast<size_t>(rays + s.sensor.azimuths);
    const auto look = [&](int64_t row, int64_t first, int64_t end, float* depth) {
        const Stand from{s.scene[row], s.position + 3 * row, s.yaw[row]};
        path.look(s.scenes, s.sensor, layout, from, channels(s, row, depth), first, end);
    };
    if (rows_suffice(s.rows, threads)) {
        // What a row has seen is still at hand when it is read.
        share_out(s.rows, threads, 1, [&](int64_t row) {
            static thread_local std::vector<float> depth;
            if (depth.size() < room) depth.resize(room);
            path.begin(s, row);
            look(row, 0, layout.bundles, depth.data());
            path.finish(s, row, depth.data());
        });
    } else {
        const int64_t block = kBlock / (width * width), blocks = (layout.bundles + block - 1) / block;
        std::vector<float> depth(room * static_cast<size_t>(s.rows));
        const auto of = [&](int64_t row) { return depth.data() + room * static_cast<size_t>(row); };
        share_out(s.rows, threads, 1, [&](int64_t row) { path.begin(s, row); });
        share_out(s.rows * blocks, threads, 1, [&](int64_t job) {
            const int64_t first = job % blocks * block;
            const int64_t end = least(first + block, layout.bundles);
            look(job / blocks, first, end, of(job / blocks));
        });
        share_out(s.rows, threads, 1, [&](int64_t row) { path.finish(s, row, of(row)); });
    }
    int64_t ended = 0;
    for (int64_t row = 0; row < s.rows; ++row) ended += s.truncated[row];
    return ended;
}

// Read panoramas from their hits, as a step does.
void navi_read_panoramas(const Sensor* sensor, const Panoramas* panoramas, int threads, int lanes) {
    const Panoramas& p = *panoramas;
    const StepPath& path = path_of(width_of(lanes));
    const int64_t rays = rays_of(*sensor);
    share_out(p.rows, threads, 1, [&](int64_t row) {
        float* obs = p.obs + 3 * row * rays;
        std::vector<float> depth(p.depth + row * rays, p.depth + (row + 1) * rays);
        const Channels seen{obs, obs + rays, obs + 2 * rays, depth.data()};
        path.normalise(*sensor, seen.depth, seen.normalised);
        for (int64_t r = 0; r < rays; ++r) {
            seen.semantic[r] = static_cast<float>(p.semantic[row * rays + r]);
            seen.valid[r] = static_cast<float>(p.valid[row * rays + r]);
        }
        fractions_of(*sensor, seen, p.band[row], p.fractions + 4 * row);
        p.front_distance[row] = front_distance_of(*sensor, seen);
        reach_of(*sensor, seen, p.reach + row * sensor->azimuths);
    });
}

// Fly one decision in every row, and nothing else.
void navi_fly(const Hierarchies* all, const Drone* drone, const Flights* flights, int threads) {
    const Flights& f = *flights;
    share_out(f.rows, threads, 4, [&](int64_t row) {
        Drone own;
        float limits[4];
        fly(drone_of(*drone, f.bodies, row, f.scene[row], own, limits), box_tree(*all, f.scene[row]), f.action + 4 * row,
            f.front_distance[row], f.position + 3 * row, f.yaw[row], f.velocity + 4 * row, f.collided[row],
            f.attempted[row]);
    });
}

// Fly every row to the end of its horizon.
void navi_fly_ahead(const Hierarchies* all, const Drone* drone, const Flights* flights,
                  const LookaheadFlight* held, int threads) {
    const Flights& f = *flights;
    const size_t room = static_cast<size_t>(held->azimuths);
    share_out(f.rows, threads, 4, [&](int64_t row) {
        static thread_local std::vector<float> nearest;
        if (nearest.size() < room) nearest.resize(room);
        fly_ahead(*held, *drone, box_tree(*all, f.scene[row]), f, row, nearest.data());
    });
}

// Count where drones are as visited, and what they see as seen.
void navi_remember(const Lookahead* lookahead, const Drones* drones, const Observed* observed,
                   int threads) {
    const size_t room = static_cast<size_t>(lookahead->sensor.azimuths);
    share_out(drones->count, threads, 4, [&](int64_t row) {
        static thread_local std::vector<float> reach;
        if (reach.size() < room) reach.resize(room);
        remember(*lookahead, *drones, *observed, row, reach.data());
    });
}

// Fly every row to the end of its horizon, and write what that would bring. `terms`: (B, 10); `lanes` as above.
void navi_lookahead_terms(const Lookahead* lookahead, const Drone* body, const Flights* flights,
                  const LookaheadFlight* held, const Drones* drones, float* terms, int threads, int lanes) {
    const int width = width_of(lanes);
    const Sensor& sensor = lookahead->sensor;
    const Layout layout = layout_of(sensor.directions, rays_of(sensor), width);
    share_out(drones->count, threads, 4, [&](int64_t row) {
        static thread_local Scratch room;
        lookahead_terms(*lookahead, path_of(width), layout, *body, *flights, *held, *drones, row, room,
                      terms + kTerms * row);
    });
}

void navi_jobs_cast(const Surface* all, const Cast* cast) {
    for (int64_t row = 0; row < cast->rays.rows; ++row) {
        const int scene = scene_of(*cast, row);
        Row shared{};
        if (scene >= 0) shared = row_of(scene_view(*all, scene), cast->rays, row);
        for (int place = 0; place < cast->rays.rays; ++place) cast_job(scene, shared, *cast, row, place);
    }
}

void navi_jobs_distance(const Hierarchies* all, const Points* ask) {
    for (int64_t i = 0; i < ask->count; ++i) distance_job(*all, *ask, i);
}

void navi_jobs_within(const Hierarchies* all, const Points* ask) {
    for (int64_t i = 0; i < ask->count; ++i) within_job(*all, *ask, i);
}

void navi_jobs_gae(const Advantages* rollout) {
    constexpr int rows = 256;  // their sums fit the nearest cache
    for (int64_t job = 0; job * rows < rollout->rows; ++job) gae_job<rows>(*rollout, job);
}

}  // extern "C"
