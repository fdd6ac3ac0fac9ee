"""Installations owned by another user, and machines with few writable folders."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from navi_core.machine import resources
from navi_pipeline.lib import orchestration, records
from navi_pipeline.lib.orchestration import dagster_home
from navi_pipeline.lib.warehouse.database import sql_folder
from navi_pipeline.lib.warehouse.warehouse import Warehouse

ROOT = Path(__file__).resolve().parent.parent


def _import(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    # The user of the tests may write to the checkout; here access is denied.
    nobody = "import os; real = os.access; os.access = lambda path, mode: not mode & os.W_OK and real(path, mode)\n"
    kept = {name: value for name, value in os.environ.items() if name not in ("NUMBA_CACHE_DIR", "XDG_CACHE_HOME")}
    return subprocess.run(
        [sys.executable, "-c", nobody + code],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=kept | environment,
        check=False,
    )


@pytest.mark.parametrize("before", ["", "import numba\n"])
def test_numba_cache_falls_back_to_a_temporary_folder(before: str) -> None:
    code = """
import navi_core, numba
from navi_core.kernels.bvh.triangles import triangle_overlaps_box as one
print(one._cache.cache_path, os.path.isdir(os.environ["NUMBA_CACHE_DIR"]), sep="\\n")
"""
    done = _import(before + code, HOME="/nonexistent")
    assert done.returncode == 0, done.stderr
    path, there = done.stdout.split()
    assert Path(path).parent.name.startswith("navi-numba-") and there == "True"
    assert not Path(path).parent.exists()
    assert "/nonexistent/.cache cannot be written; set XDG_CACHE_HOME" in done.stderr


def test_inaccessible_home_is_not_writable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """HOME=/root in a process without root rights: even stat is denied."""
    assert resources._may_write(str(tmp_path / "a" / "b")) and not resources._may_write("~/.cache")
    ask = os.stat

    def closed(path, *args, **kwargs):
        if str(path).startswith(f"{tmp_path}/"):
            raise PermissionError(13, "Permission denied", str(path))
        return ask(path, *args, **kwargs)

    monkeypatch.setattr(os, "stat", closed)
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert not resources._may_write(str(tmp_path / ".cache"))


def test_configured_numba_cache_folder_is_kept(tmp_path: Path) -> None:
    code = "os.access = real; import navi_core; print(os.environ['NUMBA_CACHE_DIR'])"
    done = _import(code, HOME="/nonexistent", NUMBA_CACHE_DIR=str(tmp_path))
    assert done.stdout.strip() == str(tmp_path) and not done.stderr


def test_migration_hashes_are_independent_of_the_locale(tmp_path: Path) -> None:
    """A migration is identified by the hash of its text, read as UTF-8 in every locale."""
    code = """
import sys
from navi_pipeline.lib.warehouse.warehouse import Warehouse
Warehouse(home=sys.argv[1]).ingest()
"""
    ascii_alone = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=os.environ | ascii_alone,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    files = sql_folder().glob("migrations/*.sql")
    applied = Warehouse(home=tmp_path).query("select name, sha256 from migrations")
    assert dict(applied.itertuples(index=False)) == {f.stem: hashlib.sha256(f.read_bytes()).hexdigest() for f in files}


def test_checkout_without_symlinks_finds_its_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Git writes the target of a link into a file where `core.symlinks` is off."""
    package = tmp_path / "navi_pipeline"
    package.mkdir()
    for name in ("sql", "dagster_home"):
        monkeypatch.delenv({"sql": "NAVI_SQL"}.get(name, name.upper()), raising=False)
        (tmp_path / name).symlink_to(ROOT / name)
        (package / name).write_text(f"../{name}", "utf-8")
    for module in (records, orchestration):
        monkeypatch.setattr(module, "PACKAGE", package)
    assert sql_folder() == ROOT / "sql" and dagster_home() == ROOT / "dagster_home"


def test_installed_package_keeps_dagster_state_in_the_navi_home(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.delenv("DAGSTER_HOME", raising=False)
    monkeypatch.setenv("NAVI_HOME", str(tmp_path / "navi"))
    (tmp_path / "package" / "dagster_home").mkdir(parents=True)
    (tmp_path / "package" / "dagster_home" / "dagster.yaml").write_text("{}", "utf-8")
    for module in (records, orchestration):
        monkeypatch.setattr(module, "PACKAGE", tmp_path / "package")
    assert dagster_home() == tmp_path / "navi" / "dagster"


def test_undecodable_quarantine_reason_is_shown_partly(tmp_path: Path) -> None:
    folder = tmp_path / "outbox" / "quarantine"
    folder.mkdir(parents=True)
    (folder / "a.ndjson.reason.txt").write_bytes(b"caf\xe9")
    (reported,) = Warehouse(home=tmp_path).status()["quarantined"].values()
    assert reported.startswith("caf")
