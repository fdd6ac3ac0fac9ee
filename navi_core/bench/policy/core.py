"""Benchmark of temporal (recurrent) cores against `torch.nn.GRU`: a training sequence, and one acting step.

The peer `torch-gru` is `torch.nn.GRU`, which has no resets. If mamba-ssm and a CUDA device are available, its fused
Mamba-2 is measured with our weights (no state, no resets), for comparison only: training and serving do not accept it.
"""

import importlib.util
from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, Any

import torch
from torch import Tensor, nn

from navi_core.bench.report import Option, Repeats, Report, Row, Threads, figure, known_names, report, sizes
from navi_core.bench.timing import CPU, WALL, median, take_turns
from navi_core.config.registry import CORE_NAMES as KNOWN_CORES
from navi_core.config.registry import load_plugins
from navi_core.errors import ConfigError
from navi_core.learn.run.process import torch_threads
from navi_core.policy import build_core
from navi_core.policy.cores import Mamba2Block

CORE_NAMES = ("torch-gru", *KNOWN_CORES.built_in, "mamba-ssm")
"""Cores measured by default, the peer first. User-defined cores are measured by name."""

WIDTH = 128
_RESET_SHARE = 0.02


def fused_available() -> bool:
    """Return whether mamba-ssm is installed and a CUDA device is available."""
    return importlib.util.find_spec("mamba_ssm") is not None and torch.cuda.is_available()


def core_names(names: Sequence[str] | None = None) -> list[str]:
    """Return the names of the cores to measure (default: the available `CORE_NAMES`), the reference core first.

    Raises:
        ConfigError: An unknown core, or mamba-ssm asked for by name where it cannot run.
    """
    load_plugins()
    chosen = known_names(
        "core",
        (CORE_NAMES[0], *(CORE_NAMES if names is None else names)),
        dict.fromkeys((*CORE_NAMES, *KNOWN_CORES.all())),
    )
    if "mamba-ssm" in chosen and not fused_available():
        if names is not None:
            raise ConfigError("core mamba-ssm needs the package mamba_ssm and a CUDA device; neither is a stand-in")
        chosen.remove("mamba-ssm")
    return chosen


def run_core(
    names: Sequence[str],
    shapes: Sequence[tuple[int, int]],
    *,
    layers: int = 1,
    threads: int = 1,
    repeats: int = 15,
    device: str = "cpu",
) -> Iterator[Row]:
    """Benchmark every temporal core at every shape in turns; the first core is the reference of its shape.

    Args:
        names: From `core_names`.
        shapes: Rows B and steps T of a sequence.
        layers: Layers of each core.
        threads: Torch threads.
        repeats: Turns of each; medians count.
        device: Where the cores run; on a CUDA device every call waits for its end and wall time counts.

    Yields:
        Rows with the keys:
        core: Name of the core.
        layers: Layers of the core.
        shape: Rows × steps.
        threads: Torch threads.
        parameters: Trainable parameters.
        state_floats: Size of the recurrent state of a row [floats].
        step_ms: CPU time of one acting step of all rows [ms]; NaN where the core has none.
        both_ms: CPU time of forward and backward over the sequence [ms].
        times_peer: Forward and backward time over that of the first case of this shape in this run.
    """
    clock = CPU if torch.device(device).type == "cpu" else WALL
    with torch_threads(threads):
        for rows, steps in shapes:
            subjects = [_Subject(name, rows, steps, layers, torch.device(device)) for name in names]
            both = take_turns({subject.name: subject.both for subject in subjects}, repeats)
            single = take_turns({s.name: s.step for s in subjects if s.step is not None}, repeats)
            peer = median(both[subjects[0].name], clock)
            for subject in subjects:
                seconds = median(both[subject.name], clock)
                step = median(single[subject.name], clock) if subject.name in single else float("nan")
                yield {
                    "core": subject.name,
                    "layers": layers,
                    "shape": f"{rows}x{steps}",
                    "threads": threads,
                    "parameters": sum(p.numel() for p in subject.module.parameters()),
                    "state_floats": subject.state_floats,
                    "step_ms": 1e3 * step,
                    "both_ms": 1e3 * seconds,
                    "times_peer": seconds / peer,
                }


