"""What scenes are called: every script, no name that depends on its neighbours, nothing that breaks a file or a key."""

import os
import random
import unicodedata
from pathlib import Path

import pytest

from navi_core.config import CompileConfig
from navi_core.scenes import compile_source, discover_root, load_gmdag
from navi_core.scenes.corpus.corpus import named_sources, tell_apart
from navi_core.scenes.naming import clean_name, file_stem, path_digest
from tests.scenes.corpus.test_corpus import write_obj

CLEAN = ("house", "Flat-2", "a.b", "台所", "寝室", "浴室", "リビング", "Büro", "Кухня", "مطبخ")
CLEANED = ("Büro O'Brien 1", "my box", "_loft", "a+b", "rm -rf", "100%", "'; drop table scenes; --")


def named(root: Path, *names: str) -> dict[str, str]:
    """Return the scenes' names by file."""
    files = [root / f"{name}.glb" for name in names]
    return {s.path.stem: s.name for s in named_sources([(f, f.relative_to(root)) for f in files], "x")}


@pytest.mark.parametrize("name", CLEAN)
def test_a_clean_name_of_any_script_stays(name, tmp_path):
    assert named(tmp_path, name)[name] == name and file_stem(name) == name


def test_scene_name_depends_only_on_similar_files(tmp_path):
    alone = {name: named(tmp_path, name)[name] for name in CLEAN + CLEANED}
    assert len(set(alone.values())) == len(alone)
    rng = random.Random(0)
    for _ in range(20):
        some = rng.sample(CLEAN + CLEANED, 7)
        assert named(tmp_path, *some) == {name: alone[name] for name in some}


@pytest.mark.parametrize("name", CLEANED)
def test_cleaned_name_has_no_special_characters(name, tmp_path):
    got = named(tmp_path, name)[name]
    assert got == clean_name(name) and not set(got) & set("/\\ '\"%;$*?[]")


def test_clean_name_wins_over_similar_ones(tmp_path):
    both = named(tmp_path, "my box", "my_box", "my+box")
    assert both["my_box"] == "my_box" and both["my box"] == f"my_box_{path_digest('my box.glb')}"
    assert both["my+box"] == f"my_box_{path_digest('my+box.glb')}"


def test_name_is_independent_of_unicode_normalisation(tmp_path):
    apart = unicodedata.normalize("NFD", "Büro")
    assert named(tmp_path, apart)[apart] == "Büro"
    both = named(tmp_path, "Büro", apart)
    assert len(set(both.values())) == 2 and all(name.startswith("Büro.glb_") for name in both.values())
    lossy = unicodedata.normalize("NFD", "Büro 1")
    assert named(tmp_path, lossy)[lossy] == named(tmp_path, "Büro 1")["Büro 1"]


def test_equal_names_are_separated_by_folder_or_digest(tmp_path):
    files = [Path(folder, "scan.glb") for folder in ("台所", "寝室", "a b", "a_b", "a/b")]
    names = {str(s.path.parent): s.name for s in named_sources([(f, f) for f in files], "x")}
    assert names["台所"] == "台所_scan.glb" and names["寝室"] == "寝室_scan.glb"
    assert len(set(names.values())) == 5
    apart = tell_apart(named_sources([(Path("/1/Büro/s.glb"), Path("s.glb"))], "x")
                       + named_sources([(Path("/2/Büro/s.glb"), Path("s.glb"))], "x"))  # fmt: skip
    assert apart[0].name == "Büro_s" and apart[1].name.startswith("Büro_s_")


def test_a_long_name_of_wide_letters_fits_into_a_file_name(tmp_path):
    (source,) = discover_root(write_obj(tmp_path / "in" / f"{'家' * 80}.obj").parent)
    made = compile_source(source, tmp_path / "out", CompileConfig(resolution=32))
    assert len(os.fsencode(made.path.name)) < 200 and load_gmdag(made.path).name == "家" * 80


def test_undecodable_name_is_cleaned(tmp_path):
    name = os.fsdecode(b"caf\xe9")
    got = named(tmp_path, name)[name]
    assert got == "caf" and got.encode()
