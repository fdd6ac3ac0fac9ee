"""Library of the C++ kernels: ctypes structures, build with the system's compiler on first use, cache, loading.

The structures are read from the headers in csrc, which are their only declaration. `layout_check` gives the C++ that
proves every offset when the library is built. The key of the cache is a hash of the sources, the compiler, the flags
and the CPU. The library holds a path for every kind of CPU and chooses at run time, so a cache on a shared disk never
gives a wrong one.
"""

from __future__ import annotations

import ctypes
import logging
import os
import platform
import re
import shlex
import shutil
from collections.abc import Sequence
from functools import cache, lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from navi_core.errors import ConfigError
from navi_core.kernels.native.compiler_cache import NO_CACHE, SOURCES, build_key, built, declare, run_compiler

if TYPE_CHECKING:
    import torch

_HEADERS = (
    "rays/views.h", "cuda/jobs.h", "cuda/gae.h", "step/dynamics.h", "step/panorama.h", "step/rewards.h",
    "step/steps.h", "step/lookahead.h",
)  # fmt: skip
_STRUCT = re.compile(r"^struct (\w+) \{\n(.*?)^\};", re.MULTILINE | re.DOTALL)
_FIELD = re.compile(r"^ *(?:const )?(\w+)(\*?) (\w+);", re.MULTILINE)
_TYPES: dict[str, Any] = {
    "double": ctypes.c_double,
    "int32_t": ctypes.c_int32,
    "int64_t": ctypes.c_int64,
    "uint64_t": ctypes.c_uint64,
}
_S = TypeVar("_S", bound=ctypes.Structure)
_NAMED: dict[str, type[ctypes.Structure]] = {}


@cache
def _declared() -> dict[str, str]:
    """Parse the C++ headers: the field declarations of each struct, by its name."""
    text = "".join((SOURCES / name).read_text() for name in _HEADERS)
    return dict(_STRUCT.findall(re.sub(r"//.*", "", text)))


def _from_header(struct: type[_S]) -> type[_S]:
    """Class decorator that fills a ctypes structure from the C++ struct of the same name in the namespace `navi`."""
    # C++ keywords have an underscore behind them.
    struct._fields_ = [
        (name.rstrip("_"), ctypes.c_void_p if pointer else _TYPES.get(kind) or _NAMED[kind])
        for kind, pointer, name in _FIELD.findall(_declared()[struct.__name__])
    ]
    _NAMED[struct.__name__] = struct
    return struct


@_from_header
class Surface(ctypes.Structure):
    """ctypes struct of the surface trees of all scenes, for CUDA."""


@_from_header
class Hierarchies(ctypes.Structure):
    """ctypes struct of the wide BVHs of all scenes."""


@_from_header
class Rays(ctypes.Structure):
    """ctypes struct of R rays from each of B origins, and their hits."""

    @classmethod
    def of(
        cls,
        origins: torch.Tensor,
        directions: torch.Tensor,
        scene: torch.Tensor,
        max_distance: float,
        depth: torch.Tensor,
        semantic: torch.Tensor,
        valid: torch.Tensor,
    ) -> Rays:
        """Build the struct from contiguous tensors, which must outlive its use."""
        shared = int(len(directions) == 1)
        return cls(
            origins.data_ptr(), directions.data_ptr(), scene.data_ptr(), *depth.shape, shared, max_distance,
            depth.data_ptr(), semantic.data_ptr(), valid.data_ptr(),
        )  # fmt: skip


@_from_header
class Cast(ctypes.Structure):
    """ctypes struct of a CUDA ray cast: the rays, and the tiles in which the threads take them."""


@_from_header
class Points(ctypes.Structure):
    """ctypes struct of query points for surface distance and clearance."""


@_from_header
class Advantages(ctypes.Structure):
    """ctypes struct of a rollout of T decisions in B rows, and their advantages."""


@_from_header
class Drone(ctypes.Structure):
    """ctypes struct of the drone's dynamics: limits, smoothing, substeps."""


@_from_header
class Flights(ctypes.Structure):
    """ctypes struct of B drones' states, actions and outcomes in one decision."""


@_from_header
class Sensor(ctypes.Structure):
    """ctypes struct of the spherical sensor: ray directions and bins of the panorama."""


@_from_header
class Floors(ctypes.Structure):
    """ctypes struct of the floor grids of all scenes."""


