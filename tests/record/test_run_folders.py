"""Run folders: sizes are listed, and removal touches nothing else."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from navi_core.cli.main import build_app
from navi_core.config import TrainConfig
from navi_core.errors import RunError
from navi_core.record import RunDirectory
from navi_core.record.run_directory import remove_run_folder, run_folders


@pytest.fixture
def runs(tmp_path):
    """Two runs, one of them with a replay and one folder that a fresh start put aside."""
    root = tmp_path / "runs"
    for seed, size in ((0, 5000), (1, 100)):
        for _ in range(2 - seed):
            with RunDirectory.open(root, asset="ppo", partition="p", config=TrainConfig(seed=seed), fresh=True) as run:
                (run.checkpoints / "step-1.replay").write_bytes(bytes(size))
    return root


def test_runs_are_listed_by_size(runs):
    found = run_folders(runs)
    assert [folder.replays for folder in found] == [5000, 5000, 100]
    assert sum(".old-" in folder.name for folder in found) == 1
    for folder in found:
        assert folder.size == sum(file.stat().st_size for file in (runs / folder.name).rglob("*") if file.is_file())
        assert folder.created_at.endswith("Z") and not folder.in_use
    assert run_folders(runs / "missing") == []


@pytest.mark.parametrize("text", ["", "[]", '{"config": {}}'])
def test_run_with_a_broken_config_is_listed_and_removable(runs, text):
    broken = run_folders(runs)[0]
    (runs / broken.name / "config.json").write_text(text)
    assert {folder.name: folder.created_at is None for folder in run_folders(runs)}[broken.name]
    remove_run_folder(runs, broken.name)
    assert broken.name not in {folder.name for folder in run_folders(runs)}


def test_removing_a_run_leaves_the_others(runs):
    first, *others = run_folders(runs)
    assert remove_run_folder(runs, first.name) == first.size
    assert run_folders(runs) == others
    with pytest.raises(RunError, match=r"no run .* navi runs list"):
        remove_run_folder(runs, first.name)


@pytest.mark.parametrize("name", ["..", ".", "../elsewhere", ".locks", "", "linked"])
def test_only_runs_are_removed(runs, tmp_path, name):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "config.json").write_text("{}")
    (runs / "linked").symlink_to(tmp_path / "elsewhere")
    before = run_folders(runs)
    with pytest.raises(RunError, match="no run"):
        remove_run_folder(runs, name)
    assert run_folders(runs) == before and (tmp_path / "elsewhere" / "config.json").exists()


def test_a_run_in_use_stays(runs):
    with RunDirectory.open(runs, asset="ppo", partition="p", config=TrainConfig(seed=1)) as run:
        assert {folder.name for folder in run_folders(runs) if folder.in_use} == {run.run_id}
        with pytest.raises(RunError, match="in use by process"):
            remove_run_folder(runs, run.run_id)
    assert remove_run_folder(runs, run.run_id) > 100


def test_killed_removal_is_finished_by_the_next(runs):
    (runs / ".x.removed-7" / "checkpoints").mkdir(parents=True)
    remove_run_folder(runs, run_folders(runs)[0].name)
    assert not list(runs.glob(".*.removed-*"))


def test_the_command_lists_and_asks_before_it_removes(runs):
    def navi(*arguments, **more):
        return CliRunner().invoke(build_app(groups=("runs",), plugins=False), ["runs", *arguments], **more)

    listed = json.loads(navi("list", "--runs", str(runs), "--json").stdout)
    assert [row["size"] for row in listed] == [folder.size for folder in run_folders(runs)]
    name = listed[-1]["name"]
    assert name in navi("list", "--runs", str(runs)).stdout
    asked = navi("remove", name, "--runs", str(runs), input="n\n")
    assert (
        asked.exit_code != 0
        and (runs / name).exists()
        and f"Remove {name} ({listed[-1]['size'] / 1e6:,.1f} MB" in asked.stdout
    )
    unknown = navi("remove", name, "nobody", "--runs", str(runs), "--yes")
    assert "no run 'nobody'" in str(unknown.exception) and (runs / name).exists()
    assert "MB removed" in navi("remove", name, "--runs", str(runs), "--yes").stdout and not (runs / name).exists()
