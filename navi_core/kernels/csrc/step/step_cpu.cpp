// The environment's step over OpenMP threads. Called through ctypes.
#include <cmath>
#include <cstdint>
#include <vector>

#include "step/lookahead.h"
#include "rays/schedule.h"
#include "step/steps.h"

namespace navi {

// The first row whose action is no number; `rows` where there is none.
static int64_t first_fault(const float* action, int64_t rows) {
    for (int64_t row = 0; row < rows; ++row)
        for (int axis = 0; axis < 4; ++axis)
            if (!std::isfinite(action[4 * row + axis])) return row;
    return rows;
}

}  // namespace navi

extern "C" {

// Fly one decision in every row. Returns how many episodes ended, or -1 - the first row whose action is no number;
// then nothing has moved. `most`: threads at most; `lanes` as in navi_cast.
int64_t navi_step(const navi::Step* step, int most, int lanes) {
    const navi::Step& s = *step;
    const int64_t fault = navi::first_fault(s.action, s.rows);
    if (fault < s.rows) return -1 - fault;
    const int width = navi::width_of(lanes);
    const navi::StepPath& path = navi::path_of(width);
    const int64_t rays = navi::rays_of(s.sensor);
    const int threads = navi::threads_for(s.rows * rays, most);
    const navi::Layout layout = navi::layout_of(rays, s.sensor.elevations, width);
    const size_t room = static_cast<size_t>(rays + s.sensor.azimuths);
    const auto look = [&](int64_t row, int64_t first, int64_t end, float* depth) {
        const navi::Stand from{s.scene[row], s.position + 3 * row, s.yaw[row]};
        path.look(s.scenes, s.sensor, layout, from, navi::channels(s, row, depth), first, end);
    };
    if (navi::rows_suffice(s.rows, threads)) {
        // What a row has seen is still at hand when it is read.
        navi::share_out(s.rows, threads, 1, [&](int64_t row) {
            static thread_local std::vector<float> depth;
            if (depth.size() < room) depth.resize(room);
            path.begin(s, row);
            look(row, 0, layout.count, depth.data());
            path.finish(s, row, depth.data());
        });
    } else {
        const int64_t blocks = (layout.count + navi::kBlock - 1) / navi::kBlock;
        std::vector<float> depth(room * static_cast<size_t>(s.rows));
        const auto of = [&](int64_t row) { return depth.data() + room * static_cast<size_t>(row); };
        navi::share_out(s.rows, threads, 1, [&](int64_t row) { path.begin(s, row); });
        navi::share_out(s.rows * blocks, threads, 1, [&](int64_t job) {
            const int64_t first = job % blocks * navi::kBlock;
            const int64_t end = navi::least(first + navi::kBlock, layout.count);
            look(job / blocks, first, end, of(job / blocks));
        });
        navi::share_out(s.rows, threads, 1, [&](int64_t row) { path.finish(s, row, of(row)); });
    }
    int64_t ended = 0;
    for (int64_t row = 0; row < s.rows; ++row) ended += s.truncated[row];
    return ended;
}

// Read panoramas from their hits, as a step does.
void navi_read_panoramas(const navi::Sensor* sensor, const navi::Panoramas* panoramas, int threads, int lanes) {
    const navi::Panoramas& p = *panoramas;
    const navi::StepPath& path = navi::path_of(navi::width_of(lanes));
    const int64_t rays = navi::rays_of(*sensor);
    navi::share_out(p.rows, threads, 1, [&](int64_t row) {
        float* obs = p.obs + 3 * row * rays;
        std::vector<float> depth(p.depth + row * rays, p.depth + (row + 1) * rays);
        const navi::Channels seen{obs, obs + rays, obs + 2 * rays, depth.data()};
        path.normalise(*sensor, seen.depth, seen.normalised);
        for (int64_t r = 0; r < rays; ++r) {
            seen.semantic[r] = static_cast<float>(p.semantic[row * rays + r]);
            seen.valid[r] = static_cast<float>(p.valid[row * rays + r]);
        }
        navi::fractions_of(*sensor, seen, p.band[row], p.fractions + 4 * row);
        p.front_distance[row] = navi::front_distance_of(*sensor, seen);
        navi::reach_of(*sensor, seen, p.reach + row * sensor->azimuths);
    });
}

// Fly one decision in every row, and nothing else.
void navi_fly(const navi::Hierarchies* all, const navi::Drone* drone, const navi::Flights* flights, int threads) {
    const navi::Flights& f = *flights;
    navi::share_out(f.rows, threads, 4, [&](int64_t row) {
        navi::fly(*drone, navi::box_tree(*all, f.scene[row]), f.action + 4 * row, f.front_distance[row], f.position + 3 * row,
                  f.yaw[row], f.velocity + 4 * row, f.collided[row], f.attempted[row]);
    });
}

// Fly every row to the end of its horizon.
void navi_fly_ahead(const navi::Hierarchies* all, const navi::Drone* drone, const navi::Flights* flights,
                  const navi::LookaheadFlight* held, int threads) {
    const navi::Flights& f = *flights;
    const size_t room = static_cast<size_t>(held->azimuths);
    navi::share_out(f.rows, threads, 4, [&](int64_t row) {
        static thread_local std::vector<float> nearest;
        if (nearest.size() < room) nearest.resize(room);
        navi::fly_ahead(*held, *drone, navi::box_tree(*all, f.scene[row]), f, row, nearest.data());
    });
}

// Count where drones are as visited, and what they see as seen.
void navi_remember(const navi::Lookahead* lookahead, const navi::Drones* drones, const navi::Observed* observed,
                   int threads) {
    const size_t room = static_cast<size_t>(lookahead->sensor.azimuths);
    navi::share_out(drones->count, threads, 4, [&](int64_t row) {
        static thread_local std::vector<float> reach;
        if (reach.size() < room) reach.resize(room);
        navi::remember(*lookahead, *drones, *observed, row, reach.data());
    });
}

// Fly every row to the end of its horizon, and write what that would bring. `terms`: (B, 10); `lanes` as above.
void navi_lookahead_terms(const navi::Lookahead* lookahead, const navi::Drone* body, const navi::Flights* flights,
                  const navi::LookaheadFlight* held, const navi::Drones* drones, float* terms, int threads, int lanes) {
    const int width = navi::width_of(lanes);
    const navi::Sensor& sensor = lookahead->sensor;
    const navi::Layout layout = navi::layout_of(navi::rays_of(sensor), sensor.elevations, width);
    navi::share_out(drones->count, threads, 4, [&](int64_t row) {
        static thread_local navi::Scratch room;
        navi::lookahead_terms(*lookahead, navi::path_of(width), layout, *body, *flights, *held, *drones, row, room,
                      terms + navi::kTerms * row);
    });
}

}  // extern "C"
