"""CUDA kernels: compiled for one GPU architecture by NVRTC, which torch brings along, else by nvcc; cached; launched.

No build needs a GPU, so that a machine without one can check that the kernels compile. They are loaded and launched
through the driver, which every machine with a GPU has.
"""

import ctypes
import importlib.util
import logging
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import torch

from navi_core.errors import ConfigError
from navi_core.kernels.native.compiler_cache import NO_CACHE, SOURCES, build_key, built, declare, run_compiler

SOURCE = SOURCES / "cuda" / "trace_cuda.cu"
"""The translation unit of the kernels."""
# No fused arithmetic: the CPU runs the same jobs to the same bits (csrc/cuda/jobs.h).
_FLAGS = ("--std=c++17", "--fmad=false")

logger = logging.getLogger(__name__)


class CudaUnavailableError(ConfigError):
    """Exception for CUDA kernels that cannot be built or loaded here; the message names the cause and the remedy."""


@dataclass(frozen=True)
class _Nvrtc:
    library: ctypes.CDLL
    version: str


def build_cubin(architecture: str, flags: Sequence[str] = ()) -> bytes:
    """Compile the CUDA kernels for an architecture and return the cubin (machine code), from the cache if present.

    Args:
        architecture: GPU architecture, as "sm_90".
        flags: Further flags that NVRTC and nvcc both know, as "-DNAME=1".

    Raises:
        CudaUnavailableError: There is neither NVRTC nor nvcc, or the kernels do not compile.
    """
    nvrtc, nvcc = find_nvrtc(), find_nvcc()
    if nvrtc is None and nvcc is None:
        raise CudaUnavailableError(
            "no compiler for CUDA kernels: torch's NVRTC (libnvrtc.so) was not found and nvcc is not on the PATH; "
            "install one with: pip install nvidia-cuda-nvrtc"
        )
    maker = f"nvrtc {nvrtc.version}" if nvrtc else run_compiler([str(nvcc), "--version"], CudaUnavailableError)
    key = build_key([SOURCE, *SOURCES.glob("*/*.h")], maker, architecture, *_all_flags(flags))

    def build(target: Path) -> None:
        try:
            target.write_bytes(nvrtc_cubin(architecture, flags))
        except CudaUnavailableError as error:
            if nvcc is None:
                raise
            logger.debug("NVRTC gives way to nvcc: %s", error)
            nvcc_cubin(nvcc, architecture, target, flags)

    try:
        return built(key, f"navi_{architecture}.cubin", build).read_bytes()
    except OSError as error:
        raise CudaUnavailableError(f"the CUDA kernels cannot be cached: {error}; {NO_CACHE}") from None


