// Compiled with AVX-512 and AVX2; called only where the CPU has both.
#include "lanes/avx2.h"
#include "lanes/avx512.h"
#include "rays/tile.h"
#include "step/step.h"

namespace navi {

void cast_tiles_avx512(const BoxTree& tree, const Rays& rays, const Layout& layout, int64_t row, int64_t first,
                       int64_t end) {
    cast_tiles<Lanes16, Lanes8>(tree, rays, layout, row, first, end);
}

const StepPath kStepAvx512{step_begin, look<Lanes16, Lanes8>, step_finish, normalise<Lanes16>};

}  // namespace navi
