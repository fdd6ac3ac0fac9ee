// Compiled with AVX-512 and AVX2; called only where the CPU has both.
#include "lanes/avx2.h"
#include "lanes/avx512.h"
#include "rays/bundle.h"
#include "step/step.h"

namespace navi {

const StepPath kStepAvx512{cast_tiles<Lanes16, Lanes8>, step_begin, look<Lanes16, Lanes8>, step_finish, normalise<Lanes16>};

}  // namespace navi
