// For any CPU.
#include "lanes/portable.h"
#include "rays/bundle.h"
#include "step/step.h"

namespace navi {

const StepPath kStepPortable{cast_tiles<Lanes4, Lanes4>, step_begin, look<Lanes4, Lanes4>, step_finish, normalise<Lanes4>};

}  // namespace navi
