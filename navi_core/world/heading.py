"""Cosine and sine of a yaw as every part of the world takes them."""

import torch


def cos_sin(yaw: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return cosine and sine of yaws [rad] in their own precision.

    They are taken in double and rounded once, so that the kernels, whose mathematical library is another one, get
    the same bits.
    """
    exact = yaw.to(torch.float64)
    return exact.cos().to(yaw.dtype), exact.sin().to(yaw.dtype)
