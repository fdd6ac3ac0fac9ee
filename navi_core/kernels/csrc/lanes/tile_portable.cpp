// For any CPU.
#include "lanes/portable.h"
#include "rays/tile.h"
#include "step/step.h"

namespace navi {

void cast_tiles_portable(const BoxTree& tree, const Rays& rays, const Layout& layout, int64_t row, int64_t first,
                         int64_t end) {
    cast_tiles<Lanes4, Lanes4>(tree, rays, layout, row, first, end);
}

const StepPath kStepPortable{step_begin, look<Lanes4, Lanes4>, step_finish, normalise<Lanes4>};

}  // namespace navi
