"""Random network distillation: curiosity as the error of predicting a fixed random network.

Burda et al. 2018. The error on an embedding falls with every visit, so what is new pays. The running
mean and variance that normalise it are frozen in evaluation mode.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn


class RunningMoments(nn.Module):
    """Mean and variance of a stream of batches, merged in float64 (Chan et al. 1979)."""

    mean: Tensor
    variance: Tensor
    count: Tensor

    def __init__(self) -> None:
        super().__init__()
        for name, value in (("mean", 0.0), ("variance", 1.0), ("count", 0.0)):
            self.register_buffer(name, torch.tensor(value, dtype=torch.float64))

    def update(self, values: Tensor, reduce: Callable[..., None] | None = None) -> None:
        """Merge a batch of finite values (B,).

        Args:
            values: The batch.
            reduce: Sums tensors over the processes of a run: each merges what all of them saw.
        """
        values = values.detach().double()
        count, mean = torch.full_like(self.count, values.numel()), values.mean()
        batch_squares = values.var(unbiased=False) * count
        if reduce is not None:
            sums = torch.stack((count, mean * count))
            reduce(sums)
            count, mean = sums[0], sums[1] / sums[0]
            batch_squares = (values - mean).square().sum()
            reduce(batch_squares)
        # An empty stream must not pull toward its placeholder variance: its count is zero.
        total = self.count + count
        delta = mean - self.mean
        squares = self.variance * self.count + batch_squares
        squares = squares + delta.square() * self.count * count / total
        self.mean.add_(delta * count / total)
        self.variance.copy_(squares / total)
        self.count.copy_(total)

    def normalise(self, values: Tensor) -> Tensor:
        """Return (values − mean) / standard deviation in the dtype of `values`."""
        scale = torch.rsqrt(self.variance + 1e-12)
        return ((values.double() - self.mean) * scale).to(values.dtype)


def _network(width: int, features: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(width, 128), nn.ReLU(), nn.Linear(128, features))


class RND(nn.Module):
    """Frozen target and trained predictor, each width-128-64; 24,768 parameters each at width 128.

    Args:
        width: Embedding width D.
        features: Output width.
        clamp: Bound of the normalised intrinsic reward.
    """

    def __init__(self, width: int = 128, features: int = 64, clamp: float = 5.0) -> None:
        super().__init__()
        self.target = _network(width, features).requires_grad_(False)
        self.predictor = _network(width, features)
        self.moments = RunningMoments()
        self.clamp = clamp

    def error(self, embedding: Tensor) -> Tensor:
        """Return the mean squared prediction error (…,) of embeddings (…, D); no gradient reaches them."""
        embedding = embedding.detach()
        out: Tensor = (self.predictor(embedding) - self.target(embedding)).square().mean(-1)
        return out

    @torch.no_grad()
    def intrinsic(self, embedding: Tensor, reduce: Callable[..., None] | None = None) -> Tensor:
        """Return normalised intrinsic rewards (B,) in ±clamp of embeddings (B, D).

        In training mode the batch first enters the running moments; in evaluation mode they stay.

        Args:
            embedding: Encoder outputs.
            reduce: Sums tensors over the processes of a run.
        """
        error = self.error(embedding)
        if self.training:
            self.moments.update(error, reduce)
        return self.moments.normalise(error).clamp_(-self.clamp, self.clamp)
