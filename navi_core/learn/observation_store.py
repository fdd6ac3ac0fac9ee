"""Observations of a rollout, sequence after sequence, so that a minibatch moves whole sequences.

`full` keeps what was seen. `compact` keeps depth in half precision, semantic ids in a byte and the
valid mask in bits, 3.8 times less memory. Depth in [0, 1] is then off by at most 2⁻¹² (less than a
millimetre at one metre, 4 cm at 30 m, with a range of 100 m); ids above 255 become 255, which is all
that an encoder sees of them. The acting policy is shown the observation as it will be read back, so that acting and
learning still see the same.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

from navi_core.errors import ConfigError

__all__ = ["ObservationStore"]

_MOST_SEMANTIC = 255


class ObservationStore:
    """T decisions of B rows as chunks·B sequences of `bptt` observations.

    Args:
        chunks: T / bptt.
        bptt: Decisions of a sequence.
        example: (B, …) observation; its shape and device are used.
        kind: `full`, or `compact` for panoramas (B, 3, Az, El).

    Raises:
        ConfigError: `compact` for observations that are no panoramas, or with Az·El not a multiple of 8.
    """

    def __init__(self, chunks: int, bptt: int, example: Tensor, kind: Literal["full", "compact"] = "full") -> None:
        rows, shape = example.shape[0], tuple(example.shape[1:])
        self.bptt, self.rows, self.kind, self._shape = bptt, rows, kind, shape
        self._shifts = torch.arange(8, dtype=torch.uint8, device=example.device)

        def slab(part: tuple[int, ...], dtype: torch.dtype) -> Tensor:
            return torch.zeros((chunks, rows, bptt, *part), dtype=dtype, device=example.device)

        if kind == "full":
            self._slabs = [slab(shape, example.dtype)]
            return
        if len(shape) != 3 or shape[0] != 3 or shape[1] * shape[2] % 8:
            raise ConfigError(
                f"storage compact keeps panoramas (3, Az, El) with Az·El a multiple of 8, not {shape}; "
                "set storage to full"
            )
        pixels = shape[1:]
        bits = (pixels[0] * pixels[1] // 8,)
        self._slabs = [slab(pixels, torch.float16), slab(pixels, torch.uint8), slab(bits, torch.uint8)]

    @property
    def numbers(self) -> int:
        """Numbers of one observation."""
        return math.prod(self._shape)

    @property
    def nbytes(self) -> int:
        """Memory of the store [bytes]."""
        return sum(slab.nbytes for slab in self._slabs)

    def write(self, step: int, observation: Tensor) -> Tensor:
        """Keep the (B, …) observation of decision `step`; return it as it will be read."""
        chunk, place = divmod(step, self.bptt)
        parts = [observation] if self.kind == "full" else self._packed(observation)
        for slab, part in zip(self._slabs, parts):
            slab[chunk, :, place] = part
        return observation if self.kind == "full" else self._unpacked(parts)

    def sequences(self, index: Tensor | slice) -> Tensor:
        """Return sequences (S, bptt, …); a slice of a full store is a view, nothing is copied.

        Args:
            index: Sequences, by number chunk·B + row.
        """
        parts = [
            slab.flatten(0, 1)[index] if isinstance(index, slice) else slab.flatten(0, 1).index_select(0, index)
            for slab in self._slabs
        ]
        return parts[0] if self.kind == "full" else self._unpacked(parts)

    def by_step(self) -> Tensor:
        """Return a copy in order of time, (T, B, …); for tests and reports."""
        every = self.sequences(slice(None))
        return every.unflatten(0, (-1, self.rows)).transpose(1, 2).flatten(0, 1)

    def _packed(self, observation: Tensor) -> list[Tensor]:
        valid = (observation[:, 2] > 0).to(torch.uint8).flatten(1).unflatten(1, (-1, 8))
        bits = (valid << self._shifts).sum(-1, dtype=torch.uint8)
        semantic = observation[:, 1].clamp(0, _MOST_SEMANTIC).to(torch.uint8)
        return [observation[:, 0].to(torch.float16), semantic, bits]

    def _unpacked(self, parts: list[Tensor]) -> Tensor:
        depth, semantic, bits = parts
        leading = depth.shape[:-2]
        out = torch.empty((*leading, *self._shape), dtype=torch.float32, device=depth.device)
        out[..., 0, :, :] = depth
        out[..., 1, :, :] = semantic
        valid = (bits[..., None] >> self._shifts) & 1
        out[..., 2, :, :] = valid.view(*leading, *self._shape[1:])
        return out
