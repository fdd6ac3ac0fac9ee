"""Checkpoint files of other homes enter a registry with their lineage, after their checks."""

import shutil

import pytest
import torch

from navi_core.errors import CheckpointError, RegistryError
from navi_core.models import Registry, imports, load_checkpoint, register_file


@pytest.fixture
def registry(tmp_path):
    return Registry(tmp_path / "here" / "models")


def test_file_enters_once_with_hashes_and_origin(make_checkpoint, registry):
    file = make_checkpoint(parent_checkpoint="/away/step-000000500.pt")
    assert register_file(registry, file, tags=["visitor"]) == register_file(registry, file) == ["v001"]
    entry = registry.resolve("v001")
    assert entry.weights_hash == load_checkpoint(file).weights_hash and entry.path.read_bytes() == file.read_bytes()
    assert entry.notes == f"from {file}, trained from /away/step-000000500.pt" and entry.tags == ("visitor",)


def test_parent_is_found_by_its_weights(make_checkpoint, registry):
    parent = make_checkpoint("parent.pt", seed=1)
    registry.register(parent)
    child = make_checkpoint("child.pt", seed=2, run_id="ppo-other", parent_checkpoint=str(parent))
    assert register_file(registry, child) == ["v002"] and registry.resolve("v002").parents == ("v001",)


def test_named_parent_wins_and_must_exist(make_checkpoint, registry):
    registry.register(make_checkpoint("one.pt", seed=1))
    file = make_checkpoint("two.pt", seed=2, run_id="ppo-other")
    with pytest.raises(RegistryError, match="v009"):
        register_file(registry, file, parents=["v009"])
    assert register_file(registry, file, parents=["latest"]) == ["v002"]
    assert registry.resolve("v002").parents == ("v001",)


def test_version_of_another_registry_brings_its_ancestors_metrics_and_tags(make_checkpoint, registry, tmp_path):
    away = Registry(tmp_path / "away" / "models")
    away.register(make_checkpoint("a.pt", seed=1), metrics={"sps": 10.0}, tags=["bc"])
    away.register(make_checkpoint("b.pt", seed=2, run_id="aside"))
    away.register(make_checkpoint("c.pt", seed=3, run_id="child"), parents=["v001"], notes="a night", tags=["rl"])
    registry.register(make_checkpoint("d.pt", seed=4, run_id="own"))
    assert register_file(registry, away.resolve("v003").path) == ["v003", "v002"]
    child, parent = registry.lineage("v003")
    assert child.parents == ("v002",) and (child.notes, child.tags, child.run_id) == ("a night", ("rl",), "child")
    assert parent.metrics == {"sps": 10.0} and parent.tags == ("bc",)
    assert "aside" not in {entry.run_id for entry in registry.list()}


def test_deleted_ancestor_of_another_registry_is_left_out(make_checkpoint, registry, tmp_path):
    away = Registry(tmp_path / "away" / "models")
    away.register(make_checkpoint("a.pt", seed=1))
    away.register(make_checkpoint("b.pt", seed=2, run_id="child"), parents=["v001"])
    away.resolve("v001").path.unlink()
    assert register_file(registry, away.resolve("v002").path) == ["v001"]
    assert registry.resolve("v001").parents == ()


def test_file_that_differs_from_its_registry_is_refused(make_checkpoint, registry, tmp_path):
    away = Registry(tmp_path / "away" / "models")
    away.register(make_checkpoint("a.pt", seed=1))
    shutil.copy(make_checkpoint("b.pt", seed=2), away.resolve("v001").path)
    with pytest.raises(RegistryError, match="not the file that"):
        register_file(registry, away.resolve("v001").path)
    assert registry.list() == []


def test_checkpoint_that_cannot_fly_here_is_refused(make_checkpoint, registry, tmp_path, monkeypatch):
    damaged = tmp_path / "damaged.pt"
    damaged.write_bytes(make_checkpoint().read_bytes()[:-100])
    pickled = tmp_path / "pickled.pt"
    torch.save({"version": 3, "code": print}, pickled)
    for file in (damaged, pickled, tmp_path / "absent.pt"):
        with pytest.raises(CheckpointError, match=file.name):
            register_file(registry, file)
    monkeypatch.setattr(imports, "available_memory", lambda: 1000)
    with pytest.raises(CheckpointError, match="more than a third"):
        register_file(registry, make_checkpoint())
    assert registry.list() == [] and not registry.path.exists()
