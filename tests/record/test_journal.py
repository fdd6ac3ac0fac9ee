"""Journals: frames survive as they were written, every bound of a head is held, damage is left out and reported."""

from __future__ import annotations

import os
import zlib

import numpy as np
import pytest

from navi_core.errors import RecordError
from navi_core.record.journal import FrameFormat, Journal, JournalWriter

PLAIN, CHECKED = FrameFormat(b"TESTREC1", checked=False), FrameFormat(b"TESTREC2")
MOST = 1000
GIVEN = {"kind": "test journal", "max_bytes": MOST}


def opened(path, **more) -> Journal:
    return Journal(path, (PLAIN, CHECKED), **GIVEN, **more)


def written(path, payloads, *, formats=(PLAIN, CHECKED), pack=False) -> list[int]:
    """Append payloads with the topic t, a second apart; return where each begins."""
    with JournalWriter(path, formats, **GIVEN) as writer:
        places = [writer.append(b"t", payload, 10.0 + i, pack=pack) for i, payload in enumerate(payloads)]
        assert writer.written == len(payloads)
    return places


@pytest.mark.parametrize("formats", [(PLAIN,), (PLAIN, CHECKED)])
def test_frames_are_read_as_they_were_written_and_a_journal_keeps_its_format(tmp_path, formats):
    path = tmp_path / "new" / "a.rec"
    first = written(path, [b"one", b"two" * 100], formats=formats, pack=True)
    second = written(path, [b"three"])
    with opened(path) as journal:
        assert journal.format == formats[-1] and not journal.unfinished and not journal.damage and not journal.gaps
        assert [frame.offset for frame in journal.frames] == [*first, *second] == sorted([*first, *second])
        assert [journal.read(frame) for frame in journal.frames] == [
            (b"t", b"one"),
            (b"t", b"two" * 100),
            (b"t", b"three"),
        ]
        assert [frame.packed for frame in journal.frames] == [False, True, False]
        assert [frame.time for frame in journal.frames] == [10, 11, 10] and journal.end == path.stat().st_size


def test_a_body_is_packed_only_where_that_saves_a_tenth():
    noise = np.random.default_rng(0).bytes(500)
    assert len(CHECKED.frame(b"t", noise, 0.0, pack=True)) == CHECKED.size + 501
    assert len(CHECKED.frame(b"t", bytes(500), 0.0, pack=True)) < 100 < len(CHECKED.frame(b"t", bytes(500), 0.0))


def test_elapsed_time_stands_still_where_the_clock_goes_back(tmp_path):
    with JournalWriter(tmp_path / "a", (CHECKED,), **GIVEN) as writer:
        for when in (100.0, 101.5, 50.0, 51.0):
            writer.append(b"t", b"x", when)
    with opened(tmp_path / "a") as journal:
        assert journal.frames.elapsed().tolist() == [0.0, 1.5, 1.5, 2.5]
    written(tmp_path / "b", [])
    with opened(tmp_path / "b") as journal:
        assert len(journal.frames) == 0 and len(journal.frames.elapsed()) == 0


@pytest.mark.parametrize(
    ("fields", "valid"),
    [
        ((64 + MOST, 64 + MOST, 0, 64, 0, 0.0), True),
        ((65 + MOST, 65 + MOST, 0, 1, 0, 0.0), False),
        ((1, 1, 0, 1, 0, 0.0), True),
        ((0, 0, 0, 0, 0, 0.0), False),
        ((5, 0, 0, 1, 1, 0.0), False),
        ((5, 65 + MOST, 0, 1, 1, 0.0), False),
        ((5, 64 + MOST, 0, 1, 1, 0.0), True),
        ((5, 5, 0, 0, 0, 0.0), False),
        ((5, 5, 0, 5, 0, 0.0), True),
        ((5, 5, 0, 6, 0, 0.0), False),
        ((100, 100, 0, 64, 0, 0.0), True),
        ((100, 100, 0, 65, 0, 0.0), False),
        ((5, 6, 0, 1, 1, 0.0), True),
        ((5, 6, 0, 1, 2, 0.0), False),
        ((6, 6, 0, 1, 1, 0.0), False),
        ((5, 6, 0, 1, 0, 0.0), False),
        ((5, 5, 0, 1, 0, 99e9), True),
        ((5, 5, 0, 1, 0, 1e11), False),
        ((5, 5, 0, 1, 0, -1.0), False),
        ((5, 5, 0, 1, 0, float("nan")), False),
    ],
)
def test_every_bound_of_a_head_is_held(tmp_path, fields, valid):
    (tmp_path / "a").write_bytes(CHECKED.magic + CHECKED.head(*fields) + bytes(fields[0]))
    if valid:
        with opened(tmp_path / "a") as journal:
            assert len(journal.frames) == 1 and journal.frames[0].stored == fields[0]
    else:
        with pytest.raises(RecordError, match="byte 8"):
            opened(tmp_path / "a")


