"""Where a policy evaluation spends its time: encoder, temporal core, heads."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import nn

from navi_core.record import StageTimer

__all__ = ["stage_timer", "timed_parts"]

_PART = {"encoder": "encoder", "core": "core", "heads.actor": "heads", "heads.critic": "heads"}
"""What a policy's module counts as."""


def stage_timer(device: torch.device, profile: bool) -> StageTimer:
    """Return a timer by the host's clock, or by events on the device's stream when profiling CUDA."""
    if profile and device.type == "cuda":
        return StageTimer(partial(torch.cuda.Event, enable_timing=True))  # type: ignore[arg-type]
    return StageTimer()


@contextmanager
def timed_parts(policy: nn.Module, timer: StageTimer, stage: str) -> Iterator[None]:
    """Time the policy's parts as `stage/encoder`, `stage/core` and `stage/heads` while entered.

    Hooks on the modules, so that the policy knows nothing of timers; they are removed on leaving. A critic
    with a trunk of its own is counted with the actor's.
    """
    handles = []
    for path, module in policy.named_modules():
        part = _PART.get(path.removeprefix("critic_trunk."))
        if part is None:
            continue
        finish: list[Callable[[], None]] = []

        def enter(_module: nn.Module, _args: Any, name: str = part, finish: list[Callable[[], None]] = finish) -> None:
            finish.append(timer.begin(f"{stage}/{name}"))

        def leave(_module: nn.Module, _args: Any, _out: Any, finish: list[Callable[[], None]] = finish) -> None:
            finish.pop()()

        handles += [module.register_forward_pre_hook(enter), module.register_forward_hook(leave)]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
