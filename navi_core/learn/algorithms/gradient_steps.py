"""Gradient steps: micro-batch accumulation, clipping, NaN checks; statistics are read by the host once an update."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from navi_core.errors import NonFiniteError
from navi_core.learn.parallel import ALONE, Workers
from navi_core.policy import NavigationPolicy, RewardShaper
from navi_core.record import StageTimer


@dataclass
class UpdateStats:
    """Statistics of one learner update: metrics, wall time, epochs, stage timings.

    Attributes:
        metrics: Losses and diagnostics by metric name.
        seconds: Wall time [s].
        epochs: Epochs done; fewer than configured after an early stop by KL.
        timer: Stage timings.
    """

    metrics: dict[str, float]
    seconds: float
    epochs: int
    timer: StageTimer = field(repr=False)


class GradientSteps:
    """Optimiser wrapper: Adam steps over a policy's parameters, with a row of statistics per step.

    A step is `zero_grad`, any number of backward passes, each followed by `accumulate`, and `step`.

    Args:
        policy: The network.
        shaper: Reward shaper, whose RND predictor takes a step with every step of the policy.
        learning_rate: Learning rate of Adam.
        device: Training device.
        means: Names of the statistics that are summed over a step's micro-batches.
        peaks: Names of the statistics whose maximum is taken.
        setting: The learner's section of the configuration, named in errors.
        workers: Processes of the run, whose gradients are summed.
        replayed: Whether backward passes are CUDA graph replays, which overwrite their earlier gradients.
    """

    def __init__(
        self,
        policy: NavigationPolicy,
        shaper: RewardShaper,
        learning_rate: float,
        device: torch.device,
        means: Sequence[str],
        peaks: Sequence[str],
        setting: str,
        workers: Workers = ALONE,
        *,
        replayed: bool = False,
    ) -> None:
        self.shaper, self.device, self.workers, self.setting = shaper, device, workers, setting
        self._replayed = replayed
        named = [(name, p) for name, p in policy.named_parameters() if p.requires_grad]
        self.names, self.parameters = [name for name, _ in named], [p for _, p in named]
        self.optimizer = torch.optim.Adam(self.parameters, lr=learning_rate, eps=1e-5, fused=True)
        self.means, self.peaks = tuple(means), tuple(peaks)
        self.rows: list[Tensor] = []
        """Rows of every step since the last `pop_metrics`: means, peaks, the gradient's norm and its tensors'."""

    def learning_rate(self, value: float) -> None:
        """Set Adam's learning rate."""
        for group in self.optimizer.param_groups:
            group["lr"] = value

    def zero_grad(self) -> None:
        """Reset the gradients and the accumulated statistics."""
        self.optimizer.zero_grad(set_to_none=not self._replayed)
        if self._replayed:
            # Gradients accumulate in memory outside the graph's.
            for p in self.parameters:
                p.grad = torch.zeros_like(p) if p.grad is None else p.grad
        self._means = torch.zeros(len(self.means), device=self.device)
        self._peaks = torch.zeros(len(self.peaks), device=self.device)

    def accumulate(self, means: Tensor, peaks: Tensor) -> None:
        """Accumulate a micro-batch's contributions to the means (M,), and the elementwise maximum of peaks (P,)."""
        self._means += means
        self._peaks = torch.maximum(self._peaks, peaks)

    def step(self, max_grad_norm: float, timer: StageTimer) -> None:
        """All-reduce and clip the gradients, take an Adam step, and store the row of statistics."""
        with timer("gradient_clip"):
            if self.workers.size > 1:
                for p in self.parameters:
                    p.grad = torch.zeros_like(p) if p.grad is None else p.grad
                self.workers.sum(*(p.grad for p in self.parameters if p.grad is not None))
            norm, norms = clip_gradients(self.parameters, max_grad_norm)
        with timer("optimizer_step"):
            self.optimizer.step()
        with timer("rnd_step"):
            self.shaper.step(None if self.workers.size == 1 else self.workers.sum)
        self.rows.append(torch.cat((self._means, self._peaks, norm[None], norms)).detach())

    def pop_metrics(self, index: int, further: dict[str, Tensor] | None = None) -> dict[str, float]:
        """Return the update's metrics (means, first step's peaks, `grad_norm`, further scalars) and clear the rows.

        The only transfer to the host of an update.

        Args:
            index: Number of the update.
            further: Further scalars on the device, read with them.

        Raises:
            NonFiniteError: A number, a gradient or a weight is NaN or infinite; it is named.
        """
        rows, self.rows = self.rows, []
        more = further or {}
        tail = [*more.values(), torch.stack([p.detach().abs().sum() for p in self.parameters]).sum()]
        if not rows:
            return self._tail(torch.stack(tail).tolist(), more, index)
        table = torch.stack(rows)
        first, last = len(self.means), len(self.means) + len(self.peaks)
        if self.workers.size > 1:
            means, peaks = (x.contiguous() for x in (table[:, :first], table[:, first:last]))
            self.workers.sum(means)
            self.workers.max(peaks)
            table = torch.cat((means, peaks, table[:, last:]), dim=1)
        packed = torch.cat((table.flatten(), torch.stack(tail))).tolist()
        width = table.shape[1]
        columns = [packed[i : i + width] for i in range(0, len(rows) * width, width)]
        for number, row in enumerate(columns):
            self._check(row, number, index)
        metrics = {name: sum(row[i] for row in columns) / len(columns) for i, name in enumerate(self.means)}
        metrics |= {name: columns[0][first + i] for i, name in enumerate(self.peaks)}
        metrics["grad_norm"] = sum(row[last] for row in columns) / len(columns)
        return metrics | self._tail(packed[-len(tail) :], more, index)

    def _tail(self, values: list[float], more: dict[str, Tensor], index: int) -> dict[str, float]:
        if not math.isfinite(values[-1]):
            name = next(n for n, p in zip(self.names, self.parameters) if not torch.isfinite(p).all())
            raise NonFiniteError(name, f"weight {name} is not finite after update {index}")
        return dict(zip(more, values))

    def _check(self, row: list[float], number: int, index: int) -> None:
        where = f"in minibatch {number} of update {index}. A lower {self.setting}.learning_rate may help"
        named = (*self.means, *self.peaks)
        for name, value in zip(named, row):
            if not math.isfinite(value):
                raise NonFiniteError(name, f"{name} is {value} {where}")
        learned = [name for name, p in zip(self.names, self.parameters) if p.grad is not None]
        for name, value in zip(learned, row[len(named) + 1 :]):
            if not math.isfinite(value):
                raise NonFiniteError(f"gradient of {name}", f"the gradient of {name} is not finite {where}")


def clip_gradients(parameters: Sequence[Tensor], bound: float) -> tuple[Tensor, Tensor]:
    """Clip gradients in place by their global norm (Pascanu et al. 2013).

    The same arithmetic as `torch.nn.utils.clip_grad_norm_`, which does not return the norms of the single gradients.
    These identify the tensor when one is NaN. No device synchronisation.

    Args:
        parameters: Parameters; those without a gradient are skipped.
        bound: Largest global norm.

    Returns:
        The norm before scaling, a scalar, and the norm of each gradient, (P,).
    """
    gradients = [p.grad for p in parameters if p.grad is not None]
    norms = torch.stack(torch._foreach_norm(gradients))
    total = torch.linalg.vector_norm(norms)
    torch._foreach_mul_(gradients, (bound / (total + 1e-6)).clamp(max=1.0))
    return total, norms
