"""The house itself: import walls, cheap imports, the public surface, the command line's manners."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
ENGINE_ALONE = {"torch", "numpy", "numba", "pydantic"}

PUBLIC = {
    "navi_core.config": {"CompileConfig", "EnvConfig", "EvalConfig", "PPOConfig", "PolicyConfig", "TrainConfig"},
    "navi_core.scenes": {"Scene", "compile_mesh", "generate_scene", "load_gmdag"},
    "navi_core.world": {"Field", "NavigationEnv", "spherical_directions"},
    "navi_core.policy": {"build_core", "build_encoder", "build_policy", "ssd_scan"},
    "navi_core.learn": {
        "DriftSmoother",
        "EarlyStopController",
        "PrioritizedReplay",
        "double_dqn_targets",
        "free_energy",
        "gae",
        "group_advantages",
        "train",
    },
    "navi_core.models": {"Registry", "load_checkpoint", "save_checkpoint"},
    "navi_core.evaluate": {"compare", "evaluate"},
    "navi_core.service": {
        "ContinuousTrainer",
        "ContinuousTrainingConfig",
        "Experience",
        "ExperienceReplayBuffer",
        "RolloutGate",
        "TrainingMetrics",
    },
}


def run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=False)


@pytest.mark.parametrize("module", sorted(PUBLIC))
def test_public_names_are_there_and_exported(module: str) -> None:
    namespace = __import__(module, fromlist=["*"])
    assert PUBLIC[module] <= set(namespace.__all__)
    assert all(hasattr(namespace, name) for name in namespace.__all__)


def test_import_boundaries_hold() -> None:
    pytest.importorskip("importlinter", reason="import-linter is in the extra dev")
    done = subprocess.run(
        [str(Path(sys.executable).with_name("lint-imports")), "--config", str(ROOT / ".importlinter"), "--no-cache"],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
    )
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("module", ["navi_core", "navi_core.config", "navi_core.errors", "navi_core.cli.main"])
def test_light_modules_import_no_heavy_library(module: str) -> None:
    heavy = "{'torch', 'numba', 'scipy', 'trimesh', 'dagster', 'duckdb', 'pandas', 'matplotlib'}"
    done = run(f"import sys, {module}; print(sorted({heavy} & set(sys.modules)))")
    assert done.stdout.strip() == "[]", done.stdout + done.stderr


def test_the_engine_imports_with_torch_numpy_numba_and_pydantic_alone() -> None:
    """Everything else that is installed is hidden; the engine's rooms still import."""
    code = """
import sys, importlib.abc
banned = {"scipy", "yaml", "typer", "rich", "trimesh", "safetensors", "tensorboard", "matplotlib", "dagster",
          "duckdb", "pandas", "gymnasium", "optuna", "PIL", "zmq", "msgpack", "onnxruntime", "ray"}
class Refuse(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in banned:
            raise ImportError(f"{name} is not on the machine")
sys.meta_path.insert(0, Refuse())
import navi_core.kernels, navi_core.scenes, navi_core.world, navi_core.policy, navi_core.record
import navi_core.models, navi_core.pilots, navi_core.learn, navi_core.evaluate
import navi_core.scale, navi_core.scale.launch
import navi_core.service, navi_core.service.wire
print("ok")
"""
    done = run(code)
    assert done.stdout.strip() == "ok", done.stderr


def test_help_lists_every_command() -> None:
    from typer.testing import CliRunner

    from navi_core.cli.main import build_app

    result = CliRunner().invoke(build_app(), ["--help"])
    assert result.exit_code == 0
    for command in ("demo", "doctor", "scenes", "train", "evaluate", "compare", "promote", "models", "query"):
        assert command in result.output


def test_errors_have_no_traceback_and_their_own_exit_code(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "navi_core.cli.main", "scenes", "inspect", str(tmp_path / "none.gmdag")],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
    )
    assert done.returncode == 3 and done.stdout == ""
    assert done.stderr.startswith("error: ") and "Traceback" not in done.stderr


def test_console_scripts_share_the_commands() -> None:
    for name, command in (("navi-actor", "train"), ("brain", "models")):
        done = subprocess.run(
            [str(Path(sys.executable).with_name(name)), "--help"], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0 and command in done.stdout


def test_no_path_of_a_machine_and_no_address_of_a_registry_in_the_pins() -> None:
    for name in ("constraints.txt", "pyproject.toml"):
        text = (ROOT / name).read_text()
        assert "://" not in text.replace("http://127.0.0.1", "")


def test_json_of_models_is_one_document(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "navi_core.cli.main", "models", "list", "--json", "--models", str(tmp_path)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    json.loads(done.stdout)


def test_an_installation_without_a_checkout_holds_every_file_that_is_read() -> None:
    """Modules come by themselves; presets, sources of kernels, the page and SQL have to be named."""
    named = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["setuptools"]["package-data"]
    for package, patterns in named.items():
        held = {file for pattern in patterns for file in (ROOT / package).glob(pattern)}
        read = {Path(folder) / name for folder, _, names in os.walk(ROOT / package, followlinks=True) for name in names}
        # What Dagster keeps beside its settings stays with the checkout.
        read = {f for f in read if "__pycache__" not in f.parts and "dagster_home" not in f.parts and f.suffix != ".py"}
        assert read <= held, sorted(read - held)
    assert ROOT / "navi_pipeline/sql/migrations/001_record.sql" in held
    assert ROOT / "navi_pipeline/dagster_home/dagster.yaml" in held
