"""Exported policies: the same function as the policy over a flight with resets, or no file at all."""

import json
import zipfile

import pytest
import torch
from typer.testing import CliRunner

from navi_core.config import EnvConfig, PolicyConfig, TrainConfig
from navi_core.errors import CheckpointError, ConfigError
from navi_core.models import export_checkpoint, export_policy, load_checkpoint, load_exported, programs
from navi_core.models.exported import METADATA_KEY, Acted, ActingModule, example_inputs, recurrent_parity
from navi_core.policy import build_policy

pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")
SMALL = dict(azimuth_bins=16, elevation_bins=8, width=16)


def small_policy(**options):
    policy = build_policy(PolicyConfig(**(SMALL | options)), seed=1).eval()
    with torch.no_grad():  # heads as large as after training, so that a wrong state would show
        for parameter in policy.heads.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))
    return policy


@pytest.mark.parametrize(
    ("encoder", "core", "layers", "rows"),
    [
        ("rayvit", "mamba2", 1, 3),
        pytest.param("rayvit", "mamba2", 2, 1, marks=pytest.mark.slow),
        pytest.param("ring_cnn", "gru", 1, 1, marks=pytest.mark.slow),
        pytest.param("spherical_cnn", "mambapy", 1, 2, marks=pytest.mark.slow),
    ],
)
def test_an_onnx_program_flies_as_the_policy_does(tmp_path, encoder, core, layers, rows):
    width = 32 if core == "mamba2" else 16
    policy = small_policy(encoder=encoder, core=core, core_layers=layers, width=width)
    path, parity = export_policy(policy, tmp_path / "p.onnx", kind="onnx", rows=rows, metadata={"run_id": "r"})
    assert parity.steps == 200 and parity.resets >= 3 and parity.worst <= 1e-5
    loaded = load_exported(path)
    assert loaded.config == policy.config and loaded.rows == rows and loaded.metadata["run_id"] == "r"
    assert [p.shape for p in loaded.initial_state()] == [p.shape for p in policy.initial_state(rows)]
    obs, aux, reset, *state = example_inputs(policy, rows, seed=9)
    action, value, latent, new = loaded.act(obs, aux, reset, tuple(state))
    wanted = ActingModule(policy)(obs, aux, reset, *state)
    for ours, theirs in zip((action, value, latent, *new), wanted):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["p.onnx"]


@pytest.mark.slow
def test_a_beta_policy_exports_without_its_log_density(tmp_path):
    """No program has it, and ONNX has no logarithm of the gamma function in double precision."""
    policy = small_policy(encoder="ring_cnn", core="gru", distribution="beta")
    _, parity = export_policy(policy, tmp_path / "p.onnx", kind="onnx")
    assert parity.worst <= 1e-5


@pytest.mark.parametrize("distribution", ["discrete", "q"])
def test_a_policy_without_memory_has_no_state_to_compare(distribution):
    policy = small_policy(encoder="ring_cnn", core="none", distribution=distribution)

    def again(obs, aux, reset, state):
        out = policy.act(obs, aux, state, reset, None)
        return Acted(out.action, out.value, out.embedding, out.state)

    parity = recurrent_parity(policy, again, steps=8)
    assert parity.worst == 0 and parity.state == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {"core": "none", "distribution": "q"},
        {"core": "gru", "distribution": "q", "dueling": True},
        {"core": "mambapy", "core_layers": 2, "distribution": "discrete"},
        {"core": "gru", "recovery": True, "place_memory": True},
        {"core": "gru", "separate_value": True, "goal": True},
    ],
    ids=lambda options: " ".join(map(str, options.values())),
)
def test_every_kind_of_policy_exports(tmp_path, options):
    _, parity = export_policy(small_policy(encoder="ring_cnn", **options), tmp_path / "p.onnx", kind="onnx", rows=2)
    assert parity.worst <= 1e-5


@pytest.mark.slow
def test_a_policy_without_auxiliary_input_exports_too(tmp_path):
    policy = small_policy(encoder="ring_cnn", core="gru", aux="off")
    _, parity = export_policy(policy, tmp_path / "p.onnx", kind="onnx")
    assert parity.worst <= 1e-5


