"""Kernel of generalised advantage estimation: C++, CUDA, and a numba twin where there is no compiler.

`csrc/cuda/gae.h` serves both compilers. All three add in the order of the definition's loop and in double precision.
"""

import ctypes
from functools import cache
from typing import Any

import numba
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from navi_core.errors import ConfigError
from navi_core.kernels.native.cuda import CudaKernels
from navi_core.kernels.native.library import Advantages, NativeUnavailableError, load_library

_WARP = 32


def advantages_of(
    rewards: Tensor,
    values: Tensor,
    bootstrap: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    rho: Tensor | None = None,
    trace: Tensor | None = None,
    *,
    gamma: float,
    lam: float,
) -> Tensor:
    """Compute the advantages of a rollout on its device, the CPU or CUDA; nothing waits for the device.

    Args:
        rewards: (T, B) float32, or float64 like all other numbers.
        values: (T, B).
        bootstrap: (T, B), read where an episode is truncated, and in the last row.
        terminated: (T, B) bool.
        truncated: (T, B) bool.
        rho: (T, B) weight of the temporal difference.
        trace: (T, B) weight of the trace; given with `rho` or not at all, which is 1.
        gamma: Discount γ.
        lam: λ.

    Returns:
        (T, B) on the device of the rewards.

    Raises:
        ConfigError: Another device, or the CUDA kernels cannot be built.
    """
    weights = () if rho is None or trace is None else (rho, trace)
    # Bound to a name: the kernels read these tensors by address.
    given = [x.contiguous() for x in (rewards, values, terminated, truncated, bootstrap, *weights)]
    advantages = torch.empty_like(given[0])
    device = rewards.device
    library = _library() if device.type == "cpu" else None
    if device.type == "cpu" and library is None:
        arrays = [x.numpy() for x in given]
        _NUMBA(*arrays[:5], *(arrays[5:] or [np.ones_like(arrays[0])] * 2), gamma, lam, advantages.numpy())
        return advantages
    doubles, pointers = rewards.dtype == torch.float64, [x.data_ptr() for x in given]
    pointers += [None] * (7 - len(given))
    rollout = Advantages(*rewards.shape, doubles, gamma, lam, *pointers, advantages.data_ptr())
    if library is not None:
        library.navi_jobs_gae(ctypes.addressof(rollout))
    elif device.type == "cuda":
        stream = torch.cuda.current_stream(device).cuda_stream
        _kernels(device).launch("gae", -(-rewards.shape[1] // _WARP), _WARP, [rollout], stream)
    else:
        raise ConfigError(f"no kernel computes advantages on device {str(device)!r}; allowed: cpu, cuda")
    return advantages


@cache
def _library() -> ctypes.CDLL | None:
    """Load the C++ library; None where it cannot be built."""
    try:
        return load_library()
    except NativeUnavailableError:
        return None


@cache
def _kernels(device: torch.device) -> CudaKernels:
    return CudaKernels(device)


Array = npt.NDArray[Any]


@numba.njit(cache=True, nogil=True)
def _gae_rows(
    rewards: Array, values: Array, terminated: Array, truncated: Array, boot: Array, rho: Array, c: Array,
    gamma: float, lam: float, advantages: Array,
) -> None:  # fmt: skip
    steps, rows = rewards.shape
    # Row by row the reads would stride through memory; the traces of all rows fit the nearest cache.
    trace = np.zeros(rows)
    for t in range(steps - 1, -1, -1):
        last = t == steps - 1
        for b in range(rows):
            over, cut = terminated[t, b], truncated[t, b] or last
            following = boot[t, b] if cut else values[t + 1, b]
            difference = rewards[t, b] + gamma * (0.0 if over else following) - values[t, b]
            later = 0.0 if over or cut else trace[b]
            trace[b] = rho[t, b] * difference + gamma * lam * c[t, b] * later
            advantages[t, b] = trace[b]


# Numba's dispatchers carry no signature that a type checker could follow through packed arguments.
_NUMBA: Any = _gae_rows
