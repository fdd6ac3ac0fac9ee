"""Contract checks of a custom encoder or core at construction: shapes, types, and `step` equal to `forward`."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from navi_core.errors import ConfigError
from navi_core.policy.cores.base import State, TemporalCore

_ROWS, _STEPS = 3, 6
_TOLERANCE = 1e-3


def check_encoder(name: str, encoder: nn.Module, azimuth_bins: int, elevation_bins: int, width: int) -> None:
    """Validate that an encoder maps (B, 3, Az, El) to float32 (B, D).

    Raises:
        ConfigError: It is no module, or returns another shape or type.
    """
    if not isinstance(encoder, nn.Module):
        raise ConfigError(f"encoder {name}: what it was registered with made a {type(encoder).__name__}, no nn.Module")
    obs = torch.zeros(_ROWS, 3, azimuth_bins, elevation_bins)
    with _tried(encoder):
        out = encoder(obs)
    _require(f"encoder {name}", "observations", obs, out, (_ROWS, width))


def check_core(name: str, core: TemporalCore, width: int) -> None:
    """Validate that a temporal core's `step` and `forward` are one function of inputs, state and resets.

    Raises:
        ConfigError: It is no `TemporalCore`, its shapes are others, or a sequence is not its steps one after another.
    """
    if not isinstance(core, TemporalCore):
        raise ConfigError(
            f"temporal core {name}: what it was registered with made a {type(core).__name__}; "
            "it must be a navi_core.policy.TemporalCore"
        )
    what = f"temporal core {name}"
    draw = torch.Generator().manual_seed(0)
    x, before = torch.randn(_ROWS, _STEPS, width, generator=draw), torch.randn(_ROWS, width, generator=draw)
    reset = torch.zeros(_ROWS, _STEPS, dtype=torch.bool)
    reset[0, 0] = reset[1, 2] = reset[1, 3] = True
    with _tried(core):
        zero = core.initial_state(_ROWS)
        _require_state(f"{what}: initial_state({_ROWS})", zero)
        out, start = core.step(before, zero, None)
        _require(f"{what}: step", "inputs", before, out, (_ROWS, width))
        _require_state(f"{what}: the state after step", start, zero)
        y, last = core(x, start, reset)
        _require(f"{what}: forward", "inputs", x, y, (_ROWS, _STEPS, width))
        _require_state(f"{what}: the state after forward", last, zero)
        state, outputs = start, []
        for t in range(_STEPS):
            out, state = core.step(x[:, t], state, reset[:, t])
            outputs.append(out)
        fresh, _ = core.step(x[:, 0], zero, None)
    worst = max(_apart(a, b) for a, b in zip((y, *last), (torch.stack(outputs, 1), *state)))
    if not worst <= _TOLERANCE:
        raise ConfigError(
            f"{what}: a sequence is not its steps: outputs or states differ by {worst:.1e} where episodes begin within "
            "it; `forward` and `step` must compute the same, and reset[t] zeroes the row's state before input t"
        )
    if not _apart(fresh[0], outputs[0][0]) <= _TOLERANCE:
        raise ConfigError(f"{what}: a reset does not forget: the row goes on with the state of the episode before")


@contextmanager
def _tried(module: nn.Module) -> Iterator[None]:
    """Context manager that runs a module in evaluation mode, without gradients, and preserves the random state."""
    training = module.training
    module.eval()
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        yield
    module.train(training)


def _require(what: str, given: str, x: Tensor, out: Tensor, wanted: tuple[int, ...]) -> None:
    if not isinstance(out, Tensor):
        raise ConfigError(f"{what} answers a {type(out).__name__}; it must be a tensor {wanted}")
    if tuple(out.shape) != wanted:
        raise ConfigError(f"{what} maps {given} {tuple(x.shape)} to {tuple(out.shape)}; it must be {wanted}")
    if out.dtype != torch.float32:
        raise ConfigError(f"{what} answers {out.dtype}; it must be torch.float32")


def _require_state(what: str, state: State, like: State | None = None) -> None:
    if not isinstance(state, tuple) or not all(isinstance(part, Tensor) for part in state):
        raise ConfigError(f"{what} is no tuple of tensors")
    shapes = [tuple(part.shape) for part in state]
    if any(part.dtype != torch.float32 for part in state) or any(shape[:1] != (_ROWS,) for shape in shapes):
        raise ConfigError(f"{what} is {shapes}; it must be float32 tensors whose first axis is the {_ROWS} rows")
    if like is not None and shapes != (wanted := [tuple(part.shape) for part in like]):
        raise ConfigError(f"{what} has the shapes {shapes}; those of initial_state are {wanted}")


def _apart(a: Tensor, b: Tensor) -> float:
    return float(((a - b).abs() / b.abs().clamp(min=1)).max()) if a.numel() else 0.0
