"""Durable files are complete or absent, and writable by their owner alone."""

from __future__ import annotations

import os
import time

import pytest

from navi_core.record.durable import durable_file, sweep_left, write_durably


def test_interrupted_write_leaves_the_file_unchanged(tmp_path):
    path = tmp_path / "book.json"
    write_durably(path, b"old")

    def write_and_interrupt():
        with durable_file(path) as stream:
            stream.write(b"new")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_and_interrupt()
    assert path.read_bytes() == b"old" and os.listdir(tmp_path) == ["book.json"]


def test_a_file_is_whole_when_it_is_synced_and_before_it_has_its_name(tmp_path, monkeypatch):
    synced = []
    monkeypatch.setattr(os, "fsync", lambda number: synced.append((os.fstat(number).st_size, path.exists())))
    path = tmp_path / "book.json"
    write_durably(path, b"four")
    assert synced[0] == (4, False) and len(synced) == 2


def test_only_files_of_killed_writers_are_removed(tmp_path):
    # Hidden files of other programs stay at any age.
    others = (".draft.tmp", ".draft.odt.tmp", ".1.tmp", "whole.pt")
    for name, age in ((".dead.pt.1.tmp", 7200), (".alive.pt.2.tmp", 60), *((name, 7200) for name in others)):
        (tmp_path / name).write_bytes(b"part")
        then = time.time() - age
        os.utime(tmp_path / name, (then, then))
    sweep_left(tmp_path)
    assert sorted(os.listdir(tmp_path)) == sorted([".alive.pt.2.tmp", *others])


@pytest.mark.parametrize(("umask", "mode"), [(0o000, 0o644), (0o022, 0o644), (0o077, 0o600)])
def test_written_file_is_owner_writable_under_any_umask(tmp_path, umask, mode):
    before = os.umask(umask)
    try:
        write_durably(tmp_path / "book.json", b"{}")
    finally:
        os.umask(before)
    assert (tmp_path / "book.json").stat().st_mode & 0o777 == mode
