"""Fresh tensors whose memory comes back.

Observations are large, made anew in every step, and belong to the caller. Taken from the system each time, their
pages would have to be mapped and cleared in every step; here the memory of a tensor that nobody holds any more,
nor any view of it, serves the next one.
"""

import weakref

import numpy as np
import numpy.typing as npt
import torch

_KEPT = 3


class Recycler:
    """Gives out uninitialised float32 tensors on the CPU.

    Args:
        shape: Of the tensors.
    """

    def __init__(self, *shape: int) -> None:
        self.shape = shape
        self._free: list[npt.NDArray[np.float32]] = []

    def take(self) -> torch.Tensor:
        """Return a tensor of the shape; it is the caller's for as long as it, or a view of it, is held."""
        memory = self._free.pop() if self._free else np.empty(self.shape, np.float32)
        # The tensor's storage holds this array, and it alone; when the storage goes, so does the array.
        lent = memory.view()
        weakref.finalize(lent, _give_back, self._free, memory).atexit = False
        return torch.from_numpy(lent)


def _give_back(free: list[npt.NDArray[np.float32]], memory: npt.NDArray[np.float32]) -> None:
    if len(free) < _KEPT:
        free.append(memory)
