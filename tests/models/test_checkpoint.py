"""Checkpoints: complete, atomic, deterministic in their weights, and refused when anything is off."""

import json
import os
import pickle

import numpy as np
import pytest
import torch

import navi_core.models
from navi_core.config import PolicyConfig
from navi_core.errors import CheckpointError
from navi_core.models import export_safetensors, load_checkpoint, load_policy, save_checkpoint, weights_hash
from navi_core.policy import RND, build_policy


def test_public_names_are_locked():
    assert navi_core.models.__all__ == [
        "CHECKPOINT_VERSION",
        "Checkpoint",
        "ExportedPolicy",
        "ModelVersion",
        "Registry",
        "add_scenes",
        "add_scenes_of",
        "corpus_of",
        "export_checkpoint",
        "export_policy",
        "export_safetensors",
        "load_checkpoint",
        "load_exported",
        "load_policy",
        "record_registry",
        "register_file",
        "save_checkpoint",
        "trained_on",
        "weights_hash",
    ]


def test_every_field_survives_saving_and_loading(make_checkpoint, config):
    rnd = RND(16)
    path = make_checkpoint(
        parent_checkpoint="runs/before.pt",
        training_source="bc",
        rnd=rnd,
        rng={"actions": torch.arange(4), "draws": 12},
        normalisers={"reward": {"mean": 0.5, "count": torch.tensor(3.0, dtype=torch.float64)}},
        corpus_summary={"scenes": 2, "names": ["a", "b"]},
        scene_hashes={"a": "00ff"},
        extra={"rollout": {"age": torch.ones(3, dtype=torch.int64)}, "note": "x", "pair": (1, None)},
    )
    found = load_checkpoint(path, expect_encoder="ring_cnn", expect_core="gru")
    assert found.version == 3
    assert (found.run_id, found.step_id, found.episode_count) == ("ppo-demo-0123", 1000, 7)
    assert (found.reward_ema, found.wall_time_hours) == (0.5, 0.25)
    assert (found.parent_checkpoint, found.training_source) == ("runs/before.pt", "bc")
    assert (found.encoder_backend, found.temporal_core) == ("ring_cnn", "gru")
    assert found.decision_hz == pytest.approx(10)
    assert found.train_config() == config
    assert found.corpus_summary == {"scenes": 2, "names": ["a", "b"]}
    assert found.scene_hashes == {"a": "00ff"}
    assert torch.equal(found.rnd_state["target.0.weight"], rnd.target[0].weight)
    assert torch.equal(found.rng["actions"], torch.arange(4)) and found.rng["draws"] == 12
    assert found.normalisers["reward"]["count"].item() == 3
    assert found.extra["pair"] == (1, None) and found.extra["note"] == "x"
    assert found.created_at.endswith("+00:00")


