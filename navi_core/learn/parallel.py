"""Data-parallel training: several processes share the rows of a run and train one policy (`torch.distributed`).

`torchrun --nproc-per-node 2 -m navi_core.cli.main train ppo …` starts them. A minibatch consists of the same sequences
as in one process. Each process computes those of its rows, gradients and statistics are summed, and every process takes
the same optimiser step. A flat all-reduce per minibatch is used instead of `DistributedDataParallel`, which divides by
the number of processes: wrong when their shares of a minibatch differ. Its overlap only helps far larger networks.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from navi_core.errors import ConfigError, RunError

V = TypeVar("V")


@dataclass(frozen=True)
class Workers:
    """Process group of a data-parallel run: rank, size and collectives; a single process does not communicate.

    Attributes:
        rank: Rank of this process, 0 … size − 1; rank 0 writes records and checkpoints.
        size: Number of processes.
    """

    rank: int = 0
    size: int = 1

    @property
    def first(self) -> bool:
        """Whether this process is rank 0, which writes records and checkpoints."""
        return self.rank == 0

    def rows(self, total: int) -> tuple[int, int]:
        """Return the first row of this process and its number of rows.

        Raises:
            ConfigError: The rows cannot be divided evenly.
        """
        if total % self.size:
            raise ConfigError(
                f"actors {total} cannot be shared by {self.size} processes; use a multiple of {self.size}"
            )
        share = total // self.size
        return self.rank * share, share

    def sum(self, *tensors: Tensor) -> None:
        """All-reduce: replace each tensor by its sum over the processes, in one message per dtype."""
        self._reduce(tensors, "SUM")

    def max(self, *tensors: Tensor) -> None:
        """All-reduce: replace each tensor by its elementwise maximum over the processes."""
        self._reduce(tensors, "MAX")

    def mean(self, value: Tensor) -> Tensor:
        """All-reduce: return the mean of a tensor over the processes; `value` itself in a single process."""
        if self.size == 1:
            return value
        total = value.clone()
        self.sum(total)
        return total / self.size

    def std_mean(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """All-reduce: return population standard deviation and mean over the processes' equal-sized parts, scalars."""
        if self.size == 1:
            return torch.std_mean(x, correction=0)
        mean = self.mean(x.double().mean())
        deviation = self.mean((x.double() - mean).square().mean()).sqrt()
        return deviation.to(x.dtype), mean.to(x.dtype)

    def any(self, flag: bool, device: torch.device | str = "cpu") -> bool:
        """All-reduce (logical or) of a flag: True in all processes if it is set in any."""
        if self.size == 1:
            return flag
        seen = torch.tensor(float(flag), device=device)
        self.max(seen)
        return bool(seen)

    def columns(self, local: Tensor) -> Tensor:
        """All-gather: concatenate (…, n) of every process to (…, size·n), in rank order."""
        if self.size == 1:
            return local

        parts = [torch.empty_like(local) for _ in range(self.size)]
        with _all_there():
            dist.all_gather(parts, local.contiguous())
        return torch.cat(parts, dim=-1)

    def gather(self, value: V) -> list[V]:
        """Gather the plain data of every process in rank 0; the others get an empty list."""
        if self.size == 1:
            return [value]

        found: list[V] | None = [value] * self.size if self.first else None
        with _all_there():
            dist.gather_object(value, found)
        return found or []

    def share(self, value: V) -> V:
        """Broadcast the plain data of rank 0 to every process."""
        if self.size == 1:
            return value

        box = [value]
        with _all_there():
            dist.broadcast_object_list(box)
        return box[0]

    def _reduce(self, tensors: Sequence[Tensor], operation: str) -> None:
        if self.size == 1:
            return

        for dtype in dict.fromkeys(x.dtype for x in tensors):
            group = [x for x in tensors if x.dtype == dtype]
            flat = torch.cat([x.reshape(-1) for x in group])
            with _all_there():
                dist.all_reduce(flat, getattr(dist.ReduceOp, operation))
            for x, part in zip(group, flat.split([x.numel() for x in group])):
                x.copy_(part.view_as(x))


ALONE = Workers()
"""`Workers` of a single-process run."""


@contextmanager
def _all_there() -> Iterator[None]:
    """Context manager for collectives: turns the failure of another process into a `RunError`."""
    try:
        yield
    except RuntimeError as error:  # Gloo's and NCCL's have no kind in common but this
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise RunError(
            f"another process of this run does not answer; see the one that failed; the same command goes on "
            f"from the last checkpoint ({reason})"
        ) from error


@contextmanager
def joined_workers() -> Iterator[Workers]:
    """Context manager that joins the `torchrun` process group (RANK, WORLD_SIZE, MASTER_ADDR), by NCCL with CUDA.

    Without these variables the run has one process; without CUDA the backend is Gloo. The group is destroyed on exit.

    Raises:
        ConfigError: The variables are incomplete or name no group, or this build of torch cannot communicate.
    """
    size = os.environ.get("WORLD_SIZE", "1")
    if size == "1":
        yield ALONE
        return
    missing = [name for name in ("RANK", "MASTER_ADDR", "MASTER_PORT") if name not in os.environ]
    if missing or not size.isdigit():
        raise ConfigError(
            f"WORLD_SIZE is {size} and {', '.join(missing) or 'no number'} is missing; start several processes with "
            "torchrun, or unset WORLD_SIZE"
        )
    if not dist.is_available():
        raise ConfigError("this build of torch has no torch.distributed; unset WORLD_SIZE to train in one process")
    # Imported before the group exists: its functions bind the group at import time as their default and keep it alive.
    # A later import, for example by an optimiser, would leave the group's threads running at interpreter exit, where
    # one that still frees a tensor aborts the process.
    import torch.distributed.nn

    try:
        if torch.cuda.is_available():
            torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", os.environ["RANK"])))
        dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    except (ValueError, RuntimeError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ConfigError(f"the processes cannot be joined ({reason}); start them with torchrun") from error
    try:
        yield Workers(dist.get_rank(), dist.get_world_size())
    finally:
        dist.destroy_process_group()
