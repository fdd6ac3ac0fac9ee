"""Edited registries and checkpoints: a one-sentence error, never a traceback, and nothing changed."""

import io
import json
import os
import zipfile

import pytest
import torch

from navi_core.config import TrainConfig, parse_config
from navi_core.errors import CheckpointError, ConfigError, RegistryError
from navi_core.models import Registry, load_checkpoint


@pytest.fixture
def registry(tmp_path, make_checkpoint):
    registry = Registry(tmp_path / "models")
    registry.register(make_checkpoint("a.pt"))
    registry.register(make_checkpoint("b.pt", seed=1), parents=["v001"])
    return registry


BREAKS = {
    "no aliases": lambda b: b.pop("aliases"),
    "versions are a list": lambda b: b.update(versions=[]),
    "empty version": lambda b: b["versions"].update(v003={}),
    "version of another name": lambda b: b["versions"].update(x=b["versions"].pop("v002")),
    "steps are text": lambda b: b["versions"]["v001"].update(step_id="many"),
    "unknown entry": lambda b: b["versions"]["v001"].update(more=1),
    "its own parent": lambda b: b["versions"]["v002"].update(parents=["v002"]),
    "a cycle": lambda b: b["versions"]["v001"].update(parents=["v002"]),
    "a parent that is gone": lambda b: b["versions"]["v002"].update(parents=["v009"]),
    "a file elsewhere": lambda b: b["versions"]["v001"].update(file="../../secret.pt"),
    "an alias of nothing": lambda b: b["aliases"].update(champion={"versions": [], "history": []}),
    "an alias of a lost version": lambda b: b["aliases"].update(champion={"versions": ["v009"], "history": []}),
    "an alias that is text": lambda b: b["aliases"].update(champion="v001"),
    "a reward that is no number": lambda b: b["versions"]["v001"].update(reward_ema=float("nan")),
    "a metric of text": lambda b: b["versions"]["v001"].update(metrics={"coverage": "high"}),
    "a metric beyond numbers": lambda b: b["versions"]["v001"].update(metrics={"coverage": 10**400}),
    "a version beyond counting": lambda b: b["versions"].update({"v" + "9" * 5000: b["versions"]["v002"]}),
    "a history of text": lambda b: b["aliases"].update(champion={"versions": ["v001"], "history": ["x"]}),
}


@pytest.mark.parametrize("name", BREAKS)
def test_edited_registry_is_refused_by_every_call_and_kept(registry, make_checkpoint, name):
    file = registry.path / "registry.json"
    book = json.loads(file.read_text())
    BREAKS[name](book)
    file.write_text(json.dumps(book))
    checkpoint = make_checkpoint("c.pt", seed=2)
    before = file.read_bytes(), sorted(os.listdir(registry.path))
    for call in (
        registry.list,
        lambda: registry.resolve("latest"),
        lambda: registry.lineage("v002"),
        registry.aliases,
        lambda: registry.promote("v001"),
        lambda: registry.rollback("latest"),
        lambda: registry.register(checkpoint),
    ):
        with pytest.raises(RegistryError, match=r"registry\.json"):
            call()
    assert (file.read_bytes(), [n for n in sorted(os.listdir(registry.path)) if n != ".registry.lock"]) == (
        before[0],
        [n for n in before[1] if n != ".registry.lock"],
    )


@pytest.mark.parametrize("data", [b"{", b"[" * 200_000, b"\xff\xfe", b"null"])
def test_non_json_registry_is_refused(registry, data):
    (registry.path / "registry.json").write_bytes(data)
    with pytest.raises(RegistryError, match=r"registry\.json"):
        registry.list()


def test_any_flipped_bit_is_detected(make_checkpoint, tmp_path):
    data = make_checkpoint("a.pt").read_bytes()
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        entries = [entry for entry in archive.infolist() if entry.file_size]
    for entry in entries:
        flipped = bytearray(data)
        # The name and the padding in the local header lie between its 30 bytes and the data.
        at = entry.header_offset
        start = at + 30 + sum(int.from_bytes(data[at + k : at + k + 2], "little") for k in (26, 28))
        flipped[start + entry.file_size // 2] ^= 4
        file = tmp_path / "flipped.pt"
        file.write_bytes(flipped)
        with pytest.raises(CheckpointError, match=r"flipped\.pt"):
            load_checkpoint(file)


def test_checkpoint_cannot_expand_beyond_its_size(make_checkpoint, tmp_path):
    """A checkpoint is read into no more memory than it takes on disk."""
    whole, file = make_checkpoint("a.pt"), tmp_path / "small.pt"
    with zipfile.ZipFile(whole) as old, zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as new:
        for entry in old.infolist():
            data = old.read(entry)
            new.writestr(entry.filename, data + bytes(2**24) if entry.filename.endswith("data/0") else data)
    assert file.stat().st_size < 2**24
    with pytest.raises(CheckpointError, match=r"small\.pt.*more than itself"):
        load_checkpoint(file)
    payload = torch.load(whole, weights_only=True)
    for weight in (torch.zeros(1).expand(2**40), torch.eye(2).to_sparse(), torch.empty(2, device="meta")):
        torch.save(payload | {"policy_state": payload["policy_state"] | {"odd": weight}}, file)
        with pytest.raises(CheckpointError, match=r"small\.pt.*the weight odd"):
            load_checkpoint(file)


@pytest.mark.timeout(30)
def test_a_list_that_shares_its_items_is_refused_at_once(make_checkpoint, tmp_path):
    """2^60 leaves in 2.7 kB: a pickle stores each list once."""
    payload = torch.load(make_checkpoint("a.pt"), weights_only=True)
    doubling = [0]
    for _ in range(60):
        doubling = [doubling, doubling]
    file = tmp_path / "doubling.pt"
    torch.save(payload | {"config": payload["config"] | {"seed": doubling}}, file)
    with pytest.raises(CheckpointError, match=r"doubling\.pt.*refers twice"):
        load_checkpoint(file)
    with pytest.raises(ConfigError, match=r"seed = \[\[.*expected a whole number"):
        parse_config(TrainConfig, {"seed": doubling})


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("step_id", "many"),
        ("reward_ema", "high"),
        ("policy_state", [1]),
        ("policy_state", {"weight": 1.0}),
        ("config", [1]),
        ("corpus_summary", [1]),
        ("scene_hashes", None),
        ("scene_hashes", {"a": 1}),
        ("rnd_state", 5),
        ("normalisers", 7),
        ("optimizer_state", "q"),
        ("extra", None),
        ("decision_hz", None),
    ],
)
def test_a_field_of_another_type_is_refused_by_name(make_checkpoint, tmp_path, field, value):
    payload = torch.load(make_checkpoint("a.pt"), weights_only=True)
    file = tmp_path / "edited.pt"
    torch.save(payload | {field: value}, file)
    with pytest.raises(CheckpointError, match=field):
        load_checkpoint(file)