@_from_header
class Rewards(ctypes.Structure):
    """ctypes struct of the reward terms' weights and tables."""


@_from_header
class Scenes(ctypes.Structure):
    """ctypes struct of a field's scenes."""


@_from_header
class Step(ctypes.Structure):
    """ctypes struct of one environment step: state, inputs, outputs."""


@_from_header
class Panoramas(ctypes.Structure):
    """ctypes struct of B ray-cast panoramas (depth, semantic id, validity per ray) and features computed from them."""


@_from_header
class LookaheadFlight(ctypes.Structure):
    """ctypes struct of a simulated rollout: several decisions with one constant (held) action."""


@_from_header
class Lookahead(ctypes.Structure):
    """ctypes struct of the inputs of simulated rollouts: scenes, sensor, reward terms, coverage maps of N drones."""


@_from_header
class Drones(ctypes.Structure):
    """ctypes struct of B of the N drones: rows, scenes, poses."""


@_from_header
class Observed(ctypes.Structure):
    """ctypes struct of the drones' full observations."""


def layout_check() -> str:
    """Generate a C++ source that compiles only if every struct has the offsets and sizes of this module."""
    lines = ["#include <cstddef>", *(f'#include "{name}"' for name in _HEADERS)]
    for name, struct in _NAMED.items():
        lines.append(f'static_assert(sizeof(navi::{name}) == {ctypes.sizeof(struct)}, "{name}");')
        for _, _, field in _FIELD.findall(_declared()[name]):
            offset = getattr(struct, field.rstrip("_")).offset
            lines.append(f'static_assert(offsetof(navi::{name}, {field}) == {offset}, "{name}::{field}");')
    return "\n".join(lines) + "\n"


def data_pointer(tensor: torch.Tensor, dtype: torch.dtype) -> int:
    """Return the data pointer of a tensor for a field of a struct; the tensor must outlive its use.

    Raises:
        ConfigError: The kernels could not read it: another type, not contiguous, or not on the CPU.
    """
    if tensor.dtype != dtype or not tensor.is_contiguous() or tensor.device.type != "cpu":
        raise ConfigError(f"the kernels read contiguous {dtype} on the CPU, not {tensor.dtype} on {tensor.device}")
    return tensor.data_ptr()


LIBRARY = "libnavi_kernels.so"
"""File name of the built library."""
_FLAGS = ("-O3", "-std=c++17", "-fPIC", "-ffp-contract=off", "-fno-math-errno")
_UNITS = {
    "cpu/library.cpp": (),
    "lanes/tile_portable.cpp": (),
    "lanes/tile_avx2.cpp": ("-mavx2", "-mfma", "-mbmi", "-mbmi2", "-mpopcnt"),
    "lanes/tile_avx512.cpp": (
        *("-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl"),
        *("-mavx2", "-mfma", "-mbmi", "-mbmi2", "-mpopcnt"),
    ),
}
"""Translation units with their CPU requirements; the first one chooses among the others at run time."""

logger = logging.getLogger(__name__)


class NativeUnavailableError(ConfigError):
    """Exception for C++ kernels that cannot be built or loaded here; the message names the cause and the remedy."""


def find_compiler() -> list[str] | None:
    """Find the C++ compiler's command: $CXX, else g++, c++ or clang++; None where there is none.

    Raises:
        NativeUnavailableError: $CXX names a program that does not exist.
    """
    chosen = shlex.split(os.environ.get("CXX", ""))
    if chosen:
        if shutil.which(chosen[0]) is None:
            raise NativeUnavailableError(f"CXX={os.environ['CXX']!r} is not a program; unset it or name a C++ compiler")
        return chosen
    found = next((name for name in ("g++", "c++", "clang++") if shutil.which(name)), None)
    return [found] if found else None


