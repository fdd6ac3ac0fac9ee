"""Custom networks: the guide's module trains, loads by NAVI_PLUGINS, and is checked at registration."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn

from navi_core.bench.learning.memory import memory_cases
from navi_core.bench.policy.core import core_names
from navi_core.bench.policy.encoder import encoder_names
from navi_core.config import EvalConfig, PolicyConfig, parse_config
from navi_core.config import registry as plugin_loader
from navi_core.config.base import settings_of
from navi_core.config.registry import CORE_NAMES, ENCODER_NAMES
from navi_core.errors import CheckpointError, ConfigError
from navi_core.evaluate import evaluate, evaluate_in_pieces
from navi_core.learn import train
from navi_core.models import ExportedPolicy, export_policy, load_checkpoint, load_exported, load_policy
from navi_core.models.exported import ActingModule, example_inputs
from navi_core.policy import build_core, build_encoder, build_policy, custom_networks, register_core, register_encoder
from navi_core.policy.cores import CORES, GRUBlock
from navi_core.policy.encoders import ENCODERS, RingCNN
from navi_core.presets import load_preset
from navi_core.record import RunDirectory
from navi_core.world import Field, NavigationEnv
from tests.own_parts import forgotten

ROOT = Path(__file__).parents[2]
OWN = "\n".join((ROOT / f"examples/{name}.py").read_text() for name in ("encoder", "core"))
SMALL = {"azimuth_bins": 32, "elevation_bins": 8}


@pytest.fixture(autouse=True)
def _forgotten(monkeypatch):
    yield from forgotten(monkeypatch, ENCODERS, CORES)


@pytest.fixture
def beside(tmp_path, monkeypatch):
    """Return the current directory, which is empty."""
    folder = tmp_path / "beside"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", [part for part in sys.path if part])
    return folder


def plugin(folder, monkeypatch, source=OWN, name="my_networks"):
    (folder / f"{name}.py").write_text(source)
    monkeypatch.setenv("NAVI_PLUGINS", name)


def forget_what_is_loaded(monkeypatch):
    """Be as a process that has not loaded anything."""
    monkeypatch.setattr(plugin_loader, "_LOADED", {})
    sys.modules.pop("my_networks", None)
    for names, parts in ((ENCODER_NAMES, ENCODERS), (CORE_NAMES, CORES)):
        names._custom.clear()
        for name in parts._sources:
            del parts._builders[name]
        parts._sources.clear()


@pytest.fixture
def trained(beside, monkeypatch, box_scene, tmp_path):
    """Return the checkpoint of a short training of the guide's networks."""
    plugin(beside, monkeypatch)
    settings = {
        "total_steps": 128,
        "actors": 2,
        "policy": {"encoder": "strips", "core": "leaky", **SMALL},
        "env": SMALL,
        "ppo": {"rollout": 32, "bptt": 16, "minibatch": 16, "epochs": 1},
    }
    config = load_preset("quick", settings)
    env = NavigationEnv(Field([box_scene]), config.actors, config.env, config.seed)
    with RunDirectory.open(tmp_path / "runs", asset="own", partition="a", config=config) as run:
        result = train(config, run, env=env)
    assert result.metrics["parity_ratio"] < 1e-5
    return result.checkpoint


def test_guide_networks_train_and_fly_in_another_process(trained, beside, monkeypatch, box_scene, tmp_path):
    loaded = load_checkpoint(trained)
    assert (loaded.encoder_backend, loaded.temporal_core) == ("strips", "leaky")
    initial = build_policy(loaded.train_config().policy, loaded.train_config().seed).state_dict()
    assert any(not torch.equal(weight, initial[name]) for name, weight in loaded.policy_state.items())
    scene = box_scene.save(tmp_path / "box.gmdag")
    flags = ["--scene", str(scene), "--starts", "1", "--steps", "5", "--no-record"]
    # As the console script begins: the current directory is not on its path.
    program = "import sys; sys.path[:] = filter(None, sys.path); from navi_core.cli.main import main; main()"
    command = [sys.executable, "-c", program, "evaluate", str(trained), *flags]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=beside, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_checkpoint_imports_no_plugin(trained, monkeypatch):
    monkeypatch.delenv("NAVI_PLUGINS")
    forget_what_is_loaded(monkeypatch)
    wanted = "cannot be built here: no encoder 'strips'; allowed: rayvit, spherical_cnn, ring_cnn; .*NAVI_PLUGINS="
    with pytest.raises(CheckpointError, match=wanted):
        load_policy(trained)
    assert "my_networks" not in sys.modules
    monkeypatch.setenv("NAVI_PLUGINS", "my_networks")
    assert load_policy(trained)[0].config.core == "leaky"


