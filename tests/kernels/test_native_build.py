"""Building, caching and choosing the C++ library; the twin where there is no compiler."""

from __future__ import annotations

import logging
import os
import pwd
import subprocess
import sys
from pathlib import Path

import pytest

from navi_core.errors import ConfigError
from navi_core.kernels.native import compiler_cache as cache
from navi_core.kernels.native import library as native
from navi_core.kernels.native.compiler_cache import built, cache_root, run_compiler
from navi_core.kernels.rays import tracer
from navi_core.world import Field

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def no_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.delenv("NAVI_TRACER", raising=False)
    tracer._notice.cache_clear()
    native.load_library.cache_clear()
    yield
    tracer._notice.cache_clear()
    native.load_library.cache_clear()


def test_missing_compiler_falls_back_to_numba_with_one_warning(no_compiler, box_scene, caplog) -> None:
    with caplog.at_level(logging.WARNING):
        assert Field([box_scene]).tracer == "numba"
        assert Field([box_scene]).tracer == "numba"
    assert [r for r in caplog.records if "slower numba kernels" in r.message] == caplog.records
    assert len(caplog.records) == 1 and "apt install g++" in caplog.text


def test_native_missing_compiler_error_names_the_package(no_compiler, box_scene) -> None:
    with pytest.raises(ConfigError, match="apt install g\\+\\+"):
        Field([box_scene], tracer="native")


def test_the_environment_chooses_the_tracer(monkeypatch: pytest.MonkeyPatch, box_scene) -> None:
    monkeypatch.setenv("NAVI_TRACER", "numba")
    assert Field([box_scene]).tracer == "numba"
    monkeypatch.setenv("NAVI_TRACER", "fortran")
    with pytest.raises(ConfigError, match="'fortran'; allowed: auto, native, numba"):
        Field([box_scene])


def test_absent_compiler_error_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(ConfigError, match="no-such-compiler"):
        native.find_compiler()


def test_a_failed_build_quotes_the_compiler(compiler, tmp_path: Path) -> None:
    from navi_core.kernels.native.library import LIBRARY, NativeUnavailableError, compile_library, find_compiler

    with pytest.raises(NativeUnavailableError, match="no-such-flag"):
        compile_library(find_compiler(), tmp_path / LIBRARY, ("--no-such-flag",))


@pytest.mark.slow
def test_processes_compile_once_and_rebuild_a_damaged_library(compiler, tmp_path: Path) -> None:
    script = "from navi_core.kernels.native.library import load_library; print(load_library().navi_lanes())"
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path), "PYTHONPATH": str(ROOT)}

    def start() -> subprocess.Popen[str]:
        return subprocess.Popen([sys.executable, "-c", script], env=environment, stdout=subprocess.PIPE, text=True)

    both = [start(), start()]
    answers = [process.communicate(timeout=200)[0].strip() for process in both]
    assert answers[0] == answers[1] and answers[0] in {"4", "8", "16"}
    libraries = list((tmp_path / "navi" / "kernels").glob("*/libnavi_kernels.so"))
    assert len(libraries) == 1
    assert not list((tmp_path / "navi" / "kernels").glob(".build-*"))
    libraries[0].write_bytes(b"\x7fELF damaged")
    again = start()
    assert again.communicate(timeout=200)[0].strip() == answers[0]


def test_a_read_only_cache_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    def build(target: Path) -> None:
        target.write_bytes(b"whole")

    product = built("key", "library", build)
    # Another user has to come to it, and takes no lock: its file is the maker's.
    assert product.parent.stat().st_mode & 0o777 == 0o755
    lock = cache_root() / "key.lock"
    lock.unlink()
    lock.mkdir()
    assert built("key", "library", build) == product
    with pytest.raises(IsADirectoryError):
        built("key", "library", build, again=True)


@pytest.mark.parametrize("planted", ["navi", "navi/kernels/key", "navi/kernels/key/library"])
def test_a_build_planted_by_another_user_is_refused(planted: str, tmp_path: Path, monkeypatch) -> None:
    """The folder is writable by all, like /tmp; its owner may share it."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    product = built("key", "library", lambda target: target.write_bytes(b"whole"))
    owners = {tmp_path / planted: 4001}
    monkeypatch.setattr(cache, "_owners", lambda place: {owners.get(place, os.geteuid())})
    for again in (False, True):
        with pytest.raises(PermissionError, match=f"belongs to another user than .*{planted}"):
            built("key", "library", lambda _: pytest.fail("nothing is to be built there"), again=again)
    owners[tmp_path] = 4001
    assert built("key", "library", lambda _: pytest.fail("it is there")) == product


@pytest.mark.parametrize("umask", [0o000, 0o002])
def test_a_build_is_writable_by_its_owner_alone(umask: int, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    before = os.umask(umask)
    try:
        built("key", "library", lambda target: target.write_bytes(b"whole"))
    finally:
        os.umask(before)
    places = [tmp_path / "home", *(tmp_path / "home").rglob("*")]
    assert len(places) == 6 and not [place for place in places if place.stat().st_mode & 0o022]


@pytest.mark.parametrize("place", [".", "navi", "navi/kernels", "navi/kernels/key", "navi/kernels/key/library"])
def test_build_writable_by_others_is_refused(place: str, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    product = built("key", "library", lambda target: target.write_bytes(b"whole"))
    for mode in (0o757, 0o775):
        (tmp_path / place).chmod(mode)
        for again in (False, True):
            with pytest.raises(PermissionError, match=r"others than its owner may write to it; next: (chmod|rm)"):
                built("key", "library", lambda _: pytest.fail("nothing is to be built there"), again=again)
    if (tmp_path / place).is_dir():
        (tmp_path / place).chmod(0o1777)
        assert built("key", "library", lambda _: pytest.fail("it is there")) == product


def test_build_writable_by_others_during_compilation_is_refused(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    def build(target: Path) -> None:
        target.write_bytes(b"whole")
        cache_root().chmod(0o777)

    with pytest.raises(PermissionError, match="others than its owner"):
        built("key", "library", build)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_cache_link_of_another_user_is_refused(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    built("key", "library", lambda target: target.write_bytes(b"whole"))
    (tmp_path / "home" / "navi").rename(tmp_path / "mine")
    (tmp_path / "home" / "navi").symlink_to(tmp_path / "mine")
    assert built("key", "library", lambda _: pytest.fail("it is there")).is_file()
    os.lchown(tmp_path / "home" / "navi", 4001, 4001)
    with pytest.raises(PermissionError, match="belongs to another user"):
        built("key", "library", lambda _: pytest.fail("nothing is to be built there"))


@pytest.mark.parametrize("language", ["C", "de_DE.UTF-8"])
def test_compilers_run_in_the_c_locale(language: str, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("LC_ALL", language)
    script = "import os, sys; sys.stdout.buffer.write(os.environ['LC_ALL'].encode() + b' \\xa9')"
    assert run_compiler([sys.executable, "-c", script], ConfigError) == "C \N{REPLACEMENT CHARACTER}"


def test_missing_home_warning_names_the_variable(no_compiler, box_scene, caplog, monkeypatch) -> None:
    def unknown(_: int) -> None:
        raise KeyError

    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(pwd, "getpwuid", unknown)
    monkeypatch.setattr(native, "_key", lambda _: "key")
    monkeypatch.setattr(native, "find_compiler", lambda: ["c++"])
    assert Field([box_scene]).tracer == "numba"
    assert "no home directory: '~/.cache'; set XDG_CACHE_HOME to a folder" in caplog.text
