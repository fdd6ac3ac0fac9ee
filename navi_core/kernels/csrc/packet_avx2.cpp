// Compiled with AVX2 and FMA; called only where the CPU has both.
#include "lanes_avx2.h"

#define NAVI_REFILL 3  // idle lanes of a group that are worth a refill; measured
#include "packet.h"
#include "packets.h"

namespace navi {

void cast_packet_avx2(const SceneView& scene, const Rays& rays, int64_t row, int64_t first, int64_t end) {
    Packet(scene, rays, row, first, end).run();
}

}  // namespace navi
