"""Folders with links that lead nowhere, names that are too long, and disks that are full."""

from __future__ import annotations

import errno
import os
import resource

import pytest

from navi_core.config import CompileConfig, CorpusConfig
from navi_core.errors import SceneError
from navi_core.scenes import compile_mesh, compile_to_file, discover
from navi_core.scenes.corpus.examination import examine
from tests.conftest import box_triangles, mesh_of

TETRAHEDRON = "v 0 0 0\nv 4 0 0\nv 0 3 0\nv 0 0 4\nf 1 2 3\nf 1 2 4\nf 1 3 4\nf 2 3 4\n"
SMALL = CompileConfig(resolution=16)


def test_cyclic_and_dangling_links_do_not_hide_other_scenes(tmp_path):
    (tmp_path / "good.obj").write_text(TETRAHEDRON)
    (tmp_path / "cycle.obj").symlink_to("cycle.obj")
    (tmp_path / "dangling.obj").symlink_to("nowhere.obj")
    (tmp_path / "self").symlink_to(".", target_is_directory=True)
    sources = discover(CorpusConfig(root=str(tmp_path)))
    assert "good" in [source.name for source in sources]
    for source in sources:
        if source.name != "good":
            with pytest.raises(SceneError):
                compile_mesh(source.path, SMALL)
    assert examine(tmp_path) is not None


@pytest.mark.parametrize("name", ["x" * 240, "-rf", "a\nb", "$(exit)", "ü" * 100])
def test_scene_with_any_file_name_compiles(tmp_path, name):
    file = tmp_path / f"{name}.obj"
    file.write_text(TETRAHEDRON)
    made = compile_to_file(file, tmp_path / "out", SMALL)
    assert made.path.is_file() and made.path.name[0].isalnum()
    assert compile_to_file(file, tmp_path / "out", SMALL).skipped


def test_a_full_disk_is_reported_and_leaves_no_files(tmp_path):
    scene = compile_mesh(mesh_of(box_triangles((-2, 0, -2), (2, 2.5, 2))), CompileConfig(resolution=64))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    for version in (1, 2):
        # Once before: what is compiled on its first call is written to a cache, under the same limit.
        scene.save(tmp_path / "before.gmdag", version)
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
        try:
            with pytest.raises(SceneError, match="cannot be written"):
                scene.save(tmp_path / "out" / "box.gmdag", version)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        assert list((tmp_path / "out").iterdir()) == []


def test_linked_dataset_is_found_once(tmp_path):
    data, root = tmp_path / "versioned", tmp_path / "root"
    for folder in (data / "hm3d", root / "own"):
        folder.mkdir(parents=True)
        (folder / f"{folder.name}.obj").write_text(TETRAHEDRON)
    (data / "hm3d" / "up").symlink_to(root, target_is_directory=True)
    for name, target in (("a_link", data / "hm3d"), ("b_link", data / "hm3d"), ("c_link", root / "own")):
        (root / name).symlink_to(target, target_is_directory=True)
    found = {source.path.relative_to(root).as_posix() for source in discover(CorpusConfig(root=str(root)))}
    assert found == {"a_link/hm3d.obj", "own/own.obj"}


def test_an_unreadable_folder_is_reported(tmp_path, monkeypatch, caplog):
    (tmp_path / "good.obj").write_text(TETRAHEDRON)
    (tmp_path / "secret").mkdir()
    scan = os.scandir

    def scandir(path):
        if str(path).endswith("secret"):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return scan(path)

    monkeypatch.setattr(os, "scandir", scandir)
    assert [source.name for source in discover(CorpusConfig(root=str(tmp_path)))] == ["good"]
    assert "secret: cannot be read and is left out: Permission denied" in caplog.text