def nvrtc_cubin(architecture: str, flags: Sequence[str] = ()) -> bytes:
    """Compile the CUDA kernels with NVRTC and return the cubin; arguments and errors as `build_cubin`."""
    nvrtc = find_nvrtc()
    if nvrtc is None:
        raise CudaUnavailableError("libnvrtc.so was not found; install it with: pip install nvidia-cuda-nvrtc")
    library = nvrtc.library
    options = [f"--gpu-architecture={architecture}", f"--include-path={SOURCES}", *_all_flags(flags)]
    program = ctypes.c_void_p()
    source = ctypes.create_string_buffer(SOURCE.read_bytes())
    name = SOURCE.name.encode()
    _check(library, library.nvrtcCreateProgram(ctypes.byref(program), source, name, 0, None, None))
    try:
        code = library.nvrtcCompileProgram(
            program, len(options), (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
        )
        if code:
            log = _bytes(library, program, "ProgramLog").decode(errors="replace").strip("\0\n")
            raise CudaUnavailableError(f"NVRTC {nvrtc.version} failed for {architecture}:\n{log[-2000:]}")
        return _bytes(library, program, "CUBIN")
    finally:
        library.nvrtcDestroyProgram(ctypes.byref(program))


def nvcc_cubin(nvcc: str, architecture: str, target: Path, flags: Sequence[str] = ()) -> str:
    """Compile the CUDA kernels with nvcc to a cubin file; return the assembler's report of registers and spills.

    Args:
        nvcc: The program.
        architecture: As "sm_90".
        target: The file to write.
        flags: Further flags.

    Raises:
        CudaUnavailableError: nvcc fails; carries the end of its output.
    """
    command = [
        nvcc,
        "-cubin",
        f"-I{SOURCES}",
        f"--gpu-architecture={architecture}",
        *_all_flags(flags),
        "-Xptxas",
        "-v",
    ]
    return run_compiler([*command, "-o", str(target), str(SOURCE)], CudaUnavailableError)


def _all_flags(flags: Sequence[str]) -> list[str]:
    """Merge the default compiler flags with those given; "--fmad=true" replaces its opposite."""
    return [*(flag for flag in _FLAGS if f"{flag.partition('=')[0]}=true" not in flags), *flags]


def find_nvcc() -> str | None:
    """Find nvcc on the PATH or under $CUDA_HOME; None where there is none."""
    return shutil.which("nvcc") or shutil.which("nvcc", path=f"{_cuda_home()}/bin")


@lru_cache(maxsize=1)
def find_nvrtc() -> _Nvrtc | None:
    """Find and load NVRTC: torch's, else one among the packages or under $CUDA_HOME; None where there is none."""
    major = (torch.version.cuda or "").partition(".")[0]
    folders: list[Path] = []
    spec = importlib.util.find_spec("nvidia")
    for root in spec.submodule_search_locations or () if spec else ():
        folders += sorted(Path(root).glob("*/lib"), reverse=True)
    folders += [Path(torch.__file__).parent / "lib", Path(_cuda_home()) / "lib64"]
    found = [path for folder in folders for path in sorted(folder.glob(f"libnvrtc.so.{major}*"), reverse=True)]
    for name in [*map(str, found), f"libnvrtc.so.{major}"]:
        try:
            # NVRTC asks for its other half by name alone, which only finds what is loaded already.
            for half in Path(name).parent.glob("libnvrtc-builtins.so.*") if "/" in name else ():
                ctypes.CDLL(str(half))
            return _declare(ctypes.CDLL(name))
        except (OSError, AttributeError):
            continue
    return None


def _cuda_home() -> str:
    return os.environ.get("CUDA_HOME") or "/usr/local/cuda"


def _declare(library: ctypes.CDLL) -> _Nvrtc:
    pointer, text, number = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int
    signatures = {
        "nvrtcCreateProgram": [pointer, text, text, number, pointer, pointer],
        "nvrtcCompileProgram": [pointer, number, pointer],
        "nvrtcDestroyProgram": [pointer],
        "nvrtcGetProgramLogSize": [pointer, pointer],
        "nvrtcGetProgramLog": [pointer, pointer],
        "nvrtcGetCUBINSize": [pointer, pointer],
        "nvrtcGetCUBIN": [pointer, pointer],
        "nvrtcVersion": [pointer, pointer],
    }
    declare(library, number, signatures)
    library.nvrtcGetErrorString.argtypes, library.nvrtcGetErrorString.restype = [number], text
    major, minor = ctypes.c_int(), ctypes.c_int()
    _check(library, library.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor)))
    return _Nvrtc(library, f"{major.value}.{minor.value}")


def _bytes(library: ctypes.CDLL, program: ctypes.c_void_p, what: str) -> bytes:
    size = ctypes.c_size_t()
    _check(library, getattr(library, f"nvrtcGet{what}Size")(program, ctypes.byref(size)))
    buffer = ctypes.create_string_buffer(size.value)
    _check(library, getattr(library, f"nvrtcGet{what}")(program, buffer))
    return buffer.raw


def _check(library: ctypes.CDLL, code: int) -> None:
    if code:
        raise CudaUnavailableError(f"NVRTC: {library.nvrtcGetErrorString(code).decode()} (code {code})")


KERNELS = ("cast", "distance", "within", "gae")
"""Names of the kernels, `navi_` before each in the source."""
_SHARED, _LOCAL, _REGISTERS, _VERSION = 1, 3, 4, 6  # CUfunction_attribute


@dataclass(frozen=True)
class KernelResources:
    """GPU resources of one compiled kernel: registers, local and shared memory.

    Attributes:
        registers: Registers of a thread.
        local_bytes: Stack and spilled registers of a thread.
        shared_bytes: Shared memory of a block.
        architecture: Architecture of the machine code, 90 for sm_90.
    """

    registers: int
    local_bytes: int
    shared_bytes: int
    architecture: int


