"""Faults: servers killed and restarted, floods, slow readers, broken frames, ports in use."""

from __future__ import annotations

import errno
import os
import signal
import threading
import time
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest

from navi_core.config import ActorConfig, ContinuousTrainingConfig, EnvironmentConfig
from navi_core.errors import RecordError, ServiceError
from navi_core.record import MetricLog
from navi_core.service.actor.server import ActorServer
from navi_core.service.environment.server import EnvironmentServer
from navi_core.service.learning.experience_record import ExperienceJournal, ServiceRecord, recover_journals
from navi_core.service.learning.flight_learning import FlightLearning
from navi_core.service.wire import Fault, StepRequest, StepResult, decode, encode
from navi_core.service.wire.sockets import Subscriber
from tests.service.conftest import ANY, BRISK, SMALL, requester, tiny_model, until
from tests.service.learning.test_buffer import experience
from tests.service.learning.test_learning_actor import rows
from tests.service.test_servers import ask, command
from tests.service.wire_samples import all_messages


def killed(server) -> None:
    """End a server without its drain, as a kill would: what it was doing is lost."""
    server.drain = lambda: None
    server.stop()
    server.thread.join(10)


def test_flight_continues_after_an_environment_restart(stage, tmp_path) -> None:
    server = stage.environment(sessions=2)
    endpoints = {"publish": server.publisher.endpoint, "answer": server.answer_endpoint}
    learning = FlightLearning(tiny_model(), ContinuousTrainingConfig(training_interval=0.05), None, outbox=tmp_path)
    actor = stage.actor(server, learning=learning, sample=True)
    until(lambda: actor.decisions > 20)
    killed(server)
    time.sleep(0.2)
    completed, before = learning.buffer.get_stats()["completed_count"], actor.decisions
    again = stage.environment(sessions=2, **endpoints)
    until(lambda: actor.decisions > before + 20)
    assert again.steps >= 20 and len(actor.sessions) == 2
    stats = learning.buffer.get_stats()
    # What was complete stays; what the killed server flew without an answer is not completed by the new one's rewards.
    assert stats["completed_count"] > completed and stats["pending_count"] <= 2
    assert learning.trainer.metrics.errors == 0


@pytest.mark.parametrize("asked", [pytest.param("before the kill", marks=pytest.mark.slow), "after it"])
def test_request_for_a_killed_environment_is_not_flown_by_the_next(stage, asked: str) -> None:
    """Its drones are elsewhere: a gate that let the motion pass looked at another place."""
    server = stage.environment(sessions=2)
    actor = stage.actor(server)
    until(lambda: actor.decisions > 20)
    decide, held, on = actor._decide, threading.Event(), threading.Event()
    if asked == "before the kill":
        server._fly_batch = lambda: None
        until(lambda: server._requests)
    else:
        actor._decide = lambda group: (held.set(), on.wait(10), decide(group))
        assert held.wait(10)
    killed(server)
    actor._decide = decide
    on.set()
    time.sleep(1.5 * BRISK.peer_timeout_seconds)
    endpoints = {"publish": server.publisher.endpoint, "answer": server.answer_endpoint}
    again, begun = (
        EnvironmentServer(stage.field, SMALL, EnvironmentConfig(sessions=2, wire=BRISK, **endpoints)),
        time.time(),
    )
    next_batch, flown = again._requests.next_batch, []

    def recorded():
        batch = next_batch()
        flown.extend(action for request in batch for action in request.actions.values())
        return batch

    again._requests.next_batch = recorded
    stage.run(again)
    until(lambda: len(flown) > 20)
    assert all(action.timestamp > begun for action in flown) and {action.step_id for action in flown[:2]} == {1}


