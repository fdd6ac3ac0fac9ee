// The jobs of the CUDA kernels in plain loops: the twin that checks them where there is no device.
#include "cuda/jobs.h"

extern "C" {

void navi_jobs_cast(const navi::Surface* all, const navi::Cast* cast) {
    for (int64_t row = 0; row < cast->rays.rows; ++row) {
        const int scene = navi::scene_of(*cast, row);
        navi::Row shared{};
        if (scene >= 0) shared = navi::row_of(navi::scene_view(*all, scene), cast->rays, row);
        for (int place = 0; place < cast->rays.rays; ++place) navi::cast_job(scene, shared, *cast, row, place);
    }
}

void navi_jobs_distance(const navi::Hierarchies* all, const navi::Points* ask) {
    for (int64_t i = 0; i < ask->count; ++i) navi::distance_job(*all, *ask, i);
}

void navi_jobs_within(const navi::Hierarchies* all, const navi::Points* ask) {
    for (int64_t i = 0; i < ask->count; ++i) navi::within_job(*all, *ask, i);
}

}  // extern "C"
