"""Data parallelism: several processes, each with its share of the rows, one policy.

`torchrun --nproc-per-node 2 -m navi_core.cli.main train ppo …` starts them. A minibatch is made of
the same sequences as in one process; each process takes those of its rows, gradients and statistics
are summed, and so every process makes the same step. One flat sum a minibatch is used and not
`DistributedDataParallel`: that divides by the number of processes, which is wrong when their shares
of a minibatch differ, and its overlap pays for networks far larger than this one.
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
    """The processes of a run; a single one does not communicate.

    Attributes:
        rank: This process, 0 … size − 1; 0 records and saves.
        size: Processes.
    """

    rank: int = 0
    size: int = 1

    @property
    def first(self) -> bool:
        """Whether this process writes what the run keeps."""
        return self.rank == 0

    def rows(self, total: int) -> tuple[int, int]:
        """Return the first row of this process and how many it has.

        Raises:
            ConfigError: The rows cannot be shared out evenly.
        """
        if total % self.size:
            raise ConfigError(
                f"actors {total} cannot be shared by {self.size} processes; use a multiple of {self.size}"
            )
        share = total // self.size
        return self.rank * share, share

    def sum(self, *tensors: Tensor) -> None:
        """Replace each tensor by its sum over the processes, all in one message for each dtype."""
        self._reduce(tensors, "SUM")

    def max(self, *tensors: Tensor) -> None:
        """Replace each tensor by its elementwise largest over the processes."""
        self._reduce(tensors, "MAX")

    def mean(self, value: Tensor) -> Tensor:
        """Return the mean over the processes; `value` itself where there is one."""
        if self.size == 1:
            return value
        total = value.clone()
        self.sum(total)
        return total / self.size

    def std_mean(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return population deviation and mean over the processes, scalars; every share is equally large."""
        if self.size == 1:
            return torch.std_mean(x, correction=0)
        mean = self.mean(x.double().mean())
        deviation = self.mean((x.double() - mean).square().mean()).sqrt()
        return deviation.to(x.dtype), mean.to(x.dtype)

    def any(self, flag: bool, device: torch.device | str = "cpu") -> bool:
        """Return whether the flag is set in any process; all get the same answer."""
        if self.size == 1:
            return flag
        seen = torch.tensor(float(flag), device=device)
        self.max(seen)
        return bool(seen)

    def columns(self, local: Tensor) -> Tensor:
        """Return (…, size·n) of all processes from (…, n) of each, in the order of their rows."""
        if self.size == 1:
            return local

        parts = [torch.empty_like(local) for _ in range(self.size)]
        with _all_there():
            dist.all_gather(parts, local.contiguous())
        return torch.cat(parts, dim=-1)

    def gather(self, value: V) -> list[V]:
        """Return the plain data of every process in the first, an empty list in the others."""
        if self.size == 1:
            return [value]

        found: list[V] | None = [value] * self.size if self.first else None
        with _all_there():
            dist.gather_object(value, found)
        return found or []

    def share(self, value: V) -> V:
        """Return the first process's plain data in every process."""
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
"""The one process of an ordinary run."""


@contextmanager
def _all_there() -> Iterator[None]:
    """Communicate with processes of which one may have failed; only that one has the reason."""
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
    """Join the processes that `torchrun` started (RANK, WORLD_SIZE, MASTER_ADDR), by NCCL where there is CUDA.

    Without these variables the process is alone. On leaving, the group is dissolved.

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
    # Its functions take the group of the moment of import as their default, and keep that alive. Whatever imports it
    # in a run, making an optimiser for one, would have the group's threads run on into the interpreter's end,
    # where one that still lets go of a tensor aborts the process.
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