def test_parity_detects_a_state_not_carried_or_not_reset():
    policy = small_policy(encoder="ring_cnn", core="gru")

    def forgetful(obs, aux, reset, state):
        out = policy.act(obs, aux, policy.initial_state(len(obs)), reset, None)
        return Acted(out.action, out.value, out.embedding, out.state)

    def deaf_to_resets(obs, aux, reset, state):
        out = policy.act(obs, aux, state, torch.zeros_like(reset), None)
        return Acted(out.action, out.value, out.embedding, out.state)

    def itself(obs, aux, reset, state):
        out = policy.act(obs, aux, state, reset, None)
        return Acted(out.action, out.value, out.embedding, out.state)

    def broken(obs, aux, reset, state):
        acted = itself(obs, aux, reset, state)
        return acted._replace(value=acted.value * float("nan"))

    assert recurrent_parity(policy, itself, rows=2, steps=40).worst == 0
    assert recurrent_parity(policy, forgetful, rows=2, steps=40).worst > 1e-3
    assert recurrent_parity(policy, deaf_to_resets, rows=2, steps=40).worst > 1e-3
    assert not recurrent_parity(policy, broken, rows=2, steps=8).worst <= 1e-5


def test_diverging_program_is_deleted_and_the_old_file_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(programs, "GATE_TOLERANCE", -1.0)
    former = tmp_path / "p.onnx"
    former.write_bytes(b"former")
    with pytest.raises(CheckpointError, match=r"strays from the policy by .* it was deleted"):
        export_policy(small_policy(encoder="ring_cnn", core="gru"), former, kind="onnx")
    assert former.read_bytes() == b"former" and list(tmp_path.iterdir()) == [former]


def test_metadata_that_contradicts_the_program_is_refused(tmp_path):
    onnx = pytest.importorskip("onnx")
    file, _ = export_policy(small_policy(encoder="ring_cnn", core="gru"), tmp_path / "p.onnx", kind="onnx")
    model = onnx.load(file)
    (entry,) = (each for each in model.metadata_props if each.key == METADATA_KEY)
    reported = json.loads(entry.value)
    changes = [
        ({"state": [[1, 8]]}, r"state_0 is \(1, 8\), its program takes \(1, 16\)"),
        ({"state": []}, r"state_0 is None, its program takes \(1, 16\)"),
        ({"state": [[1, 2**24]] * 17}, "a state of 17 parts with more than"),
        ({"rows": 2, "state": [[2, 16]]}, r"is \(2.* its program takes \(1"),
        ({"policy": reported["policy"] | {"goal": True}}, r"aux is \(1, 7\), its program takes \(1, 3\)"),
        (
            {"policy": reported["policy"] | {"azimuth_bins": 64}},
            r"obs is \(1, 3, 64, 8\), its program takes .*16",
        ),
    ]
    for change, message in changes:
        entry.value = json.dumps(reported | change)
        onnx.save(model, file)
        with pytest.raises(CheckpointError, match=message):
            load_exported(file)


@pytest.mark.slow
def test_interrupted_export_leaves_no_files(tmp_path, monkeypatch):
    def killed(*_, **__):
        assert list(tmp_path.iterdir()) == []
        raise KeyboardInterrupt

    monkeypatch.setattr(programs, "recurrent_parity", killed)
    with pytest.raises(KeyboardInterrupt):
        export_policy(small_policy(encoder="ring_cnn", core="gru"), tmp_path / "p.onnx", kind="onnx")


@pytest.mark.slow
def test_a_compiled_package_flies_as_the_policy_does(tmp_path):
    for encoder, core, width in (("ring_cnn", "gru", 16), ("rayvit", "mamba2", 32)):
        policy = small_policy(encoder=encoder, core=core, width=width)
        path, parity = export_policy(policy, tmp_path / "p.pt2", kind="aoti", rows=2)
        assert parity.worst <= 1e-5
        assert load_exported(path).config == policy.config


@pytest.mark.parametrize("reported", [{"torch": "2.11.0", "rows": 3}, {}])
def test_a_package_that_does_not_load_names_its_torch_and_the_command(reported, tmp_path, caplog):
    file = tmp_path / "my policy.pt2"
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("p/data/aotinductor/model/c.wrapper_metadata.json", json.dumps({"navi": json.dumps(reported)}))
    with pytest.raises(CheckpointError, match="AOTInductor can load") as caught:
        load_exported(file)
    if reported:
        fit = f"torch 2.11.0 compiled it, this is torch {torch.__version__}; compile it again here: "
        fit += f"navi models export CHECKPOINT --format aoti --rows 3 --out '{file}'"
        # What does not fit may end the process while it is loaded.
        assert str(caught.value).endswith(fit) and fit in caplog.text
    else:
        assert "torch that it does not name compiled it" in str(caught.value) and "compiled" not in caplog.text


