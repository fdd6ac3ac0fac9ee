"""The benchmark rooms-v1: splits that share no scene, test scenes that generation reproduces to the bit."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from navi_core.errors import ConfigError, SceneError
from navi_core.record.home import scene_loaders
from navi_core.scenes import FROZEN_HASHES, SPLITS, benchmark_sources, generate_scene, require_frozen


def test_the_splits_are_200_20_40_and_40_scenes_and_share_none():
    names = {split: {source.name for source in benchmark_sources(split)} for split in SPLITS}
    assert {split: len(scenes) for split, scenes in names.items()} == {
        "train": 200, "validation": 20, "test": 40, "final": 40,
    }  # fmt: skip
    assert len(set.union(*names.values())) == 300
    assert names["test"] | names["final"] == set(FROZEN_HASHES)
    assert len(set(FROZEN_HASHES.values())) == 80
    with pytest.raises(ConfigError, match=r"no split 'dev'.*train, validation, test, final"):
        benchmark_sources("dev")


@pytest.mark.parametrize(
    "source", benchmark_sources("test")[::8] + benchmark_sources("final")[::20], ids=lambda source: source.name
)
def test_generation_reproduces_the_frozen_test_scenes(source):
    mesh = generate_scene(source.family, source.seed)
    assert mesh.source_hash == FROZEN_HASHES[source.name]
    assert 95 <= float(np.ptp(mesh.vertices[:, 0]) * np.ptp(mesh.vertices[:, 2])) <= 620


def test_generated_scene_with_another_hash_is_refused():
    mesh = generate_scene("rooms", SPLITS["test"][0])
    require_frozen(mesh)
    require_frozen(replace(mesh, name="elsewhere", source_hash="0" * 64))
    with pytest.raises(SceneError, match="rooms_0220 was generated as 000000000000"):
        require_frozen(replace(mesh, source_hash="0" * 64))


def test_a_split_is_named_like_a_scene():
    assert [name for name, _ in scene_loaders(["rooms-v1:validation"], 64)] == [f"rooms_0{n}" for n in range(200, 220)]
    with pytest.raises(ConfigError, match="no split ''"):
        scene_loaders(["rooms-v1"], 64)
