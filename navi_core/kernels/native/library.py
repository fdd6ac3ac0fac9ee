"""The C++ kernels: built with the system's compiler on first use, cached, loaded through ctypes.

The key of the cache is a hash of the sources, the compiler, the flags and the CPU. The library holds a path
for every kind of CPU and chooses at run time, so a cache on a shared disk never gives a wrong one.
"""

import ctypes
import logging
import os
import platform
import shlex
import shutil
from collections.abc import Sequence
from functools import lru_cache, partial
from pathlib import Path

from navi_core.errors import ConfigError
from navi_core.kernels.native.compiler_cache import NO_CACHE, SOURCES, build_key, built, declare, run_compiler
from navi_core.kernels.structs import layout_check

LIBRARY = "libnavi_kernels.so"
"""File name of the built library."""
_FLAGS = ("-O3", "-std=c++17", "-fPIC", "-ffp-contract=off", "-fno-math-errno")
_UNITS = {
    "rays/trace_cpu.cpp": (),
    "step/step_cpu.cpp": (),
    "cuda/jobs_cpu.cpp": (),
    "lanes/tile_portable.cpp": (),
    "lanes/tile_avx2.cpp": ("-mavx2", "-mfma", "-mbmi", "-mbmi2", "-mpopcnt"),
    "lanes/tile_avx512.cpp": (
        *("-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl"),
        *("-mavx2", "-mfma", "-mbmi", "-mbmi2", "-mpopcnt"),
    ),
}
"""Translation units and what each may assume of the CPU; the first one chooses among the others."""

logger = logging.getLogger(__name__)


class NativeUnavailableError(ConfigError):
    """The C++ kernels cannot be built or loaded on this machine; the message names the cause and what to install."""


def find_compiler() -> list[str] | None:
    """Return the command of the C++ compiler: $CXX, else g++, c++ or clang++; None where there is none.

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
    """Compile and link the kernels.

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
    """Return the library of the kernels, built if the cache has none.

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
    """Return the CPU's feature flags as the kernel lists them; empty where it does not."""
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
    }
    declare(library, None, signatures)
    library.navi_lanes.argtypes, library.navi_lanes.restype = [], integer
    library.navi_step.argtypes, library.navi_step.restype = [pointer, integer, integer], size
    return library