def compile_library(
    compiler: Sequence[str],
    target: Path,
    extra: Sequence[str] = (),
    *,
    wide: bool = True,
    openmp: bool = True,
    sources: Path = SOURCES,
) -> None:
    """Compile and link the C++ kernels into a shared library.

    Args:
        compiler: Command of the C++ compiler.
        target: The library to write; objects go beside it and are removed.
        extra: Further flags for compiling and linking.
        wide: Include the AVX2 and AVX-512 paths (x86-64 only).
        openmp: Use OpenMP; without it every call runs on one thread.
        sources: Folder of the sources.

    Raises:
        NativeUnavailableError: The compiler fails, or a struct differs from `structs`; carries the end of its output.
    """
    parallel = ["-fopenmp"] if openmp else []
    objects = []
    include = f"-I{sources}"
    check = target.with_name("layout_check.cpp")
    check.write_text(layout_check())
    run_compiler([*compiler, "-std=c++17", "-fsyntax-only", include, str(check)], NativeUnavailableError)
    check.unlink()
    for unit, machine in _UNITS.items():
        if machine and not wide:
            continue
        output = target.with_name(f"{Path(unit).stem}.o")
        flags = [*_FLAGS, include, *parallel, *(["-DNAVI_X86"] if wide else []), *machine, *extra]
        run_compiler([*compiler, *flags, "-c", str(sources / unit), "-o", str(output)], NativeUnavailableError)
        objects.append(output)
    linked = [*parallel, *extra, *map(str, objects)]
    run_compiler([*compiler, "-shared", *linked, "-o", str(target)], NativeUnavailableError)
    for output in objects:
        output.unlink()


@lru_cache(maxsize=1)
def load_library() -> ctypes.CDLL:
    """Load the C++ kernel library; build it on a cache miss.

    Raises:
        NativeUnavailableError: There is no compiler, the build fails, or the cache cannot be written.
    """
    compiler = find_compiler()
    if compiler is None:
        raise NativeUnavailableError(
            "no C++ compiler found; install one (Debian, Ubuntu: apt install g++; Fedora: dnf install gcc-c++) "
            "or name it in CXX"
        )
    key, build = _key(compiler), partial(_build, compiler)
    try:
        try:
            return _declare(ctypes.CDLL(str(built(key, LIBRARY, build))))
        except OSError:
            # A damaged file, or one of another system on a shared disk: build it here once more.
            return _declare(ctypes.CDLL(str(built(key, LIBRARY, build, again=True))))
    except OSError as error:
        raise NativeUnavailableError(f"the C++ kernels cannot be cached: {error}; {NO_CACHE}") from None


def _build(compiler: Sequence[str], target: Path) -> None:
    x86 = platform.machine().lower() in ("x86_64", "amd64")
    # An old compiler may lack AVX-512, a plain clang may lack OpenMP: less speed, the same answers.
    attempts = [(x86, True), (False, True), (x86, False), (False, False)]
    for number, (wide, openmp) in enumerate(attempts):
        try:
            compile_library(compiler, target, wide=wide, openmp=openmp)
            break
        except NativeUnavailableError as error:
            if number == len(attempts) - 1:
                raise
            logger.debug("kernels with wide=%s, openmp=%s: %s", wide, openmp, error)
    if not openmp:
        logger.warning("%s has no OpenMP: rays are cast on one thread", compiler[0])


def _key(compiler: Sequence[str]) -> str:
    version = run_compiler([*compiler, "--version"], NativeUnavailableError)
    return build_key(SOURCES.glob("*/*"), *compiler, version, *_FLAGS, repr(_UNITS), platform.machine(), cpu_flags())


def cpu_flags() -> str:
    """Read the CPU's feature flags from /proc/cpuinfo, else the processor's name."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line for line in lines if line.startswith(("flags", "Features"))), "")


def _declare(library: ctypes.CDLL) -> ctypes.CDLL:
    pointer, integer, size, real = ctypes.c_void_p, ctypes.c_int, ctypes.c_int64, ctypes.c_double
    signatures = {
        "navi_cast": [pointer, pointer, pointer, integer, integer],
        "navi_distance": [pointer, pointer, pointer, size, pointer, integer],
        "navi_within": [pointer, pointer, pointer, size, real, pointer, integer],
        "navi_read_panoramas": [pointer, pointer, integer, integer],
        "navi_fly": [pointer, pointer, pointer, integer],
        "navi_fly_ahead": [*[pointer] * 4, integer],
        "navi_remember": [*[pointer] * 3, integer],
        "navi_lookahead_terms": [*[pointer] * 6, integer, integer],
        **{f"navi_jobs_{job}": [pointer] * 2 for job in ("cast", "distance", "within")},
        "navi_jobs_gae": [pointer],
    }
    declare(library, None, signatures)
    library.navi_lanes.argtypes, library.navi_lanes.restype = [], integer
    library.navi_step.argtypes, library.navi_step.restype = [pointer, integer, integer], size
    return library