class CudaKernels:
    """CUDA module with the kernels, loaded on one device.

    Args:
        device: A CUDA device with its index.
        flags: Further flags of the build.

    Raises:
        CudaUnavailableError: The driver or a compiler is missing, or refuses.
    """

    def __init__(self, device: torch.device, flags: Sequence[str] = ()) -> None:
        torch.cuda.init()
        major, minor = torch.cuda.get_device_capability(device)
        image = build_cubin(f"sm_{major}{minor}", flags)
        try:
            self._driver = _declare_driver(ctypes.CDLL("libcuda.so.1"))
        except OSError as error:
            raise CudaUnavailableError(f"NVIDIA's driver library cannot be loaded: {error}; see nvidia-smi") from None
        number, self._context = ctypes.c_int(), ctypes.c_void_p()
        self._call("cuInit", 0)
        self._call("cuDeviceGet", ctypes.byref(number), device.index)
        # The context that torch works in; retained, so it outlives these kernels.
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(self._context), number)
        module = ctypes.c_void_p()
        self._functions: dict[str, ctypes.c_void_p] = {}
        self.resources: dict[str, KernelResources] = {}
        """GPU resources of each kernel, by name."""
        with self._current():
            self._call("cuModuleLoadData", ctypes.byref(module), image)
            for name in KERNELS:
                function = ctypes.c_void_p()
                self._call("cuModuleGetFunction", ctypes.byref(function), module, f"navi_{name}".encode())
                self._functions[name] = function
                # Asking also loads the kernel's code, which a stream that is being captured must not.
                values = [self._attribute(function, what) for what in (_REGISTERS, _LOCAL, _SHARED, _VERSION)]
                self.resources[name] = KernelResources(*values)

    def launch(self, name: str, blocks: int, threads: int, parameters: Sequence[ctypes.Structure], stream: int) -> None:
        """Launch a kernel asynchronously on a CUDA stream.

        Args:
            name: One of `KERNELS`.
            blocks: Blocks, at least 1.
            threads: Threads of a block.
            parameters: The kernel's structs, copied before this returns.
            stream: Handle of the CUDA stream.

        Raises:
            RuntimeError: The driver refuses, also with an error of an earlier kernel.
        """
        pointers = (ctypes.c_void_p * len(parameters))(*(ctypes.addressof(struct) for struct in parameters))
        with self._current():
            function = self._functions[name]
            self._call("cuLaunchKernel", function, blocks, 1, 1, threads, 1, 1, 0, stream, pointers, None)

    @contextmanager
    def _current(self) -> Iterator[None]:
        """Context manager that makes the device's CUDA context current on this thread."""
        self._call("cuCtxPushCurrent_v2", self._context)
        try:
            yield
        finally:
            self._call("cuCtxPopCurrent_v2", ctypes.byref(ctypes.c_void_p()))

    def _attribute(self, function: ctypes.c_void_p, what: int) -> int:
        value = ctypes.c_int()
        self._call("cuFuncGetAttribute", ctypes.byref(value), what, function)
        return value.value

    def _call(self, name: str, *arguments: object) -> None:
        code = getattr(self._driver, name)(*arguments)
        if code:
            text = ctypes.c_char_p()
            self._driver.cuGetErrorString(code, ctypes.byref(text))
            raise RuntimeError(f"{name}: {(text.value or b'unknown error').decode()} (CUDA error {code})")


def _declare_driver(driver: ctypes.CDLL) -> ctypes.CDLL:
    pointer, number, size, text = ctypes.c_void_p, ctypes.c_int, ctypes.c_uint, ctypes.c_char_p
    signatures = {
        "cuInit": [size],
        "cuDeviceGet": [pointer, number],
        "cuDevicePrimaryCtxRetain": [pointer, number],
        "cuCtxPushCurrent_v2": [pointer],
        "cuCtxPopCurrent_v2": [pointer],
        "cuModuleLoadData": [pointer, text],
        "cuModuleGetFunction": [pointer, pointer, text],
        "cuFuncGetAttribute": [pointer, number, pointer],
        "cuGetErrorString": [number, pointer],
        "cuLaunchKernel": [pointer, *[size] * 7, pointer, pointer, pointer],
    }
    declare(driver, number, signatures)
    return driver