@pytest.mark.parametrize("fault", ["encrypted", "packed in another way", "nested", "a command"])
def test_broken_or_forged_package_is_refused(fault, tmp_path):
    file = tmp_path / "p.pt2"
    reported = {"nested": "[" * 100_000, "a command": json.dumps({"torch": "2\x1b[31m", "rows": "1; rm -rf ~"})}
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("c.wrapper_metadata.json", json.dumps({"navi": reported.get(fault, "{}")}))
    packed = bytearray(file.read_bytes())
    entry = packed.find(b"PK\x01\x02")  # the central directory's, which is the one that is read
    packed[entry + 8] |= fault == "encrypted"
    packed[entry + 10] = 99 if fault == "packed in another way" else packed[entry + 10]
    file.write_bytes(packed)
    with pytest.raises(CheckpointError, match="AOTInductor can load") as caught:
        load_exported(file)
    assert "--rows ROWS --out" in str(caught.value) and "\x1b" not in str(caught.value)


@pytest.mark.slow
def test_a_program_too_new_for_this_runtime_is_refused_with_a_remedy(tmp_path):
    import onnx

    path, _ = export_policy(small_policy(encoder="ring_cnn", core="gru"), tmp_path / "p.onnx", kind="onnx")
    model = onnx.load(path)
    model.ir_version = 99
    onnx.save(model, path)
    with pytest.raises(CheckpointError, match=r"this is ONNX Runtime .*: if it is older .* pip install -U onnxruntime"):
        load_exported(path)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda p, d: export_policy(p, d / "a.bin", kind="onnx"), ConfigError, "ends in .onnx"),
        (lambda p, d: export_policy(p, d / "a.onnx", kind="tflite"), ConfigError, "allowed: onnx, aoti"),
        (lambda p, d: load_exported(d / "a.txt"), ConfigError, "allowed: .onnx, .pt2"),
        (lambda p, d: load_exported(d / "none.onnx"), CheckpointError, "no such file"),
        (lambda p, d: load_exported(d / "junk.onnx"), CheckpointError, "ONNX Runtime can load"),
        (lambda p, d: load_exported(d / "junk.pt2"), CheckpointError, "AOTInductor can load"),
        (
            lambda p, d: export_checkpoint(d / "none.pt", d / "a.onnx", kind="onnx"),
            CheckpointError,
            "no such checkpoint",
        ),
    ],
)
def test_bad_exports_are_refused_by_name(tmp_path, call, error, message):
    for name in ("junk.onnx", "junk.pt2"):
        (tmp_path / name).write_bytes(b"\x08\x01junk" * 9)
    with pytest.raises(error, match=message):
        call(small_policy(encoder="ring_cnn", core="gru"), tmp_path)


def test_export_command_reports_parity_and_stores_provenance(make_checkpoint, tmp_path):
    from navi_core.cli.main import build_app

    checkpoint, out = make_checkpoint(), tmp_path / "p.onnx"
    arguments = ["export", str(checkpoint), "--out", str(out), "--rows", "2"]
    reported = CliRunner().invoke(build_app(plugins=False), [*arguments, "--json"])
    assert reported.exit_code == 0, reported.output
    result = json.loads(reported.stdout)
    assert result["parity"]["steps"] == 200 and result["bytes"] == out.stat().st_size
    assert result["macs"]["total"] > result["macs"]["encoder"] > 0
    source, loaded = load_checkpoint(checkpoint), load_exported(out)
    assert loaded.config == source.train_config().policy
    for key in ("weights_hash", "run_id", "step_id", "decision_hz"):
        assert loaded.metadata[key] == getattr(source, key)
    assert loaded.metadata["torch"] == torch.__version__
    plain = CliRunner().invoke(
        build_app(plugins=False), [*arguments, "--format", "safetensors", "--out", str(out) + "s"]
    )
    assert plain.exit_code == 0 and "M multiply-accumulates" in plain.output


@pytest.mark.slow
def test_export_command_supports_place_memory(make_checkpoint, tmp_path):
    from navi_core.cli.main import build_app

    policy = small_policy(encoder="ring_cnn", core="gru", place_memory=True)
    config = TrainConfig(policy=policy.config, env=EnvConfig(azimuth_bins=16, elevation_bins=8))
    optimizer = torch.optim.Adam(policy.parameters())
    checkpoint = make_checkpoint(steps=0, policy=policy, optimizer=optimizer, config=config)
    out = tmp_path / "p.onnx"
    reported = CliRunner().invoke(build_app(plugins=False), ["export", str(checkpoint), "--out", str(out), "--json"])
    assert reported.exit_code == 0, reported.output
    result = json.loads(reported.stdout)
    assert result["parity"]["action"] <= 1e-5 and load_exported(out).config.place_memory
    assert result["parameters"]["places"] > 0 and result["macs"]["places"] > 0
    assert result["parameters"]["total"] == sum(p.numel() for p in policy.parameters())