def test_suspended_actor_keeps_its_sessions(stage, monkeypatch) -> None:
    """A frozen container, a paused machine: it stops amid a decision, or while it waits."""
    slept = [0.0]
    clock = SimpleNamespace(
        time=time.time, perf_counter=time.perf_counter, monotonic=lambda: time.monotonic() + sum(slept)
    )
    monkeypatch.setattr("navi_core.service.actor.server.time", clock)
    actor = stage.actor(stage.environment(sessions=4))
    until(lambda: actor.decisions > 20 and len(actor.sessions) == 4)
    met = {id(session) for session in actor.sessions}
    for place in ("_decide", "_receive"):
        work, before = getattr(actor, place), actor.decisions
        monkeypatch.setattr(actor, place, lambda *what, work=work: (slept.append(100.0), work(*what))[1])
        until(lambda: len(slept) > 1)
        monkeypatch.setattr(actor, place, work)
        until(lambda before=before: actor.decisions > before + 20)
        slept[:] = [sum(slept)]
    assert {id(session) for session in actor.sessions} == met


def test_flight_continues_after_an_actor_restart(stage) -> None:
    server = stage.environment(sessions=2)
    first = stage.actor(server)
    until(lambda: first.decisions > 20)
    killed(first)
    before = server.steps
    second = stage.actor(server)
    until(lambda: second.decisions > 20 and server.steps >= before + 20)  # a last decision may be on its way
    assert server.steps >= before + 20


def test_a_kill_loses_no_completed_experience(tmp_path) -> None:
    """Some rows are in the outbox and some wait for it when the process is killed; a last line is cut off."""
    child = os.fork()
    if child == 0:
        record = ServiceRecord("v001", 0, "hash", tmp_path)
        for number in range(12):
            record.experience(experience(number=number, actual_reward=0.25))
            if number == 6:
                record.flush(now=True)
        os.pwrite(record._journal._current._descriptor, b"\xf5MSG1234", record._journal._current._end)
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    living = ServiceRecord("v002", 0, "hash", tmp_path)
    found = rows(tmp_path, "service_experiences")
    assert sorted(row["number"] for row in found) == list(range(1, 13))
    # Journals of a running service are left alone, and recovered ones are not recovered twice.
    living.experience(experience(actual_reward=0.5))
    other = ServiceRecord("v003", 0, "hash", tmp_path)
    assert len(rows(tmp_path, "service_experiences")) == 12
    living.close()
    other.close()
    assert len(rows(tmp_path, "service_experiences")) == 13 and not list((tmp_path / "journals").iterdir())


def test_full_disk_leaks_no_descriptors_and_recovers(tmp_path, caplog, monkeypatch) -> None:
    """Waiting rows are bounded, retries become rarer, and rows that were not dropped are recorded later."""
    monkeypatch.setattr("navi_core.service.learning.experience_record._MAX_WAITING", 50)
    record = ServiceRecord("v001", 0, "hash", tmp_path)
    full = OSError(errno.ENOSPC, "No space left on device")
    opened = len(os.listdir("/proc/self/fd"))
    with monkeypatch.context() as patch:
        patch.setattr("navi_core.record.metric_log.write_durably", lambda *_: (_ for _ in ()).throw(full))
        patch.setattr(os, "pwrite", lambda *_: (_ for _ in ()).throw(full))
        waits = []
        for _ in range(8):
            for _ in range(20):
                record.experience(experience(actual_reward=0.25))
            with pytest.raises(RecordError, match="No space left"):
                record.flush(now=True)
            waits.append(record._wait)
    assert len(os.listdir("/proc/self/fd")) == opened
    assert waits == sorted(waits) and waits[0] == 10.0 and waits[-1] == 300.0
    record.flush(now=True)
    assert record._wait == 5.0
    record.close()
    # The first twenty were in the log when it failed; behind them there was room for fifty.
    found = sorted(row["number"] for row in rows(tmp_path, "service_experiences"))
    assert found == [*range(1, 21), *range(111, 161)] and record.lost == 90
    assert "90 experiences are not recorded" in caplog.text and not list((tmp_path / "journals").iterdir())


def test_recorded_fraction_covers_all_drones(tmp_path) -> None:
    """Drones complete in turns: every second, or every sixteenth, would always be the same ones."""
    for share in (0.0, 0.0625, 0.1, 0.5, 1.0):
        config = ContinuousTrainingConfig(record_share=share)
        record = ServiceRecord("v001", 0, "hash", tmp_path / str(share), config.record_share)
        for number in range(1600):
            record.experience(experience(session_id=number % 16, actual_reward=0.25))
        record.close()
        kept = Counter(row["session_id"] for row in rows(tmp_path / str(share), "service_experiences"))
        assert abs(kept.total() - 1600 * share) <= 3.5 * (1600 * share * (1 - share)) ** 0.5
        assert not share or (len(kept) == 16 and max(kept.values()) - min(kept.values()) <= 40)


