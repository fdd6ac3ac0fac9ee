"""The package from outside the checkout: sdist, wheel, and what an installation of it does."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
BUILD = "import sys; from setuptools import build_meta; print(getattr(build_meta, sys.argv[1])(sys.argv[2]))"


def build(source: Path, kind: str, out: Path) -> Path:
    done = subprocess.run(
        [sys.executable, "-c", BUILD, f"build_{kind}", str(out)], cwd=source, check=True, capture_output=True, text=True
    )
    return out / done.stdout.split()[-1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """Wheel of the sdist, as pip would build it elsewhere."""
    folder = tmp_path_factory.mktemp("package")
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    for name in filter(None, listed.split("\0")):
        target = folder / "checkout" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, target, follow_symlinks=False)
    with tarfile.open(build(folder / "checkout", "sdist", folder)) as archive:
        archive.extractall(folder / "sdist", filter="data")
    return build(next((folder / "sdist").iterdir()), "wheel", folder)


@pytest.fixture(scope="module")
def navi(wheel, tmp_path_factory) -> Path:
    """The command `navi` of an environment with the wheel, and with this one's other packages."""
    folder = tmp_path_factory.mktemp("installed")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    site = next(folder.glob("lib/python3*/site-packages"))
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    (site / "others.pth").write_text(sysconfig.get_paths()["purelib"])
    command = folder / "bin" / "navi"
    command.write_text(f"#!{folder}/bin/python\nfrom navi_core.cli.main import main\nmain()\n")
    command.chmod(0o755)
    return command


def run(navi: Path, home: Path, *arguments: str, **more: str) -> str:
    home.mkdir(exist_ok=True)
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "DAGSTER_HOME")}
    env = kept | {"NAVI_HOME": str(home / ".navi")} | more
    done = subprocess.run([navi, *arguments], cwd=home, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_wheel_holds_licence_sources_and_data_but_no_tests(wheel):
    assert wheel.name.startswith("navi_drone-")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        metadata = archive.read(next(n for n in names if n.endswith("/METADATA"))).decode()
    for ending in (
        "licenses/LICENSE", "navi_core/py.typed", "navi_core/presets/demo.yaml", "navi_pipeline/dg.toml",
        "navi_pipeline/dagster_home/dagster.yaml", "navi_pipeline/sql/columns.yaml", "static/index.html",
    ):  # fmt: skip
        assert any(name.endswith(ending) for name in names), ending
    assert any(name.startswith("navi_core/kernels/csrc/") and name.endswith(".cpp") for name in names)
    assert not [name for name in names if name.startswith("tests") or "__pycache__" in name]
    fields = {line.split(":")[0] for line in metadata.partition("\n\n")[0].splitlines()}
    assert fields >= {"Author", "Classifier", "License-Expression", "License-File", "Keywords", "Summary"}
    assert "Name: navi-drone" in metadata


def test_installation_names_commands_that_exist_in_it(navi, tmp_path):
    assert run(navi, tmp_path, "--version").strip() not in ("", "0+unknown")
    script = "import navi_core, navi_core.errors as e; print(navi_core.__file__); print(e.install_command('gym'))"
    done = subprocess.run([navi.with_name("python"), "-c", script], cwd=tmp_path, capture_output=True, text=True,
                          env={"PATH": os.environ["PATH"]}, check=True)  # fmt: skip
    place, command = done.stdout.splitlines()
    assert Path(place).is_relative_to(navi.parents[1]) and command == "pip install 'navi-drone[gym]'"
    assert "Serve the Dagster UI" in run(navi, tmp_path, "ui", "--help")
    assert "leaderboard" in run(navi, tmp_path, "query")


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_demo_of_the_installation_equals_the_checkouts(navi, tmp_path):
    """The same digits from a wheel, with a Dagster home of its own, as from here."""
    outside = json.loads(run(navi, tmp_path / "outside", "demo", "--json"))
    checkout = tmp_path / "checkout.py"
    checkout.write_text(f"import sys; sys.path.insert(0, {str(ROOT)!r}); from navi_core.cli.main import main; main()")
    (tmp_path / "dagster").mkdir()
    shutil.copy(ROOT / "dagster_home" / "dagster.yaml", tmp_path / "dagster")
    command = tmp_path / "navi"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} {checkout} "$@"\n')
    command.chmod(0o755)
    here = json.loads(run(command, tmp_path / "here", "demo", "--json", DAGSTER_HOME=str(tmp_path / "dagster")))
    assert outside["test"] == here["test"] and (tmp_path / "outside/.navi/dagster").is_dir()