class _Subject:
    """Temporal core under test with its inputs; `both` (forward and backward) and `step` are timed."""

    def __init__(self, name: str, rows: int, steps: int, layers: int, device: torch.device) -> None:
        self.name = name
        generator = torch.Generator().manual_seed(0)
        shape = (rows, steps, WIDTH)
        x = torch.randn(shape, generator=generator).to(device).requires_grad_()
        weight = torch.randn(shape, generator=generator).to(device)
        reset = torch.rand(shape[:2], generator=generator) < _RESET_SHARE
        reset[0, steps // 2] = True
        reset = reset.to(device)
        self.step: Callable[[], Any] | None = None
        self.state_floats = 0
        if name == "torch-gru":
            self.module: nn.Module = nn.GRU(WIDTH, WIDTH, layers, batch_first=True)
            state = torch.zeros(layers, rows, WIDTH, device=device)
            run: Callable[[], Tensor] = lambda: self.module(x, state)[0]  # noqa: E731
            self.step = _without_gradient(lambda: self.module(x[:, :1], state))
            self.state_floats = layers * WIDTH
        elif name == "mamba-ssm":
            self.module = to_fused(Mamba2Block(WIDTH))
            run = lambda: self.module(x)  # noqa: E731
        else:
            core = build_core(name, WIDTH, layers).to(device)
            self.module = core
            carried = tuple(0.1 * torch.randn_like(part) for part in core.initial_state(rows))
            run = lambda: core(x, carried, reset)[0]  # noqa: E731
            self.step = _without_gradient(lambda: core.step(x[:, 0], carried, reset[:, 0]))
            self.state_floats = sum(part[0].numel() for part in carried)
        self.module.to(device)

        def both() -> None:
            self.module.zero_grad(set_to_none=True)
            (run() * weight).sum().backward()
            if device.type == "cuda":
                torch.cuda.synchronize(device)

        self.both = both


def _without_gradient(call: Callable[[], Any]) -> Callable[[], None]:
    def run() -> None:
        with torch.no_grad():
            call()
        if torch.cuda.is_available():
            torch.cuda.synchronize()

    return run


def to_fused(block: Mamba2Block) -> nn.Module:
    """Convert a Mamba-2 block to mamba-ssm's fused module with the same weights.

    Raises:
        ConfigError: mamba-ssm cannot run here.
    """
    if not fused_available():
        raise ConfigError("mamba-ssm needs the package mamba_ssm and a CUDA device")
    from mamba_ssm.modules.mamba2 import Mamba2

    fused: nn.Module = Mamba2(
        d_model=block.width,
        d_state=block.state_size,
        d_conv=block.kernel,
        expand=block.inner // block.width,
        headdim=block.head_width,
        ngroups=block.groups,
    )
    fused.load_state_dict(block.state_dict())
    return fused


def from_fused(fused: nn.Module, block: Mamba2Block) -> Mamba2Block:
    """Copy the weights of mamba-ssm's fused Mamba-2 into a block and return it.

    Raises:
        ConfigError: The shapes of the weights differ.
    """
    try:
        block.load_state_dict(fused.state_dict())
    except RuntimeError as error:
        raise ConfigError(f"the fused block does not fit: {error}") from None
    return block


def core(
    name: Annotated[
        list[str] | None,
        Option(
            flag="--core", help="gru, mamba2, mingru, mambapy, mamba-ssm (CUDA only) or user-defined; may be repeated."
        ),
    ] = None,
    shape: Annotated[list[str] | None, Option(help="Rows x steps; may be repeated.")] = None,
    layers: Annotated[int, Option(min=1, max=4, help="Layers of each core.")] = 1,
    threads: Threads = 1,
    repeats: Repeats = 15,
    device: Annotated[str, Option(help="cpu or cuda.")] = "cpu",
) -> Report:
    """Benchmark temporal (recurrent) cores against `torch.nn.GRU`."""
    shapes = sizes(shape or ["64x8", "8x256"], "--shape")
    rows = list(
        run_core(core_names(name or None), shapes, layers=layers, threads=threads, repeats=repeats, device=device)
    )
    return report(
        f"temporal cores, {device}",
        rows,
        {
            "core": figure("core"),
            "rows x steps": figure("shape"),
            "layers": figure("layers"),
            "parameters": figure("parameters"),
            "state": figure("state_floats"),
            "step [ms]": figure("step_ms"),
            "fwd+bwd [ms]": figure("both_ms"),
            "× torch-gru time": figure("times_peer"),
        },
        threads=threads,
        words=2,
    )
