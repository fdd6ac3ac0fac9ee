// Compiled with AVX-512 F, BW, DQ and VL and FMA; called only where the CPU has them.
#include "lanes_avx512.h"

#define NAVI_REFILL 6  // idle lanes of a group that are worth a refill; measured
#include "packet.h"
#include "packets.h"

namespace navi {

void cast_packet_avx512(const SceneView& scene, const Rays& rays, int64_t row, int64_t first, int64_t end) {
    Packet(scene, rays, row, first, end).run();
}

}  // namespace navi
