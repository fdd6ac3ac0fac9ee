// Compiled with AVX2 and FMA; called only where the CPU has both.
#include "lanes/avx2.h"
#include "rays/bundle.h"
#include "step/step.h"

namespace navi {

const StepPath kStepAvx2{cast_tiles<Lanes8, Lanes8>, step_begin, look<Lanes8, Lanes8>, step_finish, normalise<Lanes8>};

}  // namespace navi
