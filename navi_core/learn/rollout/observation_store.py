"""Observations of a rollout, sequence after sequence, so that a minibatch moves whole sequences.

The acting policy is shown a packed observation as it will be read back, so that acting and learning still see the same.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

from navi_core.learn.rollout.observation_codec import ObservationCodec

__all__ = ["ObservationStore"]


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
        self.bptt, self.rows, self._shape = bptt, rows, shape
        self.codec = ObservationCodec(shape, example.dtype, kind)
        self._slabs = [
            torch.zeros((chunks, rows, bptt, *part), dtype=dtype, device=example.device)
            for part, dtype in self.codec.parts
        ]

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
        parts = self.codec.pack(observation)
        for slab, part in zip(self._slabs, parts):
            slab[chunk, :, place] = part
        return self.codec.unpack(parts)

    def sequences(self, index: Tensor | slice) -> Tensor:
        """Return sequences (S, bptt, …); a slice of a full store is a view, nothing is copied.

        Args:
            index: Sequences, by number chunk·B + row.
        """
        return self.codec.unpack(
            [
                slab.flatten(0, 1)[index] if isinstance(index, slice) else slab.flatten(0, 1).index_select(0, index)
                for slab in self._slabs
            ]
        )

    def decisions(self, step: Tensor, row: Tensor) -> Tensor:
        """Return the observations (N, …) of single decisions.

        Args:
            step: (N,) int64 in [0, T).
            row: (N,) int64 in [0, B).
        """
        place = (step // self.bptt * self.rows + row) * self.bptt + step % self.bptt
        return self.codec.unpack([slab.flatten(0, 2).index_select(0, place) for slab in self._slabs])

    def by_step(self) -> Tensor:
        """Return a copy in order of time, (T, B, …)."""
        every = self.sequences(slice(None))
        return every.unflatten(0, (-1, self.rows)).transpose(1, 2).flatten(0, 1)