def test_full_outbox_makes_no_journal_per_retry(tmp_path, monkeypatch) -> None:
    """The journal can be written, the outbox cannot."""
    record = ServiceRecord("v001", 0, "hash", tmp_path)
    full = OSError(errno.EDQUOT, "Disk quota exceeded")
    with monkeypatch.context() as patch:
        patch.setattr("navi_core.record.metric_log.write_durably", lambda *_: (_ for _ in ()).throw(full))
        for _ in range(20):
            record.experience(experience(actual_reward=0.25))
            with pytest.raises(RecordError, match="quota"):
                record.flush(now=True)
    assert len(list((tmp_path / "journals").iterdir())) == 2
    record.close()
    assert len(rows(tmp_path, "service_experiences")) == 20 and not list((tmp_path / "journals").iterdir())


def test_partially_written_row_loses_no_other_row(tmp_path, monkeypatch) -> None:
    journal = ExperienceJournal(tmp_path / "journals", "service-1", {})
    write = os.pwrite

    def half(file, data, at):
        # A disk with room for a part takes that part, and reports an error only for the rest.
        if at > journal._current._end:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(file, data[:9], at)

    for number in range(6):
        with monkeypatch.context() as patch:
            if number in (2, 3):
                patch.setattr(os, "pwrite", half)
            journal.append({"number": number, "session_id": 1})
    os.close(journal._current._descriptor)  # as a kill does
    assert recover_journals(tmp_path / "journals", tmp_path / "outbox") == 4


def test_long_journal_is_recovered_completely(tmp_path, monkeypatch) -> None:
    """After an hour without segments (no inode left) the journal is longer than one read."""
    monkeypatch.setattr("navi_core.service.learning.experience_record._ROWS_PER_FLUSH", 100)
    journal = ExperienceJournal(tmp_path / "journals", "service-1", {})
    for number in range(250):
        journal.append({"number": number, "session_id": 1, "pad": "x" * 1000})
    os.close(journal._current._descriptor)  # as a kill does
    flush, flushed = MetricLog.flush, []
    monkeypatch.setattr(MetricLog, "flush", lambda log: (flushed.append(log), flush(log)))
    assert recover_journals(tmp_path / "journals", tmp_path / "outbox") == 250
    read = [row["number"] for row in rows(tmp_path / "outbox", "service_experiences")]
    assert sorted(read) == list(range(250)) and len(flushed) == 3


def test_foreign_file_is_reported_and_left(tmp_path, caplog) -> None:
    folder = tmp_path / "journals"
    folder.mkdir()
    (folder / "d.jsonl").write_text("x" * 2**20)
    head = '{"run_id":"service-1","context":{}}\n'
    for name, text in {"a": "no json\n", "b": "[1]\n{}\n", "c": "{}\n{}\n", "e": head + "[1]\n"}.items():
        (folder / f"{name}.jsonl").write_text(text)
    (folder / "empty.jsonl").touch()
    ServiceRecord("v001", 0, "hash", tmp_path).close()
    assert sorted(file.stem for file in folder.iterdir()) == ["a", "b", "c", "d", "e"]
    assert caplog.text.count("inspect it, then remove it") == 5


@pytest.mark.parametrize("at", [5, SMALL.max_steps])
def test_lost_answer_is_requested_again_and_flown_once(stage, at: int) -> None:
    """Also for the last decision of an episode: the observation is then the next episode's, as after a restart."""
    server = stage.environment()
    send, lost = server._reply, []

    def losing(envelope, message):
        if server.steps == at and not lost:
            lost.append(message)
            return
        send(envelope, message)

    server._reply = losing
    actor = stage.actor(server)
    until(lambda: actor.decisions > at + 5)
    assert lost and server.metrics.counter("repeated_total") >= 1 and actor.metrics.counter("repeated_total") >= 1
    actor.stop()
    actor.thread.join(10)
    assert server.steps == actor.decisions


