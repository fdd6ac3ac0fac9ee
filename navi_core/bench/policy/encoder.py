"""Benchmark of encoders: time, multiply-accumulates and activation memory, against materialised attention.

The peer `materialised` is rayvit with the same parameters in the usual implementation: attention weights of every head
as a tensor, dropout 0.1 behind them and behind both sublayers, and all tokens of the last layer computed although only
CLS is used.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Annotated, Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from navi_core.bench.report import (
    Option,
    Repeats,
    Report,
    Row,
    Sizes,
    Threads,
    figure,
    known_names,
    report,
    sizes,
)
from navi_core.bench.timing import median, take_turns
from navi_core.config.registry import ENCODER_NAMES, load_plugins
from navi_core.learn.run.process import torch_threads
from navi_core.policy import build_encoder, count_macs
from navi_core.policy.encoders import RayViT

ENCODER_VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "materialised": ("rayvit", {}),
    "rayvit": ("rayvit", {}),
    "rayvit+area": ("rayvit", {"area_attention": True}),
    "spherical_cnn": ("spherical_cnn", {}),
    "spherical_cnn+separable": ("spherical_cnn", {"separable_refinement": True}),
    "ring_cnn": ("ring_cnn", {}),
}
"""Name → encoder backend and its options."""


def encoder_names(names: Sequence[str] = ()) -> list[str]:
    """Return the names of the encoders to measure, by default `ENCODER_VARIANTS`; the first is the reference.

    Raises:
        ConfigError: An unknown variant.
    """
    load_plugins()
    return known_names("encoder", names or ENCODER_VARIANTS, dict.fromkeys((*ENCODER_VARIANTS, *ENCODER_NAMES.all())))


def run_encoder(
    names: Sequence[str], bins: Sequence[tuple[int, int]], *, batch: int = 32, threads: int = 1, repeats: int = 7
) -> Iterator[Row]:
    """Benchmark every encoder at every size in turns; the first encoder is the reference of its size.

    Args:
        names: From `encoder_names`.
        bins: Azimuth and elevation bins.
        batch: Observations of a call.
        threads: Torch threads.
        repeats: Turns of each; medians count.

    Yields:
        Rows with the keys:
        encoder: Name of the variant.
        size: Azimuth × elevation bins.
        batch: Observations of a call.
        threads: Torch threads.
        parameters: Trainable parameters.
        mmacs: Measured multiply-accumulates of one observation's forward [million].
        forward_ms: CPU time of a forward without gradients [ms].
        both_ms: CPU time of forward and backward [ms].
        saved_mb: Activations kept for the backward [MB].
        speedup: Time of the first variant over this one's, forward and backward, in this run.

    Raises:
        ConfigError: A resolution does not fit an encoder.
    """
    with torch_threads(threads):
        for azimuth, elevation in bins:
            obs = torch.rand(batch, 3, azimuth, elevation, generator=torch.Generator().manual_seed(0))
            encoders = {name: build_variant(name, azimuth, elevation) for name in names}
            calls = {name: torch.no_grad()(partial(module, obs)) for name, module in encoders.items()}
            forward = take_turns(calls, repeats)
            both = take_turns({name: _both(module, obs) for name, module in encoders.items()}, repeats)
            peer = median(both[names[0]])
            for name, module in encoders.items():
                seconds = median(both[name])
                yield {
                    "encoder": name,
                    "size": f"{azimuth}x{elevation}",
                    "batch": batch,
                    "threads": threads,
                    "parameters": sum(p.numel() for p in module.parameters()),
                    "mmacs": count_macs(partial(module, obs[:1])) / 1e6,
                    "forward_ms": 1e3 * median(forward[name]),
                    "both_ms": 1e3 * seconds,
                    "saved_mb": saved_activations(module, partial(module, obs)) / 1e6,
                    "speedup": peer / seconds,
                }


def saved_activations(module: nn.Module, call: Callable[[], Any]) -> int:
    """Measure the bytes of activations that `call` saves for the backward pass, without the module's parameters."""
    kept: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        output = call()  # held until the count is made, or storages would be counted under a reused address
    for parameter in module.parameters():
        kept.pop(parameter.untyped_storage().data_ptr(), None)
    del output
    return sum(kept.values())


def build_variant(name: str, azimuth: int, elevation: int) -> nn.Module:
    """Build an encoder of `ENCODER_VARIANTS`, or one registered under another name."""
    backend, options = ENCODER_VARIANTS.get(name, (name, {}))
    encoder = build_encoder(backend, azimuth, elevation, **options)
    return _Materialised(encoder) if name == "materialised" else encoder


def _both(module: nn.Module, obs: Tensor) -> Callable[[], None]:
    weight = torch.randn(len(obs), 128, generator=torch.Generator().manual_seed(1))

    def call() -> None:
        module.zero_grad(set_to_none=True)
        (module(obs) * weight).sum().backward()

    return call


class _Materialised(nn.Module):
    """Rayvit encoder with materialised attention and dropout, where every layer computes all queries."""

    def __init__(self, encoder: nn.Module, dropout: float = 0.1) -> None:
        super().__init__()
        assert isinstance(encoder, RayViT)
        self.encoder, self.dropout = encoder, dropout

    def forward(self, obs: Tensor) -> Tensor:
        encoder = self.encoder
        patches = encoder.patches(encoder.scaling(obs)).flatten(2).transpose(1, 2) + encoder.position
        x = torch.cat((encoder.cls.expand(len(obs), 1, -1), patches), dim=1)
        for layer in encoder.layers:
            rows, tokens, width = x.shape
            parts = layer.qkv(layer.norm1(x)).view(rows, tokens, 3, layer.heads, width // layer.heads)
            q, k, v = parts.permute(2, 0, 3, 1, 4)
            weights = (q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])).softmax(-1)
            mixed = (self._drop(weights) @ v).transpose(1, 2).flatten(2)
            x = x + self._drop(layer.out(mixed))
            x = x + self._drop(layer.mlp(layer.norm2(x)))
        embedding: Tensor = encoder.project(encoder.norm(x[:, 0]))
        return embedding

    def _drop(self, x: Tensor) -> Tensor:
        return F.dropout(x, self.dropout, self.training)


def encoder(
    variant: Annotated[
        list[str] | None,
        Option(
            flag="--encoder",
            help="materialised, rayvit, rayvit+area, spherical_cnn, spherical_cnn+separable, ring_cnn or user-defined; "
            "may be repeated, the first is the peer.",
        ),
    ] = None,
    size: Sizes = None,
    batch: Annotated[int, Option(min=1, max=4096, help="Observations of a call.")] = 32,
    threads: Threads = 1,
    repeats: Repeats = 7,
) -> Report:
    """Benchmark encoders, forward and backward."""
    names = encoder_names(variant or ())
    rows = list(run_encoder(names, sizes(size or ["256x48"]), batch=batch, threads=threads, repeats=repeats))
    return report(
        f"encoders, batch {batch}, CPU time",
        rows,
        {
            "encoder": figure("encoder"),
            "size": figure("size"),
            "parameters": figure("parameters"),
            "M MAC": figure("mmacs"),
            "forward [ms]": figure("forward_ms"),
            "fwd+bwd [ms]": figure("both_ms"),
            "saved [MB]": figure("saved_mb"),
            f"× {names[0]}": figure("speedup"),
        },
        threads=threads,
        words=2,
    )
