"""Finds what makes the host wait for a device, or reads a device's memory: on the CPU, without a device at hand.

A program for CUDA must not look at values: `.item()`, `nonzero`, boolean masks as indices, copies between
devices. On the CPU these cost nothing and go unnoticed, so they are caught where torch is called: operators by a
dispatch mode, and the methods that leave torch without an operator (`.numpy()`, `.tolist()`, `bool()`) by a
function mode.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

__all__ = ["HostSyncError", "HostSyncs", "forbid_host_sync"]

# Their result, or its shape, depends on values.
_OPERATORS = {
    "_local_scalar_dense", "item", "is_nonzero", "equal", "allclose", "nonzero", "nonzero_numpy", "argwhere",
    "masked_select", "unique_dim", "unique_consecutive", "_unique", "_unique2", "bincount", "histc", "one_hot",
    "_is_all_true", "_is_any_true", "_assert_async",
}  # fmt: skip
_INDEXING = {"index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index_put"}
_COPIES = {"_to_copy", "copy_", "copy", "_copy_from", "_copy_from_and_resize"}
# `__index__` and its kin also serve Python's own indexing, so they are as bad as `item`.
_METHODS = {
    "numpy", "tolist", "cpu", "cuda", "item", "__bool__", "__int__", "__float__", "__index__", "__array__",
    "__contains__", "__complex__", "is_nonzero", "equal", "allclose",
}  # fmt: skip
# They copy from the host's memory, which a captured program cannot repeat.
_FACTORIES = {"tensor", "as_tensor", "from_numpy", "asarray", "scalar_tensor"}


class HostSyncError(AssertionError):
    """A program for a device waited for it."""


class HostSyncs:
    """Collects host synchronisations while it is entered.

    Attributes:
        found: One line for each: what was called, and from which lines of the project.
    """

    def __init__(self) -> None:
        self.found: list[str] = []
        self._stack = ExitStack()

    def __enter__(self) -> HostSyncs:
        self._stack.enter_context(_Functions(self._note))
        self._stack.enter_context(_Operators(self._note))
        return self

    def __exit__(self, *exception: object) -> None:
        self._stack.close()

    def _note(self, what: str) -> None:
        root = Path(__file__).resolve().parents[2]
        frames = [f for f in traceback.extract_stack() if "navi_core" in f.filename or "tests" in f.filename]
        where = [
            f"{Path(f.filename).resolve().relative_to(root)}:{f.lineno}"
            for f in frames
            if Path(f.filename).resolve().is_relative_to(root) and Path(f.filename).name != Path(__file__).name
        ]
        self.found.append(f"{what} at {' < '.join(reversed(where[-3:]))}")


class forbid_host_sync(HostSyncs):  # noqa: N801 (reads as a statement: `with forbid_host_sync():`)
    """Fails on leaving if anything within synchronised.

    Raises:
        HostSyncError: Names every synchronisation.
    """

    def __exit__(self, *exception: object) -> None:
        super().__exit__(*exception)
        if self.found and exception[0] is None:
            raise HostSyncError(f"{len(self.found)} host synchronisations:\n" + "\n".join(self.found))


class _Operators(TorchDispatchMode):
    def __init__(self, note: Callable[[str], None]) -> None:
        super().__init__()
        self._note = note

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = func._schema.name.partition("::")[2]
        if name in _OPERATORS:
            self._note(str(func))
        elif name in _INDEXING:
            if any(isinstance(i, torch.Tensor) and i.dtype in (torch.bool, torch.uint8) for i in tree_leaves(args[1])):
                self._note(f"{func} with a boolean mask")
        elif name == "repeat_interleave" and (kwargs or {}).get("output_size") is None:
            self._note(f"{func} without output_size")
        elif name in _COPIES:
            devices = {str(t.device) for t in tree_leaves(args) if isinstance(t, torch.Tensor)}
            if (kwargs or {}).get("device") is not None:
                devices.add(str(torch.device(kwargs["device"])))  # type: ignore[index]
            if len(devices) > 1:
                self._note(f"{func} between {' and '.join(sorted(devices))}")
        return func(*args, **(kwargs or {}))


def _indices(index: Any) -> tuple[Any, ...]:
    return index if isinstance(index, tuple) else (index,)


class _Functions(TorchFunctionMode):
    def __init__(self, note: Callable[[str], None]) -> None:
        super().__init__()
        self._note = note

    def __torch_function__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = getattr(func, "__name__", "")
        if name in _METHODS and args and isinstance(args[0], torch.Tensor):
            self._note(f"Tensor.{name}")
        elif name in _FACTORIES:
            self._note(f"torch.{name}")
        elif name in ("__getitem__", "__setitem__") and any(isinstance(i, list) for i in _indices(args[1])):
            self._note(f"Tensor.{name} with a list, which is copied to the device")
        return func(*args, **(kwargs or {}))
