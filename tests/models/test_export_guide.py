"""The guide's program flies an exported policy without Navi, and its Python snippet flies one with it."""

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from navi_core.config import CompileConfig, ShaperConfig
from navi_core.models import Registry, export_checkpoint, load_exported, load_policy
from navi_core.record import navi_home
from navi_core.scenes import compile_mesh
from tests.conftest import box_triangles, mesh_of

DOCS = Path(__file__).parents[2] / "docs/how-to"
GUIDE = (DOCS / "export.md").read_text()
PROGRAM, COMPILED = re.findall(r"```python\n(.*?)```", GUIDE, re.DOTALL)
SNIPPET = re.findall(r"```python\n(.*?)```", (DOCS / "python.md").read_text(), re.DOTALL)[-1]
KINDS = {"onnx": (".onnx", PROGRAM), "aoti": (".pt2", COMPILED)}


@pytest.mark.parametrize("kind", ["onnx", pytest.param("aoti", marks=pytest.mark.slow)])
def test_guide_program_matches_the_policy(kind, make_checkpoint, config, tmp_path):
    pytest.importorskip("onnxruntime")
    suffix, program = KINDS[kind]
    quiet = config.model_copy(update={"shaper": ShaperConfig(rnd_start=0.0, rnd_end=0.0, loop_coefficient=0.0)})
    summary = {"semantic_vocabulary": {"surface": 1, "wall": 2}}
    checkpoint = make_checkpoint(config=quiet, corpus_summary=summary)
    path, _ = export_checkpoint(checkpoint, tmp_path / f"policy{suffix}", kind=kind)
    reported = load_exported(path).metadata
    assert reported["semantic_vocabulary"] == {"surface": 1, "wall": 2} and reported["limits"] == [5.0, 2.0, 3.0, 3.0]
    for name in set(re.findall(r"`(\w+)`", GUIDE.split("## Metadata")[1].split("A safetensors")[0])):
        assert name == "navi" or name in reported, name
    script = tmp_path / "fly.py"
    script.write_text(program)
    assert "navi_core" not in program
    done = subprocess.run([sys.executable, str(script), str(path)], capture_output=True, text=True, check=True)
    flown = np.array([line.split()[1:] for line in done.stdout.splitlines()], float)
    policy, _ = load_policy(checkpoint)
    config = policy.config
    obs = torch.ones(1, 3, config.azimuth_bins, config.elevation_bins)
    obs[:, 0] = np.log1p(2.5) / np.log1p(100.0)
    state, wanted = policy.initial_state(1), []
    with torch.no_grad():
        for decision in range(50):
            out = policy.act(obs, torch.zeros(1, 3), state, torch.tensor([decision == 0]), None)
            state = out.state
            wanted.append(out.action[0].clamp(-1, 1).numpy() * reported["limits"])
    assert np.allclose(flown, wanted, atol=1e-5)


@pytest.mark.slow
def test_guide_program_refuses_a_policy_with_other_inputs(make_checkpoint, tmp_path):
    """Zeros in place of curiosity, a map or a goal would change its behaviour."""
    pytest.importorskip("onnxruntime")
    path, _ = export_checkpoint(make_checkpoint(), tmp_path / "policy.onnx", kind="onnx")
    (tmp_path / "fly.py").write_text(PROGRAM)
    done = subprocess.run([sys.executable, str(tmp_path / "fly.py"), str(path)], capture_output=True, text=True)
    assert done.returncode == 1 and "it also reads ['curiosity', 'loop memory']" in done.stderr, done.stderr


def test_guide_snippet_flies_a_champion(make_checkpoint, tmp_path, monkeypatch):
    registry = Registry(navi_home() / "models")
    registry.promote(registry.register(make_checkpoint()), "champion")
    mesh = mesh_of(box_triangles((0, 0, 0), (5, 2.4, 4)), "house")
    compile_mesh(mesh, CompileConfig(resolution=64)).save(tmp_path / "house.gmdag")
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    exec(SNIPPET, names)
    assert names["obs"].shape == (8, 3, 16, 4) and names["pilot"].name == "v001"
