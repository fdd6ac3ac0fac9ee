// What the tile tracers share, of which each kind of CPU has its own translation unit.
#pragma once

#include "rays/views.h"

namespace navi {

constexpr int kRootHalf = 0x3F3504F3;  // bits of the root of 1/2

// Neighbouring rays of one row: all of a panorama in tiles of azimuths and elevations, or any rays in their order.
struct Layout {
    int64_t count;       // tiles of a row
    int64_t elevations;  // rays of an azimuth; 0 where the rays lie on no such grid
    int wide, high;      // azimuths and elevations of a tile; wide * high lanes
    const float* turn;   // cosine and sine of the yaw by which the directions are turned; null: as they are
};

}  // namespace navi
