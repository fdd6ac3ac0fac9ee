// Compiled with AVX2 and FMA; called only where the CPU has both.
#include "lanes/avx2.h"
#include "rays/tile.h"
#include "step/step.h"

namespace navi {

void cast_tiles_avx2(const BoxTree& tree, const Rays& rays, const Layout& layout, int64_t row, int64_t first,
                     int64_t end) {
    cast_tiles<Lanes8, Lanes8>(tree, rays, layout, row, first, end);
}

const StepPath kStepAvx2{step_begin, look<Lanes8, Lanes8>, step_finish, normalise<Lanes8>};

}  // namespace navi
