"""Execution modes of policy and environment: eager, `torch.compile`, CUDA graphs; precision; stage timing."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import fields, is_dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from navi_core.config import TrainConfig
from navi_core.errors import ConfigError
from navi_core.policy.navigation_policy import Trunk
from navi_core.record import StageTimer
from navi_core.world import CapturedStep, Environment, NavigationEnv, StepBatch


def check_execution(config: TrainConfig, device: torch.device) -> None:
    """Validate that the device supports the configured execution mode.

    Raises:
        ConfigError: Execution `graph` without CUDA.
    """
    if config.execution == "graph" and device.type != "cuda":
        raise ConfigError(
            f"execution graph captures CUDA graphs and the device is {device}; set execution to eager or compile, "
            "or device to cuda"
        )


def use_precision(policy: nn.Module, config: TrainConfig) -> None:
    """Set the precision of the policy's and critic's encoders to `config.precision`: bfloat16 autocast, or float32."""
    for trunk in policy.modules():
        if isinstance(trunk, Trunk):
            trunk.half_encoder = config.precision == "bf16"


def flying(env: Environment, config: TrainConfig) -> Callable[[Tensor], StepBatch]:
    """Return `env.step`, captured as a CUDA graph if `config.execution` is `graph` and the environment is on CUDA.

    The tensors that a captured step returns are overwritten by the next one. Reference tasks run on the CPU and are
    not captured.
    """
    if config.execution == "graph" and isinstance(env, NavigationEnv):
        return CapturedStep(env)
    return env.step


def carried_out(function: Callable[..., Any], config: TrainConfig, device: torch.device) -> Callable[..., Any]:
    """Wrap a policy's `act` or `evaluate` for `config.execution`: eager, compiled, or replayed as a CUDA graph.

    Raises:
        ConfigError: Execution `graph` without CUDA.
    """
    check_execution(config, device)
    if config.execution == "eager":
        return function
    # As one graph or not at all: in pieces it would be slow without a warning.
    if config.execution == "compile":
        return torch.compile(function, fullgraph=True)
    captured = torch.compile(function, mode="reduce-overhead", fullgraph=True)

    def call(*args: object) -> object:
        torch.compiler.cudagraph_mark_step_begin()
        out = captured(*args)
        # A replay writes over its outputs, and this one's are kept until the next: state, storage.
        return out if torch.is_grad_enabled() else _cloned(out)

    return call


def _cloned(value: object) -> object:
    if isinstance(value, Tensor):
        return value.clone()
    if isinstance(value, tuple):
        return tuple(_cloned(x) for x in value)
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{f.name: _cloned(getattr(value, f.name)) for f in fields(value)})
    return value


_PART = {"encoder": "encoder", "core": "core", "heads.actor": "heads", "heads.critic": "heads"}
"""Stage name by path of a policy's submodule."""


def stage_timer(device: torch.device, profile: bool) -> StageTimer:
    """Build a stage timer: host clock, or CUDA events on the device's stream when profiling."""
    if profile and device.type == "cuda":
        return StageTimer(partial(torch.cuda.Event, enable_timing=True))
    return StageTimer()


@contextmanager
def timed_parts(policy: nn.Module, timer: StageTimer, stage: str) -> Iterator[None]:
    """Context manager that times a policy's `stage/encoder`, `stage/core` and `stage/heads` by module hooks.

    The hooks are removed on exit, so the policy needs no timer code. A separate critic trunk is counted with the
    actor's.
    """
    with ExitStack() as hooks:
        for path, module in policy.named_modules():
            part = _PART.get(path.removeprefix("critic_trunk."))
            if part is None:
                continue
            running: list[Callable[[], None]] = []

            def enter(
                _module: nn.Module, _args: object, name: str = part, running: list[Callable[[], None]] = running
            ) -> None:
                running.append(timer.begin(f"{stage}/{name}"))

            def leave(
                _module: nn.Module, _args: object, _out: object, running: list[Callable[[], None]] = running
            ) -> None:
                running.pop()()

            hooks.callback(module.register_forward_pre_hook(enter).remove)
            hooks.callback(module.register_forward_hook(leave).remove)
        yield