def test_frames_behind_damage_are_found_and_the_gap_is_reported(tmp_path):
    path = tmp_path / "a"
    places = written(path, [bytes([i]) * 300 for i in range(250)])
    data = bytearray(path.read_bytes())
    data[places[2] + 6] ^= 1  # the head of the third frame
    data[places[240] : places[245]] = bytes(places[245] - places[240])
    path.write_bytes(data)
    with opened(path) as journal:
        kept = [journal.read(frame)[1][0] for frame in journal.frames]
        assert len(kept) == 250 - 6 and journal.gaps == 2 and not journal.broken_off
        left_out = places[3] - places[2]
        assert f"byte {places[2]}; {left_out} bytes are left out" in journal.damage
    with pytest.raises(RecordError, match=f"byte {places[2]}"):
        opened(path, end_only=True)
    with pytest.raises(RecordError, match=f"byte {places[2]}"):
        JournalWriter(path, (CHECKED,), **GIVEN)
    data[places[1] + CHECKED.size + 3] ^= 1  # the body of the second one
    path.write_bytes(data[: places[240] + 60])
    with opened(path) as journal:
        assert journal.broken_off and journal.end == places[240] and journal.unfinished == 0
        with pytest.raises(RecordError, match="is damaged"):
            journal.read(journal.frames[1])


def test_a_search_for_frames_goes_on_over_pieces(tmp_path, monkeypatch):
    monkeypatch.setattr("navi_core.record.journal._SEARCH", 64)
    path = tmp_path / "a"
    places = written(path, [b"x" * 100] * 3)
    data = bytearray(path.read_bytes())
    for gap in range(60, 132):
        shifted = data[: places[1]] + b"\xf5MSG" * (gap // 4) + bytes(gap % 4) + data[places[2] :]
        path.write_bytes(shifted)
        with opened(path) as journal:
            assert [frame.offset for frame in journal.frames] == [places[0], places[1] + gap]


@pytest.mark.parametrize("lost", [1, 50, 99, 130])
def test_an_unfinished_frame_is_left_out_and_cut_off(tmp_path, lost):
    path = tmp_path / "a"
    places = written(path, [b"x" * 100] * 2)
    whole = path.read_bytes()
    path.write_bytes(whole[:-lost])
    with opened(path) as journal:
        assert len(journal.frames) == 1 and journal.end == places[1] and not journal.damage
        assert journal.unfinished == len(whole) - lost - places[1]
    with JournalWriter(path, (CHECKED,), **GIVEN) as writer:
        assert writer.cut == len(whole) - lost - places[1] and path.stat().st_size == places[1]
        assert writer.append(b"t", b"x" * 100, 11.0) == places[1]
    assert path.read_bytes() == whole


@pytest.mark.parametrize("other", ["unpacked", "short", "long", "behind"])
def test_a_body_that_unpacks_to_something_else_is_refused(tmp_path, other):
    packed = zlib.compress(b"t" + b"y" * 99)
    body = {"unpacked": b"no zlib", "behind": packed}.get(other, packed)
    raw = {"short": 101, "long": 99}.get(other, 100)
    body += b"more" if other == "behind" else b""
    head = CHECKED.head(len(body), raw, zlib.crc32(body), 1, 1, 0.0)
    (tmp_path / "a").write_bytes(CHECKED.magic + head + body)
    with opened(tmp_path / "a") as journal:
        if other == "behind":
            assert journal.read(journal.frames[0]) == (b"t", b"y" * 99)
        else:
            with pytest.raises(RecordError, match="cannot be unpacked" if other == "unpacked" else "another length"):
                journal.read(journal.frames[0])


def test_one_writer_at_a_time_and_another_kind_of_file_is_refused(tmp_path):
    path = tmp_path / "a"
    with JournalWriter(path, (CHECKED,), **GIVEN) as writer:
        assert path.stat().st_mode & 0o777 == 0o644 & ~(mask := os.umask(0)) and os.umask(mask) == 0
        with pytest.raises(RecordError, match="in use by another process"):
            JournalWriter(path, (CHECKED,), **GIVEN)
        place = writer.append(b"t", b"one", 0.0)
        writer.append(b"t", b"two", 0.0)
        writer.truncate(place)
        writer.append(b"t", b"three", 0.0)
        writer.sync()
    with opened(path) as journal:
        assert [journal.read(frame)[1] for frame in journal.frames] == [b"three"]
    (tmp_path / "b").write_bytes(b"something else")
    with pytest.raises(RecordError, match=r"not a test journal .*TESTREC1 or TESTREC2"):
        opened(tmp_path / "b")


def test_a_created_journal_is_locked_has_its_first_frame_and_can_be_removed(tmp_path):
    path = tmp_path / "a"
    descriptors = len(os.listdir("/proc/self/fd"))
    writer = JournalWriter.create(path, CHECKED, b"t", b"first", 5.0)
    with pytest.raises(RecordError, match="in use"):
        JournalWriter(path, (CHECKED,), **GIVEN)
    writer.append(b"t", b"second", 6.0)
    with opened(path) as journal:
        assert [journal.read(frame)[1] for frame in journal.frames] == [b"first", b"second"]
    writer.remove()
    assert not path.exists() and len(os.listdir("/proc/self/fd")) == descriptors