def test_cached_flights_are_keyed_by_network_sources(trained, beside, monkeypatch, box_scene, tmp_path):
    short, loaders = EvalConfig(starts=1, max_steps=3, **SMALL, block=1), [("box", lambda: box_scene)]
    flown = []
    monkeypatch.setattr("navi_core.evaluate.protocol.evaluate", lambda s, c: flown.append(s) or evaluate(s, c))
    (first,) = evaluate_in_pieces([trained], loaders, short, tmp_path / "pieces")
    evaluate_in_pieces([trained], loaders, short, tmp_path / "pieces")
    assert len(flown) == 1 and first.summary["own_networks"] == custom_networks("strips", "leaky")
    forget_what_is_loaded(monkeypatch)
    plugin(beside, monkeypatch, OWN.replace("x + h", "x - h").replace("torch.zeros(width)", "torch.zeros(width) "))
    evaluate_in_pieces([trained], loaders, short, tmp_path / "pieces")
    assert len(flown) == 2
    assert custom_networks("ring_cnn", "gru") is None


def test_custom_network_names_are_valid_settings(beside, monkeypatch):
    plugin(beside, monkeypatch)
    config = parse_config(PolicyConfig, {"core": "leaky", "core_layers": 2, "encoder": "ring_cnn", **SMALL})
    assert {each.name: each.allowed for each in settings_of(config)}["encoder"].endswith("ring_cnn, strips")
    policy = build_policy(config)
    assert len(policy.initial_state(3)) == 2
    # Names that were parsed elsewhere, as in a pickled configuration, find the module as well.
    forget_what_is_loaded(monkeypatch)
    assert sum(p.numel() for p in build_core("leaky", 16).parameters()) == 16


def test_benchmarks_include_custom_networks_only_by_name(beside, monkeypatch):
    plugin(beside, monkeypatch)
    assert core_names(["leaky"]) == ["torch-gru", "leaky"]
    assert encoder_names(["strips"]) == ["strips"]
    assert {case.core for case in memory_cases(cores=["leaky"])} == {"leaky"}
    assert "leaky" not in {*core_names(), *(case.core for case in memory_cases())}
    with pytest.raises(ConfigError, match="no temporal core 'lstm'"):
        memory_cases(cores=["lstm"])


def test_installed_plugin_needs_no_environment_variable(beside, monkeypatch):
    (beside / "my_networks.py").write_text(OWN)
    (beside / "my_lab-1.0.dist-info").mkdir()
    (beside / "my_lab-1.0.dist-info" / "entry_points.txt").write_text("[navi.plugins]\nnetworks = my_networks\n")
    monkeypatch.syspath_prepend(beside)
    plugin_loader._installed.cache_clear()
    try:
        assert parse_config(PolicyConfig, {"core": "leaky"}).core == "leaky"
        assert list(plugin_loader.loaded_plugins()) == ["my_networks"]
    finally:
        plugin_loader._installed.cache_clear()


def test_current_folder_is_last_on_the_import_path(beside, monkeypatch):
    plugin(beside, monkeypatch, "raise SystemExit", name="code")  # also a module of Python
    with pytest.raises(ConfigError, match=r"no encoder 'strips'; .*loaded: code \(.*python3"):
        parse_config(PolicyConfig, {"encoder": "strips"})
    assert sys.path[-1] == str(beside)


@pytest.mark.parametrize(
    ("names", "source", "reported"),
    [
        ("my_missing", None, "NAVI_PLUGINS=my_missing cannot be imported: there is no module my_missing; it is looked"),
        ("my_networks", "import my_missing", r"my_networks\.py:1: ModuleNotFoundError: No module named 'my_missing'"),
        (
            "my_networks",
            "\n1 / 0",
            r"NAVI_PLUGINS=my_networks cannot be imported: .*my_networks\.py:2: ZeroDivisionError",
        ),
        ("my_networks", "import torch\ntorch.zeros(2).view(3)", r"my_networks\.py:2: RuntimeError: shape"),
        ("my_networks", "import torch\ntorch.nn.Linear('x', 3)", r"my_networks\.py:2: TypeError"),
        ("my_networks", "def x(:", r"SyntaxError: .*my_networks\.py, line 1"),
        ("my_networks", "raise SystemExit(3)", "SystemExit: 3"),
        ("my_networks.py", "", "there is no module my_networks.py"),
        ("my/networks.py", "", "is not the name of a module: my_lab.networks means"),
        (
            "my_networks",
            "from navi_core.policy import register_core\nregister_core('gru', print)",
            r"my_networks\.py:2: temporal core 'gru' is taken \(built in\); register print under another name",
        ),
    ],
)
def test_unloadable_module_error_names_it(beside, monkeypatch, names, source, reported):
    if source is not None:
        (beside / "my_networks.py").write_text(source)
    monkeypatch.setenv("NAVI_PLUGINS", names)
    with pytest.raises(ConfigError, match=reported):
        parse_config(PolicyConfig, {})


def test_duplicate_name_is_refused_and_redefinition_replaces():
    def defined(layers):
        class Mine(GRUBlock):
            depth = layers

        return Mine

    register_core("mine", defined(1))
    again = register_core("mine")(defined(2))
    assert CORES["mine"] is again
    with pytest.raises(ConfigError, match=r"'mine' is taken \(.*Mine of tests\.policy"):
        register_core("mine", GRUBlock)
    with pytest.raises(ConfigError, match=r"'gru' is taken \(built in\)"):
        register_core("gru", again)
    with pytest.raises(ConfigError, match="a name is small letters"):
        register_encoder("My-Net", RingCNN)
    register_encoder("ring_again", partial(RingCNN))
    assert build_encoder("ring_again", 32, 8)(torch.zeros(2, 3, 32, 8)).shape == (2, 128)


