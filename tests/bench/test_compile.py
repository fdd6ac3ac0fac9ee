"""The compile benchmark measures fresh processes and reports the gain of sharing."""

from __future__ import annotations

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from navi_core.bench.engine.compile import check_scenes, tessellate
from navi_core.cli.main import build_app
from navi_core.errors import ConfigError
from navi_core.scenes import generate_scene


def test_tessellation_keeps_areas_and_reaches_the_triangle_count():
    mesh = generate_scene("maze", 0)
    fine = tessellate(mesh, 5000)
    assert 5000 <= len(fine.faces) < 5003

    def areas(m):
        corner = m.triangles
        area = np.linalg.norm(np.cross(corner[:, 1] - corner[:, 0], corner[:, 2] - corner[:, 0]), axis=1) / 2
        return np.bincount(m.face_semantic, area)

    np.testing.assert_allclose(areas(fine), areas(mesh), rtol=1e-9)


def test_invalid_scene_or_resolution_is_refused_before_measuring():
    with pytest.raises(ConfigError, match=r"'castle:1' is neither a mesh file nor one of .*maze:SEED"):
        check_scenes(["castle:1"])
    command = ["bench", "compile", "--scene", "maze:0", "--resolution", "100"]
    refused = CliRunner().invoke(build_app(plugins=False), command)
    assert isinstance(refused.exception, ConfigError) and "not a power of two" in str(refused.exception)


def test_command_measures_in_a_fresh_process_and_prints_json_alone():
    arguments = ["bench", "compile", "--scene", "maze:0", "--resolution", "32", "--threads", "1", "--json"]
    result = CliRunner().invoke(build_app(plugins=False), arguments)
    assert result.exit_code == 0, result.output
    (row,) = json.loads(result.stdout)["rows"]
    assert (row["scene"], row["resolution"], row["triangles"]) == ("maze:0", 32, row["kept"])
    assert 0 < row["nodes_after"] < row["nodes_before"]
    assert row["import_mb"] <= row["peak_mb"] < 1000
    assert 0 < row["file_mb"] < 1
