"""A CUDA device that is not there: its tensors lie in the host's memory, its kernels run as loops on the CPU.

Everything that a program does on "cuda" then runs for real, values and all, and fails where it would fail on a
GPU: a tensor of the CPU meets one of the device, `.numpy()` is asked of the device, a factory forgets the device.
What it cannot show is time, and what the driver says.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from types import SimpleNamespace
from typing import Any, ClassVar
from unittest.mock import patch

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from navi_core.kernels import advantages
from navi_core.kernels.rays import cuda

__all__ = ["DeviceTensor", "emulated_cuda"]

DEVICE = torch.device("cuda", 0)
_COPIES = {"_to_copy", "copy_", "copy"}


class DeviceTensor(torch.Tensor):
    """A tensor that says it is on the device."""

    inner: torch.Tensor

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> DeviceTensor:
        wrapper = torch.Tensor._make_wrapper_subclass(
            cls, inner.shape, strides=inner.stride(), storage_offset=inner.storage_offset(), dtype=inner.dtype,
            device="meta",  # a device that every build of torch has
        )  # fmt: skip
        wrapper.inner = inner
        return wrapper

    @property
    def device(self) -> torch.device:
        return DEVICE

    @property
    def is_cuda(self) -> bool:
        return True

    def data_ptr(self) -> int:
        return self.inner.data_ptr()

    @property
    def nbytes(self) -> int:
        return self.inner.nbytes

    def tolist(self) -> Any:
        return self.cpu().tolist()

    def numpy(self, *, force: bool = False) -> Any:
        raise TypeError("can't convert cuda:0 device type tensor to numpy; use Tensor.cpu() first")

    def __deepcopy__(self, memo: dict[int, Any]) -> DeviceTensor:
        return memo.setdefault(id(self), DeviceTensor(self.inner.clone()))

    def __repr__(self, *, tensor_contents: object = None) -> str:
        return f"on the device: {self.inner!r}"

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Sequence[type], args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {})


class _Device(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Sequence[type], args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {})


class _Factories(TorchFunctionMode):
    """Makes tensors of the host's data on the CPU and copies them, as torch does within."""

    def __torch_function__(self, func: Any, types: Sequence[type], args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        device = kwargs.pop("device", None) if func in (torch.tensor, torch.as_tensor, torch.asarray) else None
        if func is torch.Tensor.cuda:
            return args[0].to(DEVICE)
        if func is torch.Tensor.to:  # a device without an index would be looked up
            args = tuple(DEVICE if isinstance(x, (str, torch.device)) and str(x) == "cuda" else x for x in args)
        result = func(*args, **kwargs)
        return result.to(DEVICE) if device is not None and torch.device(device).type == "cuda" else result


class EmulatedGraph:
    """What was done on the device while it was recorded; a replay does it again, on the same memory.

    As on a device, the host takes no part in a replay: what Python decided or bound anew stays as it was.
    """

    recording: ClassVar[EmulatedGraph | None] = None

    def __init__(self) -> None:
        self._done: list[Callable[[], object]] = []
        self._kept: list[Any] = []

    def record(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        """Note an operator with the host's tensors behind it."""
        name = func._schema.name.partition("::")[2]
        indices = tree_leaves(args[1]) if name.startswith(("index", "_index_put")) else []
        masked = any(isinstance(x, torch.Tensor) and x.dtype == torch.bool for x in indices)
        if masked or name in ("_local_scalar_dense", "nonzero", "masked_select"):
            raise RuntimeError(f"{func} is not permitted when the stream is capturing")
        given = {x.untyped_storage().data_ptr() for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)}
        results = [x for x in tree_leaves(result) if isinstance(x, torch.Tensor)]
        fresh = [x.untyped_storage().data_ptr() not in given for x in results]
        self._kept.append(result)

        def again() -> None:
            anew = [x for x in tree_leaves(func(*args, **kwargs)) if isinstance(x, torch.Tensor)]
            for old, new, is_fresh in zip(results, anew, fresh, strict=True):
                if is_fresh:
                    old.copy_(new)

        self._done.append(again)

    def launch(self, kernel: Callable[[], None]) -> None:
        """Note a kernel; its structs hold addresses of memory that the graph keeps."""
        self._done.append(kernel)

    def replay(self) -> None:
        """Do it all again."""
        for again in self._done:
            again()


@contextmanager
def _recording(graph: EmulatedGraph) -> Iterator[None]:
    EmulatedGraph.recording = graph
    try:
        yield
    finally:
        EmulatedGraph.recording = None


def _run(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    name = func._schema.name.partition("::")[2]
    tensors = [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
    ours = [x for x in tensors if isinstance(x, DeviceTensor)]
    asked = kwargs.get("device")
    here = torch.device(asked).type in ("cuda", "meta") if asked is not None else bool(ours)
    if name == "copy_":
        here = isinstance(args[0], DeviceTensor)
    elif ours and name not in _COPIES:
        strangers = [x for x in tensors if not isinstance(x, DeviceTensor) and x.dim() > 0]
        if strangers:
            raise RuntimeError(f"{func}: tensors on cuda:0 and cpu, {[tuple(x.shape) for x in strangers]} on the CPU")
    if name == "_to_copy" and here and ours and kwargs.get("dtype") in (None, args[0].dtype):
        return args[0]  # it is there already
    if asked is not None:
        kwargs = {**kwargs, "device": torch.device("cpu")}
    wrapper_of = {id(x.inner): x for x in ours}
    args, kwargs = tree_map(lambda x: x.inner if isinstance(x, DeviceTensor) else x, (args, kwargs))
    if name == "_to_copy" and ours and not here:
        kwargs = {**kwargs, "device": torch.device("cpu")}
    result = func(*args, **kwargs)
    if EmulatedGraph.recording is not None and (here or ours):
        if name in _COPIES and any(isinstance(x, DeviceTensor) != here for x in tensors):
            raise RuntimeError(f"{func} between the host and the device is not permitted when the stream is capturing")
        EmulatedGraph.recording.record(func, args, kwargs, result)
    if not here:
        return result
    return tree_map(lambda x: wrapper_of.get(id(x), DeviceTensor(x)) if isinstance(x, torch.Tensor) else x, result)


class _Loops(cuda._Loops):
    """The device's kernels; they count their launches."""

    def __init__(self, *_: object) -> None:
        super().__init__()
        self.launched: list[str] = []

    def launch(self, name: str, *rest: Any) -> None:
        self.launched.append(name)
        super().launch(name, *rest)
        if EmulatedGraph.recording is not None:
            EmulatedGraph.recording.launch(partial(super().launch, name, *rest))


class _Stream:
    cuda_stream = 7777

    def __init__(self, device: object = None) -> None: ...

    def wait_stream(self, other: _Stream) -> None: ...


class _Event:
    def __init__(self, enable_timing: bool = False) -> None: ...

    def record(self) -> None:
        self.time = time.perf_counter()

    def elapsed_time(self, end: _Event) -> float:
        return (end.time - self.time) * 1e3

    def synchronize(self) -> None: ...


_HOSTS_GENERATOR = torch.Generator


class _Generator:
    """Makes generators of the device, which draw as the host's."""

    def __new__(cls, device: torch.device | str = "cpu") -> Any:
        return _HOSTS_GENERATOR("cpu")


@contextmanager
def emulated_cuda(kernels: type = _Loops) -> Iterator[None]:
    """Have a device "cuda:0" until the block is left; `kernels` takes the place of `CudaKernels`."""
    patches = {
        "_lazy_init": lambda: None,
        "is_available": lambda: True,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "current_stream": _Stream,
        "Stream": _Stream,
        "stream": lambda stream: nullcontext(),
        "CUDAGraph": EmulatedGraph,
        "graph": _recording,
        "Event": _Event,
        "synchronize": lambda device=None: None,
        "max_memory_allocated": lambda device=None: 0,
        "reset_peak_memory_stats": lambda device=None: None,
        "get_device_properties": lambda device: SimpleNamespace(
            name="emulated", total_memory=0, multi_processor_count=0, major=0, minor=0
        ),
    }
    with (
        patch.multiple(torch.cuda, **patches),
        patch.object(cuda, "CudaKernels", kernels),
        patch.object(advantages, "CudaKernels", kernels),
        patch.object(torch, "Generator", _Generator),
        _Factories(),
        _Device(),
    ):
        advantages._kernels.cache_clear()
        yield
    advantages._kernels.cache_clear()