def test_resumed_training_equals_an_uninterrupted_one(make_checkpoint, config):
    straight = load_checkpoint(make_checkpoint("straight.pt", steps=5))
    stopped = load_checkpoint(make_checkpoint("stopped.pt", steps=3))
    policy = build_policy(config.policy, seed=99)
    policy.load_state_dict(stopped.policy_state)
    optimizer = torch.optim.Adam(policy.parameters(), lr=1e-3)
    optimizer.load_state_dict(stopped.optimizer_state)
    for _ in range(2):
        obs, aux = torch.full((2, 3, 16, 4), 0.5), torch.zeros(2, 3)
        policy.value(obs, aux, policy.initial_state(2)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    assert weights_hash(policy) == straight.weights_hash


def test_loaded_policy_acts_the_same(make_checkpoint, config):
    path = make_checkpoint(seed=4, steps=0)
    policy, checkpoint = load_policy(path)
    original = build_policy(config.policy, seed=4)
    assert not policy.training and policy.config == config.policy and checkpoint.step_id == 1000
    obs, aux, reset = torch.rand(2, 3, 16, 4), torch.zeros(2, 3), torch.ones(2, dtype=torch.bool)
    with torch.no_grad():
        ours = policy.act(obs, aux, policy.initial_state(2), reset, None)
        theirs = original.act(obs, aux, original.initial_state(2), reset, None)
    assert torch.equal(ours.action, theirs.action) and torch.equal(ours.value, theirs.value)


def test_the_weights_hash_depends_on_the_weights_alone(make_checkpoint):
    first = load_checkpoint(make_checkpoint("1.pt"))
    again = load_checkpoint(make_checkpoint("2.pt", run_id="other", wall_time_hours=9.0))
    other = load_checkpoint(make_checkpoint("3.pt", seed=1))
    assert first.weights_hash == again.weights_hash != other.weights_hash
    state = dict(first.policy_state)
    assert weights_hash(dict(reversed(state.items()))) == first.weights_hash
    state["heads.log_std"] = state["heads.log_std"].clone()
    state["heads.log_std"][0] = torch.nextafter(state["heads.log_std"][0], torch.tensor(9.0))
    assert weights_hash(state) != first.weights_hash


def test_memory_format_does_not_change_the_hash():
    weight = torch.randn(4, 3, 5, 6)
    assert weights_hash({"w": weight}) == weights_hash({"w": weight.contiguous(memory_format=torch.channels_last)})


def test_a_view_is_stored_without_its_storage(make_checkpoint):
    path = make_checkpoint(extra={"row": torch.zeros(1_000_000)[:10]})
    assert path.stat().st_size < 1_000_000


@pytest.mark.parametrize("share", [0.0, 0.001, 0.1, 0.5, 0.9, 0.999])
def test_a_truncated_file_is_refused(make_checkpoint, share):
    path = make_checkpoint()
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * share)])
    with pytest.raises(CheckpointError, match=r"a\.pt: truncated, or not a checkpoint"):
        load_checkpoint(path)


def test_a_flipped_bit_in_the_weights_is_noticed(make_checkpoint):
    path = make_checkpoint()
    weight = load_checkpoint(path).policy_state["core.weight_hh"].numpy().tobytes()
    data = bytearray(path.read_bytes())
    data[data.find(weight) + 100] ^= 1
    path.write_bytes(data)
    with pytest.raises(CheckpointError, match=r"damaged|truncated"):
        load_checkpoint(path)


def test_replaced_weights_fail_the_hash_check(make_checkpoint):
    path = make_checkpoint()
    payload = torch.load(path, weights_only=True)
    payload["policy_state"]["core.weight_hh"] += 1
    torch.save(payload, path)
    with pytest.raises(CheckpointError, match="do not have the hash they were saved with"):
        load_checkpoint(path)


class Bomb:
    """Pickles into a call; reading it must not make that call."""

    def __init__(self, target):
        self.target = target

    def __reduce__(self):
        return (os.mkdir, (str(self.target),))


def test_a_pickle_that_would_run_code_is_refused(tmp_path):
    for writer in (lambda obj, file: pickle.dump(obj, file, protocol=2), torch.save):
        path, target = tmp_path / "bomb.pt", tmp_path / "made"
        with path.open("wb") as file:
            writer({"version": 3, "extra": Bomb(target)}, file)
        with pytest.raises(CheckpointError, match="not a checkpoint"):
            load_checkpoint(path)
        assert not target.exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"version": 2}, "checkpoint version 2 is older than version 3"),
        ({"version": 1, "model": {}}, "checkpoint version 1 is older than version 3"),
        ({"version": 4}, "checkpoint version 4 is newer than version 3"),
        ({"weights": torch.zeros(2)}, "it has no version"),
        ([1, 2], "it has no version"),
        ({"version": 3, "run_id": "x"}, "lacks step_id"),
    ],
)
def test_other_versions_and_other_files_are_named(tmp_path, content, message):
    torch.save(content, tmp_path / "c.pt")
    with pytest.raises(CheckpointError, match=message):
        load_checkpoint(tmp_path / "c.pt")


