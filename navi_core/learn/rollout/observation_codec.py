"""How observations are kept: as they are, or packed.

`compact` keeps depth in half precision, semantic ids in a byte and the valid mask in bits, 3.8 times less memory. Depth
in [0, 1] is then off by at most 2⁻¹² (less than a millimetre at one metre, 4 cm at 30 m, with a range of 100 m); ids
above 255 become 255, which is all that an encoder sees of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from navi_core.errors import ConfigError

__all__ = ["ObservationCodec"]

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