class Answers(nn.Module):
    """Returns given outputs."""

    def __init__(self, answer):
        super().__init__()
        self.answer = answer

    def forward(self, obs):
        return self.answer(obs)


@pytest.mark.parametrize(
    ("factory", "reported"),
    [
        (
            lambda a, e, **_: Answers(lambda obs: obs.flatten(1)),
            r"encoder mine maps observations \(3, 3, 32, 8\) to \(3, 768\); it must be \(3, 128\)",
        ),
        (lambda a, e, **_: Answers(lambda obs: obs.new_zeros(3, 128).double()), r"answers torch\.float64"),
        (lambda a, e, **_: Answers(lambda obs: (obs, obs)), r"answers a tuple; it must be a tensor \(3, 128\)"),
        (lambda a, e, **_: 3, "made a int, no nn.Module"),
        (lambda a, e, patch: 3, "called with .azimuth_bins, elevation_bins, width, depth_shift, depth_scale"),
    ],
)
def test_encoder_breaking_its_contract_is_refused_when_built(factory, reported):
    register_encoder("mine", factory)
    with pytest.raises(ConfigError, match=reported):
        build_policy(PolicyConfig(encoder="mine", core="gru", **SMALL))


class Summing(GRUBlock):
    """Core that sums its inputs; its faults are options."""

    def __init__(self, width, *, forgets=True, shown=None, carried=1.0, kind=tuple):
        super().__init__(width)
        self.forgets, self.shown, self.carried, self.kind = forgets, shown, carried, kind

    def step(self, x, state, reset=None):
        h = state[0] if reset is None or not self.forgets else state[0] * (~reset)[:, None]
        return (x + h)[:, : self.shown], self.kind((x + h,))

    def forward(self, x, state, reset=None):
        outputs, state = [], (state[0] * self.carried,)
        for t in range(x.shape[1]):
            y, state = self.step(x[:, t], tuple(state), None if reset is None else reset[:, t])
            outputs.append(y)
        return torch.stack(outputs, 1), state


@pytest.mark.parametrize(
    ("wrong", "reported"),
    [
        ({"forgets": False}, "a reset does not forget"),
        ({"carried": 0.5}, "a sequence is not its steps"),
        ({"shown": 5}, r"step maps inputs \(3, 16\) to \(3, 5\); it must be \(3, 16\)"),
        ({"kind": list}, "is no tuple of tensors"),
    ],
)
def test_core_breaking_its_contract_is_refused_when_built(wrong, reported):
    register_core("sum", Summing)
    build_core("sum", 16)
    register_core("wrong_sum", partial(Summing, **wrong))
    with pytest.raises(ConfigError, match=reported):
        build_core("wrong_sum", 16)
    register_core("no_core", lambda width: nn.Linear(width, width))
    with pytest.raises(ConfigError, match=r"made a Linear; it must be a navi_core\.policy\.TemporalCore"):
        build_core("no_core")


def test_registration_check_keeps_initial_weights():
    register_core("own_gru", lambda width: GRUBlock(width))
    register_encoder("own_ring", lambda a, e, **options: RingCNN(a, e, **options))
    own, same = (
        build_policy(PolicyConfig(encoder=encoder, core=core, **SMALL), 3).state_dict()
        for encoder, core in (("own_ring", "own_gru"), ("ring_cnn", "gru"))
    )
    assert own.keys() == same.keys() and all(torch.equal(own[name], same[name]) for name in own)


@pytest.mark.slow
def test_exported_program_needs_no_plugin_module(beside, monkeypatch, tmp_path):
    pytest.importorskip("onnxscript")
    pytest.importorskip("onnxruntime")
    plugin(beside, monkeypatch)
    config = parse_config(PolicyConfig, {"encoder": "strips", "core": "leaky", "width": 16, **SMALL})
    policy = build_policy(config)
    file, _ = export_policy(policy, tmp_path / "own.onnx", kind="onnx", rows=2)
    inputs = example_inputs(policy, 2)
    with torch.no_grad():
        wanted = ActingModule(policy)(*inputs)
    monkeypatch.delenv("NAVI_PLUGINS")
    forget_what_is_loaded(monkeypatch)
    with pytest.raises(ConfigError, match="no encoder 'strips'"):
        build_policy(config)
    program = load_exported(file)
    assert [part.shape for part in program.initial_state()] == [part.shape for part in inputs[3:]]
    got = program.act(*inputs[:3], program.initial_state())
    assert torch.allclose(got.action, wanted[0], atol=1e-5)
    description = json.loads(json.dumps(program.metadata))
    for state in ([[2, 2**40]], [[3, 16]], [[2, -1]], [["2", 16]], 5):
        with pytest.raises(CheckpointError, match="not an exported policy"):
            ExportedPolicy.__init__(program, file, json.dumps(description | {"state": state}))
