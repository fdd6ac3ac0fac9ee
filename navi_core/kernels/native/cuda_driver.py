"""Loads and launches the CUDA kernels through the driver, which every machine with a GPU has."""

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from navi_core.kernels.native.cuda_build import CudaUnavailableError, build_cubin

KERNELS = ("cast", "distance", "within")
"""Names of the kernels, `navi_` before each in the source."""
_SHARED, _LOCAL, _REGISTERS, _VERSION = 1, 3, 4, 6  # CUfunction_attribute


@dataclass(frozen=True)
class KernelResources:
    """What a kernel takes of the GPU.

    Attributes:
        registers: Of a thread.
        local_bytes: Stack and spilled registers of a thread.
        shared_bytes: Of a block.
        architecture: Of its machine code, 90 for sm_90.
    """

    registers: int
    local_bytes: int
    shared_bytes: int
    architecture: int


class CudaKernels:
    """The kernels on one device.

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
            self._driver = _declare(ctypes.CDLL("libcuda.so.1"))
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
        """What each kernel takes."""
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
        """Launch a kernel; returns at once.

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
        """Work in the device's context, whatever is current on this thread."""
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


def _declare(driver: ctypes.CDLL) -> ctypes.CDLL:
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
    for name, arguments in signatures.items():
        function = getattr(driver, name)
        function.argtypes, function.restype = arguments, number
    return driver