@pytest.mark.slow
def test_server_answers_ten_thousand_broken_frames(stage) -> None:
    import zmq

    count = 10_000
    server = stage.environment()
    rng = np.random.default_rng(0)
    originals = [b"".join(encode(m)) for m in all_messages()[2:6]]
    socket = zmq.Context.instance().socket(zmq.DEALER)
    socket.setsockopt(zmq.LINGER, 0)
    socket.connect(server.answer_endpoint)
    sent = answered = 0
    end = time.monotonic() + 120
    while answered < count and time.monotonic() < end:
        while sent < count and sent - answered < 40:
            data = bytearray(originals[sent % len(originals)])
            for place in rng.integers(0, len(data), 4):
                data[place] = rng.integers(256)
            parts = int(rng.integers(1, 5))
            cuts = sorted(rng.integers(0, len(data), parts - 1).tolist())
            frames = [bytes(data[a:b]) for a, b in zip([0, *cuts], [*cuts, len(data)])]
            socket.send_multipart([b"", *frames] if sent % 2 else [b"", b"step_request_v2", bytes(data)])
            sent += 1
        waits = 1000
        while socket.poll(waits):
            waits = 0
            reply = decode(socket.recv_multipart()[1:])
            assert isinstance(reply, Fault | StepResult)
            answered += 1
    socket.close()
    assert answered == count, (sent, answered)
    with requester(server.answer_endpoint) as other:
        assert isinstance(ask(other, StepRequest(command(0, 1), 1, time.time())), StepResult)


def test_an_oversized_frame_closes_its_connection_alone(stage) -> None:
    import zmq

    server = stage.environment(wire=BRISK.model_copy(update={"max_message_bytes": 4096}))
    socket = zmq.Context.instance().socket(zmq.DEALER)
    socket.setsockopt(zmq.LINGER, 0)
    socket.connect(server.answer_endpoint)
    socket.send_multipart([b"", b"step_request_v2", bytes(1_000_000)])
    assert not socket.poll(200)
    socket.close()
    with requester(server.answer_endpoint) as other:
        assert isinstance(ask(other, StepRequest(command(0, 1), 1, time.time())), StepResult)


def test_flood_beyond_the_backlog_is_refused_per_client(stage) -> None:
    import zmq

    server = stage.environment(sessions=2, backlog=8)
    flooding = zmq.Context.instance().socket(zmq.DEALER)
    flooding.setsockopt(zmq.LINGER, 0)
    flooding.setsockopt(zmq.SNDHWM, 0)
    flooding.connect(server.answer_endpoint)
    for step in range(1, 2001):
        flooding.send_multipart([b"", *encode(StepRequest(command(0, step), step, time.time()))])
    with requester(server.answer_endpoint) as other:
        start = time.monotonic()
        reply = ask(other, StepRequest(command(1, 1), 1, time.time()))
        assert time.monotonic() - start < 5 and isinstance(reply, StepResult | Fault)
    until(lambda: server.metrics.counter("refused_total") > 0)
    assert len(server._requests) <= 8
    flooding.close()


def test_slow_reader_delays_no_other(stage) -> None:
    server = stage.environment(sessions=1)
    slow = Subscriber([server.publisher.endpoint], ["distance_matrix_v2"])
    until(lambda: server.publisher._watching)
    actor = stage.actor(server)
    until(lambda: actor.decisions > 300, 20)
    slow.close()
    assert actor.decisions > 300


def test_port_in_use_is_reported_before_serving(stage) -> None:
    server = stage.environment()
    actor = stage.actor(server)
    for what, build in {
        "observations": lambda: EnvironmentServer(
            stage.field, SMALL, EnvironmentConfig(publish=server.publisher.endpoint, answer=ANY)
        ),
        "step requests": lambda: EnvironmentServer(
            stage.field, SMALL, EnvironmentConfig(publish=ANY, answer=server.answer_endpoint)
        ),
        "actions": lambda: ActorServer(tiny_model(), ActorConfig(publish=actor.publisher.endpoint)),
    }.items():
        with pytest.raises(ServiceError, match=f"{what}.*taken by another process"):
            build()
