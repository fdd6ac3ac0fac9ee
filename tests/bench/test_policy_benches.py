"""Benchmarks of encoders and cores: rows that follow the list, a peer at 1, names that are refused."""

import math
import sys
import types

import pytest
import torch
from torch import nn

from navi_core.bench.policy import core as core_bench
from navi_core.bench.policy.core import core_names, run_core
from navi_core.bench.policy.encoder import build_variant, encoder_names, run_encoder, saved_activations
from navi_core.bench.policy.serve import run_serve, runtime_names
from navi_core.bench.timing import take_turns
from navi_core.config import PolicyConfig
from navi_core.errors import ConfigError
from navi_core.learn.run.process import torch_threads
from navi_core.policy.cores import Mamba2Block


def test_encoder_rows_follow_the_list_and_name_their_peer():
    names = encoder_names(("materialised", "rayvit", "ring_cnn"))
    rows = list(run_encoder(names, ((32, 16), (16, 8)), batch=2, repeats=1))
    assert [(row["encoder"], row["size"]) for row in rows] == [
        (name, size) for size in ("32x16", "16x8") for name in ("materialised", "rayvit", "ring_cnn")
    ]
    assert rows[0]["speedup"] == rows[3]["speedup"] == 1
    assert all(row["both_ms"] > row["forward_ms"] / 4 > 0 and row["saved_mb"] > 0 and row["mmacs"] > 0 for row in rows)
    assert rows[0]["parameters"] == rows[1]["parameters"] == 306_560
    assert rows[0]["mmacs"] > rows[1]["mmacs"]  # unused keys, values and queries


def test_the_materialised_peer_is_rayvit_with_other_means():
    peer, obs = build_variant("materialised", 32, 16).eval(), torch.rand(3, 3, 32, 16)
    torch.testing.assert_close(peer(obs), peer.encoder(obs), atol=1e-5, rtol=1e-5)
    peer.train()
    assert not torch.equal(peer(obs), peer(obs))


def test_saved_activations_count_each_storage_once_and_no_parameter():
    layer, x = nn.Linear(8, 8), torch.randn(4, 8)
    assert saved_activations(layer, lambda: layer(x).relu()) == 2 * 4 * 8 * 4
    assert saved_activations(layer, lambda: layer(x).detach()) in (0, 4 * 8 * 4)


def test_core_rows_follow_the_list_and_name_their_peer():
    rows = list(run_core(core_names(["mamba2", "gru"]), ((3, 5), (2, 9)), repeats=1))
    assert [(row["core"], row["shape"]) for row in rows] == [
        (name, shape) for shape in ("3x5", "2x9") for name in ("torch-gru", "mamba2", "gru")
    ]
    assert rows[0]["times_peer"] == rows[3]["times_peer"] == 1
    assert [row["parameters"] for row in rows[:3]] == [99_072, 117_388, 99_072]
    assert rows[1]["state_floats"] == 384 * 3 + 4 * 64 * 64 and math.isfinite(rows[1]["step_ms"])


def test_serving_is_timed_with_its_state_and_parity():
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    config = PolicyConfig(encoder="ring_cnn", core="gru", azimuth_bins=16, elevation_bins=4)
    rows = list(run_serve([config], runtime_names(["onnx"]), repeats=3))
    assert [row["runtime"] for row in rows] == ["eager", "onnx"]
    assert rows[0]["ratio"] == 1 and rows[0]["strays"] == 0 < rows[1]["build_seconds"] and rows[1]["strays"] <= 1e-5
    assert all(row["p95_ms"] >= row["p50_ms"] > 0 for row in rows)
    with pytest.raises(ConfigError, match="unknown runtime 'tensorrt'; allowed: eager, onnx, aoti"):
        runtime_names(["tensorrt"])


def test_unknown_names_and_a_missing_fused_core_are_refused():
    with pytest.raises(ConfigError, match="unknown encoder 'resnet'; allowed: materialised, rayvit"):
        encoder_names(("resnet",))
    with pytest.raises(ConfigError, match="unknown core 'lstm'; allowed: torch-gru, mamba2"):
        core_names(["lstm"])
    if not core_bench.fused_available():
        assert "mamba-ssm" not in core_names()
        with pytest.raises(ConfigError, match="mamba-ssm needs the package mamba_ssm and a CUDA device"):
            core_names(["mamba-ssm"])


class OfficialMamba2(nn.Module):
    """The parameters of mamba_ssm.modules.mamba2.Mamba2 by name and shape, as its state dict has them."""

    def __init__(self, d_model, d_state, d_conv, expand, headdim, ngroups):
        super().__init__()
        inner, channels = expand * d_model, expand * d_model + 2 * ngroups * d_state
        heads = inner // headdim
        self.in_proj = nn.Linear(d_model, inner + channels + heads, bias=False)
        self.conv1d = nn.Conv1d(channels, channels, d_conv, groups=channels, padding=d_conv - 1)
        self.dt_bias, self.A_log, self.D = (nn.Parameter(torch.randn(heads)) for _ in range(3))
        self.norm = nn.Module()
        self.norm.weight = nn.Parameter(torch.randn(inner))
        self.out_proj = nn.Linear(inner, d_model, bias=False)


def test_weights_go_to_the_fused_core_and_back(monkeypatch):
    module = types.ModuleType("mamba_ssm.modules.mamba2")
    module.Mamba2 = OfficialMamba2
    monkeypatch.setitem(sys.modules, "mamba_ssm", types.ModuleType("mamba_ssm"))
    monkeypatch.setitem(sys.modules, "mamba_ssm.modules", types.ModuleType("mamba_ssm.modules"))
    monkeypatch.setitem(sys.modules, "mamba_ssm.modules.mamba2", module)
    monkeypatch.setattr(core_bench, "fused_available", lambda: True)
    block = Mamba2Block(128)
    fused = core_bench.to_fused(block)
    assert torch.equal(fused.in_proj.weight, block.in_proj.weight)
    back = core_bench.from_fused(fused, Mamba2Block(128))
    assert all(torch.equal(a, b) for a, b in zip(back.state_dict().values(), block.state_dict().values()))
    with pytest.raises(ConfigError, match="does not fit"):
        core_bench.from_fused(fused, Mamba2Block(64))


def test_thread_counts_are_put_back():
    before = torch.get_num_threads()
    with torch_threads(before + 1):
        assert torch.get_num_threads() == before + 1
    assert torch.get_num_threads() == before


def test_calls_alternate_singly_or_in_batches():
    called: list[str] = []
    calls = {name: lambda name=name: called.append(name) for name in "ab"}
    assert take_turns(calls, 2, warmup=1)["b"].shape == (2, 2) and "".join(called) == "ab" + "abab"
    called.clear()
    times = take_turns(calls, 5, warmup=0, in_a_row=3)
    assert "".join(called) == "aaabbbaabb" and all(len(times[name]) == 5 for name in calls)
