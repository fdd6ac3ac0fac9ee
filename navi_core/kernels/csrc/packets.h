// The packet tracers, one translation unit for each kind of CPU: rays [first, end) of row `row`, whose origin
// lies in the scene's cube.
#pragma once

#include "views.h"

namespace navi {

void cast_packet_avx512(const SceneView& scene, const Rays& rays, int64_t row, int64_t first, int64_t end);
void cast_packet_avx2(const SceneView& scene, const Rays& rays, int64_t row, int64_t first, int64_t end);

}  // namespace navi
