"""Observations of a rollout, sequence after sequence, so that a minibatch moves whole sequences.

The acting policy is shown a packed observation as it will be read back, so that acting and learning still see the same.
"""

import math
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from navi_core.errors import ConfigError

_MOST_SEMANTIC = 255


class ObservationCodec:
    """Packs observations (…, *shape) into parts and back.

    Args:
        shape: Of one observation.
        dtype: Its type.
        kind: `full`, or `compact` for panoramas (3, Az, El).

    Attributes:
        parts: Shape and type of every part of a packed observation.

    Raises:
        ConfigError: `compact` for observations that are no panoramas, or with Az·El not a multiple of 8.
    """

    def __init__(
        self, shape: tuple[int, ...], dtype: torch.dtype = torch.float32, kind: Literal["full", "compact"] = "full"
    ) -> None:
        self.shape, self.kind = shape, kind
        self.parts: list[tuple[tuple[int, ...], torch.dtype]] = [(shape, dtype)]
        if kind == "full":
            return
        if len(shape) != 3 or shape[0] != 3 or shape[1] * shape[2] % 8:
            raise ConfigError(
                f"storage compact keeps panoramas (3, Az, El) with Az·El a multiple of 8, not {shape}; "
                "set storage to full"
            )
        pixels = shape[1:]
        bits = (pixels[0] * pixels[1] // 8,)
        self.parts = [(pixels, torch.float16), (pixels, torch.uint8), (bits, torch.uint8)]

    def pack(self, observations: Tensor) -> list[Tensor]:
        """Return the parts of observations (…, *shape)."""
        if self.kind == "full":
            return [observations]
        depth, semantic, valid = observations.unbind(-3)
        valid = (valid > 0).to(torch.uint8).flatten(-2).unflatten(-1, (-1, 8))
        bits = (valid << self._shifts(observations)).sum(-1, dtype=torch.uint8)
        return [depth.to(torch.float16), semantic.clamp(0, _MOST_SEMANTIC).to(torch.uint8), bits]

    def unpack(self, parts: Sequence[Tensor]) -> Tensor:
        """Return the observations of parts; of `full` they are the part itself."""
        if self.kind == "full":
            return parts[0]
        depth, semantic, bits = parts
        leading = depth.shape[:-2]
        out = torch.empty((*leading, *self.shape), dtype=torch.float32, device=depth.device)
        out[..., 0, :, :] = depth
        out[..., 1, :, :] = semantic
        valid = (bits[..., None] >> self._shifts(bits)) & 1
        out[..., 2, :, :] = valid.view(*leading, *self.shape[1:])
        return out

    @staticmethod
    def _shifts(like: Tensor) -> Tensor:
        return torch.arange(8, dtype=torch.uint8, device=like.device)


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
        out: Tensor = every.unflatten(0, (-1, self.rows)).transpose(1, 2).flatten(0, 1)
        return out
