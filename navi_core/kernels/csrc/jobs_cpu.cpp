// The jobs of the CUDA kernels in plain loops: the twin that checks them where there is no device.
#include "jobs.h"

extern "C" {

void navi_jobs_cast_surface(const navi::Surface* all, const navi::Scenes* scenes, const navi::Cast* cast) {
    for (int64_t row = 0; row < cast->rays.rows; ++row) {
        const navi::Task task = navi::task_of(*scenes, scenes->surface_row, cast->rays, row);
        navi::Row shared{};
        if (task.tree >= 0) shared = navi::row_of(navi::scene_view(*all, task.tree), cast->rays, row);
        for (int place = 0; place < cast->rays.rays; ++place) navi::cast_surface_job(task, shared, *cast, row, place);
    }
}

void navi_jobs_cast_octree(const navi::Octrees* all, const navi::Scenes* scenes, const navi::Cast* cast) {
    for (int64_t row = 0; row < cast->rays.rows; ++row) {
        const navi::Task task = navi::task_of(*scenes, scenes->octree_row, cast->rays, row);
        for (int place = 0; place < cast->rays.rays; ++place) navi::cast_octree_job(*all, task, *cast, row, place);
    }
}

void navi_jobs_distance(const navi::Hierarchies* all, const navi::Scenes* scenes, const navi::Points* ask) {
    for (int64_t i = 0; i < ask->count; ++i) navi::distance_job(*all, *scenes, *ask, i);
}

void navi_jobs_within(const navi::Hierarchies* all, const navi::Scenes* scenes, const navi::Points* ask) {
    for (int64_t i = 0; i < ask->count; ++i) navi::within_job(*all, *scenes, *ask, i);
}

}  // extern "C"
