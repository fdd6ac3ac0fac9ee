"""The outbox: whole segments, acknowledged rows, full disks."""

import errno
import hashlib
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from navi_core.errors import RecordError
from navi_core.record import NATURAL_KEYS, MetricLog

CONTEXT = {"seed": 3, "hardware": "a machine", "versions": {"numpy": "2"}, "revision": None, "config_hash": "abcd"}


def pending(log):
    """Rows that are not yet acknowledged."""
    return sum(map(len, log._rows.values()))


def segments(outbox: Path) -> list[tuple[dict, list[dict]]]:
    found = []
    for file in sorted(outbox.glob("*.ndjson")):
        head, *lines = file.read_text().splitlines()
        found.append((json.loads(head), [json.loads(line) for line in lines]))
    return found


def test_foreign_files_do_not_count_as_segments(tmp_path):
    (tmp_path / "zebra.ndjson").write_text("")
    (tmp_path / f"{2**62:020d}-draft.txt").write_text("")
    log = MetricLog(tmp_path, "run", CONTEXT)
    log.scalars(64, {"reward_ema": 0.5})
    log.flush()
    (made,) = (file.name for file in tmp_path.glob("*-metrics.ndjson"))
    assert int(made[:20]) < 2**62


def test_flush_writes_one_whole_segment_per_table_with_its_context(tmp_path):
    log = MetricLog(tmp_path, "run", CONTEXT)
    log.scalars(64, {"reward_ema": 0.5, "sps": np.float32(2.0)})
    log.row("checkpoints", {"step": 64, "path": tmp_path / "c.pt"})
    assert segments(tmp_path) == [] and pending(log) == 3
    log.flush()
    assert pending(log) == 0
    (head, rows), (_, other) = segments(tmp_path)
    assert head["table"] == "metrics" and head["context"] == CONTEXT and head["rows"] == 2
    assert [(row["step"], row["name"], row["value"]) for row in rows] == [(64, "reward_ema", 0.5), (64, "sps", 2.0)]
    assert other[0]["path"] == str(tmp_path / "c.pt")


def test_checksum_covers_the_rows(tmp_path):
    with MetricLog(tmp_path, "run", CONTEXT) as log:
        log.scalars(1, {"a": 1.0})
    data = next(tmp_path.glob("*.ndjson")).read_bytes()
    head, _, body = data.partition(b"\n")
    assert json.loads(head)["sha256"] == hashlib.sha256(body).hexdigest()


def test_non_finite_values_survive_as_strict_json(tmp_path):
    with MetricLog(tmp_path, "run", {}) as log:
        log.scalars(1, {"a": float("nan"), "b": float("inf"), "c": float("-inf")})
    values = [row["value"] for row in segments(tmp_path)[0][1]]
    assert values == ["NaN", "Infinity", "-Infinity"]


@pytest.mark.parametrize(
    ("call", "word"),
    [
        (lambda log: log.row("metric", {}), "allowed: metrics"),
        (lambda log: log.row("episodes", {"scene": "a", "start": 0}), "evaluation_id"),
        (lambda log: log.row("events", {"event": "x", "payload": object()}), "not plain data"),
        (lambda log: log.scalars(1, {"a": "many"}), "not a number"),
    ],
)
def test_bad_rows_are_refused_by_name(tmp_path, call, word):
    with pytest.raises(RecordError, match=word):
        call(MetricLog(tmp_path, "run", {}))


@pytest.mark.parametrize("broken", ["replace", "fsync"])
def test_full_disk_keeps_pending_rows_and_no_partial_file(tmp_path, monkeypatch, broken):
    log = MetricLog(tmp_path, "run", {})
    log.scalars(1, {"a": 1.0, "b": 2.0})
    real, failures = getattr(os, broken), iter([True])

    def full(descriptor, *rest):
        if next(failures, False):
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(descriptor, *rest)

    monkeypatch.setattr(os, broken, full)
    with pytest.raises(RecordError, match=f"outbox {tmp_path}.*No space left"):
        log.flush()
    assert list(tmp_path.iterdir()) == [] and pending(log) == 2
    log.flush()
    assert [len(rows) for _, rows in segments(tmp_path)] == [2] and pending(log) == 0


def test_a_real_file_size_limit_raises_and_a_retry_writes_every_row(tmp_path):
    code = f"""
import resource, signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
from navi_core.errors import RecordError
from navi_core.record import MetricLog
log = MetricLog({str(tmp_path)!r}, "run", {{}})
for step in range(2000):
    log.scalars(step, {{"a": 1.0}})
soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
try:
    log.flush()
except RecordError as error:
    assert "outbox" in str(error), error
else:
    raise SystemExit("the limit was not felt")
import os
assert os.listdir({str(tmp_path)!r}) == [], os.listdir({str(tmp_path)!r})
resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
log.flush()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert segments(tmp_path)[0][0]["rows"] == 2000


def test_an_outbox_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RecordError, match="cannot make the outbox"):
        MetricLog(tmp_path / "file" / "outbox", "run", {})


def test_threads_lose_no_row(tmp_path):
    log = MetricLog(tmp_path, "run", {})

    def work(number: int) -> None:
        for step in range(200):
            log.scalars(step, {f"m{number}": 1.0})
            if step % 50 == 0:
                log.flush()

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    log.close()
    assert sum(len(rows) for _, rows in segments(tmp_path)) == 800


def test_observers_see_the_scalars(tmp_path):
    log, seen = MetricLog(tmp_path, "run", {}), []
    log.observe(lambda step, values: seen.append((step, dict(values))))
    log.scalars(5, {"a": 1.0})
    assert seen == [(5, {"a": 1.0})]


@pytest.mark.parametrize("folder", [".", "done"])
def test_segments_sort_in_the_order_of_writing_after_the_clock_is_set_back(tmp_path, monkeypatch, folder):
    names, now = [], time.time_ns()
    (tmp_path / folder).mkdir(exist_ok=True)
    for hours in (24, 0, 12, 48):
        monkeypatch.setattr(time, "time_ns", lambda hours=hours: now + hours * 3600 * 10**9)
        with MetricLog(tmp_path, "run", {}) as log:
            log.forget()
            log.scalars(1, {"a": float(hours)})
        for file in sorted(tmp_path.glob("*.ndjson")):
            names += [file.name] if file.name not in names else []
            file.rename(tmp_path / folder / file.name)
    assert len(names) == 8 and names == sorted(names)


def test_every_specified_table_has_a_natural_key():
    promised = "metrics runs scenes checkpoints models promotions evaluations episodes stage_timings benchmarks events"
    promised += " studies trials service_experiences service_versions comparisons alias_moves"
    promised += " checks nights named_courses"
    assert set(NATURAL_KEYS) == set(promised.split())