def test_missing_file_is_named(tmp_path):
    with pytest.raises(CheckpointError, match=r"gone\.pt: no such checkpoint"):
        load_checkpoint(tmp_path / "gone.pt")


def test_another_encoder_or_core_names_both(make_checkpoint):
    path = make_checkpoint()
    with pytest.raises(CheckpointError, match="encoder is 'ring_cnn', expected 'rayvit'"):
        load_checkpoint(path, expect_encoder="rayvit")
    with pytest.raises(CheckpointError, match="temporal core is 'gru', expected 'mamba2'"):
        load_checkpoint(path, expect_core="mamba2")


def test_reserved_key_in_a_checkpoint_is_refused(make_checkpoint):
    path = make_checkpoint()
    payload = torch.load(path, weights_only=True)
    torch.save(payload | {"__dataclass_self__": 1}, path)
    with pytest.raises(CheckpointError, match="damaged"):
        load_checkpoint(path)


def test_weights_of_another_architecture_are_refused(make_checkpoint):
    path = make_checkpoint()
    payload = torch.load(path, weights_only=True)
    payload["config"]["policy"]["core"] = "mamba2"
    payload["config"]["policy"]["width"] = 128
    torch.save(payload, path)
    with pytest.raises(CheckpointError, match="do not fit the checkpoint's configuration"):
        load_policy(path)
    payload["config"]["policy"]["cores"] = 2
    torch.save(payload, path)
    with pytest.raises(CheckpointError, match="no key 'cores'"):
        load_policy(path)


@pytest.mark.parametrize("value", [np.float64(1), {1.5: "x"}, {"deep": [object()]}, {1, 2}])
def test_only_plain_data_is_written(make_checkpoint, tmp_path, value):
    make_checkpoint()
    before = (tmp_path / "a.pt").read_bytes()
    with pytest.raises(CheckpointError, match=r"extra\.thing"):
        make_checkpoint(extra={"thing": value})
    assert (tmp_path / "a.pt").read_bytes() == before


def test_a_wrong_source_and_a_foreign_config_are_refused(make_checkpoint, config):
    with pytest.raises(CheckpointError, match="allowed: rl, bc, inference"):
        make_checkpoint(training_source="magic")
    with pytest.raises(CheckpointError, match="not the configuration the policy was built from"):
        make_checkpoint(policy=build_policy(PolicyConfig()))


def test_a_failed_write_leaves_the_former_checkpoint(make_checkpoint, tmp_path, monkeypatch):
    make_checkpoint()
    before = (tmp_path / "a.pt").read_bytes()

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(CheckpointError, match="No space left on device"):
        make_checkpoint(seed=3)
    monkeypatch.undo()
    assert (tmp_path / "a.pt").read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["a.pt"]


def test_safetensors_export_holds_the_weights_and_their_origin(make_checkpoint, tmp_path):
    from safetensors import safe_open

    path = make_checkpoint()
    checkpoint = load_checkpoint(path)
    with safe_open(export_safetensors(path, tmp_path / "out.safetensors"), framework="pt") as file:
        weights = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        metadata = file.metadata()
    assert weights_hash(weights) == checkpoint.weights_hash == metadata["weights_hash"]
    assert (metadata["encoder_backend"], metadata["temporal_core"], metadata["step_id"]) == ("ring_cnn", "gru", "1000")
    about = json.loads(metadata["navi"])
    assert about["limits"] == [5.0, 2.0, 3.0, 3.0] and about["max_distance"] == 100.0
    assert about["aux_made_of"] and about["policy"]["encoder"] == "ring_cnn" and "semantic_vocabulary" in about


def test_saving_needs_no_optimizer(make_checkpoint):
    assert load_checkpoint(make_checkpoint(optimizer=None)).optimizer_state is None
    assert save_checkpoint is navi_core.models.save_checkpoint
