"""Studies: lost and duplicate trials, pruning, resuming, and the best trial."""

import contextlib
import itertools
import json
import math
import os
import shutil
import signal
import sys
import time

import dagster as dg
import numpy as np
import optuna
import pytest
import torch

from navi_core.config import config_hash, parse_config
from navi_core.config.registry import LEARNER_NAMES
from navi_core.demos import Pairs, write_pairs
from navi_core.errors import ConfigError, RecordError, RunError, UnavailableError
from navi_core.presets import load_preset, resolve_config
from navi_core.record import RunDirectory, navi_home
from navi_pipeline.lib.studies.catalogue import (
    SPACES,
    STUDIES,
    corner_config,
    find_study,
    over_scenes,
    search_space,
    trial_config,
)
from navi_pipeline.lib.studies.perform import perform_study, require_success, study_result
from navi_pipeline.lib.studies.population import trial_statistics
from navi_pipeline.lib.studies.results import audit_faults, pick_trial, record_trials, trial_row, write_preset
from navi_pipeline.lib.studies.storage import repair_journal, study_folder
from navi_pipeline.lib.studies.trial_queue import HINDERED, INTERRUPTED, TrialQueue, read_study
from navi_pipeline.lib.studies.worker import ASSET, partition_of, run_trial, work
from navi_pipeline.lib.training.trainer_client import algorithm_of
from navi_pipeline.lib.warehouse.warehouse import Warehouse
from navi_pipeline.settings import StudyConfig
from tests.pipeline.empty_warehouse import start_warehouse
from tests.pipeline.studies.small_studies import (
    SPACE,
    STEPS,
    analytic_trainer,
    complete_by,
    forked_worker,
    reward,
    small_study,
)


@pytest.mark.parametrize("tail", [b'{"op_code": 5, "tri', b"x" * 200_000])
def test_journal_drops_a_torn_last_line_alone(tail):
    config = small_study(trials=4)
    with TrialQueue(config) as queue:
        complete_by(queue)
        before = [trial.params for trial in queue.trials()]
    journal = study_folder("small") / "journal.log"
    whole = journal.read_bytes()
    journal.write_bytes(whole + tail)
    with TrialQueue(config.model_copy(update={"trials": 5})) as queue:
        assert [trial.params for trial in queue.trials()] == before
        complete_by(queue)
        assert queue.left() == 0
    assert journal.read_bytes().startswith(whole)


def test_a_journal_that_is_one_torn_line_becomes_empty(tmp_path):
    file = tmp_path / "journal.log"
    file.write_bytes(b'{"half')
    assert repair_journal(file) == 6 and file.read_bytes() == b""
    assert repair_journal(file) == 0 and repair_journal(tmp_path / "missing.log") == 0


@pytest.mark.slow
def test_killed_workers_lose_and_duplicate_no_trial():
    """Three kills among two workers, at arbitrary points."""
    config = small_study(trials=8, workers=2)
    TrialQueue(config).close()
    workers = [forked_worker(config, seconds=0.03) for _ in range(2)]
    for kill in range(3):
        time.sleep(0.2)
        os.kill(workers[kill % 2], signal.SIGKILL)
        os.waitpid(workers[kill % 2], 0)
        workers[kill % 2] = forked_worker(config, seconds=0.03)
    for worker in workers:
        os.waitpid(worker, 0)
    with TrialQueue(config) as queue:
        complete_by(queue)
        assert queue.left() == 0
        record_trials(queue, queue.trials())  # as perform_study does: a kill may fall between an outcome and its row
        study_result(queue, "finished", reused=False)
        rows = [trial_row(queue, trial) for trial in queue.trials()]
        assert queue.claim() is None
    assert audit_faults(config, rows) == []
    assert audit_faults(config, rows[:-1]) != [] and audit_faults(config, rows, partitions=()) != []
    stored = Warehouse().query(
        "select count(*) as n, count(distinct run_id) as runs from trials where value is not null"
    )
    assert stored.to_dict("records") == [{"n": 8, "runs": 8}]


def test_trial_lost_between_two_draws_keeps_the_first_and_draws_the_second_as_it_would_have(monkeypatch):
    straight = TrialQueue(small_study("straight", trials=1, seed=5, sampler="random")).claim().params
    config = small_study(trials=1, seed=5, sampler="random")
    lost = TrialQueue(config)
    with monkeypatch.context() as patch:
        patch.setattr(optuna.Trial, "suggest_int", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            lost.claim()
    lost.close(orderly=False)
    with TrialQueue(config) as queue:
        assert queue.trials()[0].params == {"ppo.learning_rate": straight["ppo.learning_rate"]}
        complete_by(queue)
        (row,) = [trial_row(queue, each) for each in queue.trials()]
    assert row["params"] == straight and row["attempt"] == 2 and audit_faults(config, [row]) == []


def test_study_of_an_older_version_with_a_trial_for_each_attempt_counts_every_slot_once():
    config = small_study(trials=3)
    with TrialQueue(config) as queue:
        for attributes in ({"slot": 0, "outcome": "lost"}, {"slot": 1}):
            queue.study.enqueue_trial({}, user_attrs=attributes)
        queue.study.tell(queue.study.ask(), state=optuna.trial.TrialState.FAIL)
        queue.study.enqueue_trial({}, user_attrs={"slot": 0, "retry_of": 0, "attempt": 2})
        assert queue.left() == 3
        complete_by(queue)
        rows = [trial_row(queue, trial) for trial in queue.trials()]
    assert [(row["slot"], row["state"]) for row in rows] == [
        (0, "failed"),
        (1, "complete"),
        (0, "complete"),
        (2, "complete"),
    ]
    assert audit_faults(config, rows) == []


def test_trial_fails_after_its_attempts_lost_their_workers():
    config = small_study(trials=1, attempts=2)
    for _ in range(2):
        with TrialQueue(config) as lost:
            assert lost.claim() is not None
    with TrialQueue(config) as queue:
        assert queue.claim() is None and queue.left() == 0
        last = queue.trials()[-1]
        assert (last.state.name, last.user_attrs["outcome"], len(queue.trials())) == ("FAIL", "crash", 1)


@pytest.mark.slow
def test_proposals_of_one_worker_are_the_same_after_a_resume():
    def proposals(name, sittings):
        for trials in sittings:
            with TrialQueue(small_study(name, trials=trials, seed=3)) as queue:
                complete_by(queue)
        with TrialQueue(small_study(name, trials=sittings[-1], seed=3)) as queue:
            return [trial.params for trial in queue.trials()]

    # Start-up trials depend on the number of trials, so both studies begin with the same number.
    assert proposals("once", [5]) == proposals("twice", [5, 5])


@pytest.mark.slow
def test_killed_study_ends_like_an_uninterrupted_one(monkeypatch):
    from optuna.storages.journal import JournalFileBackend

    def train(config, **_):
        return {"reward_ema": reward(config), "steps": STEPS, "reason": "total_steps", "checkpoint": "x.pt"}

    def entered(self, logs):
        if not left:
            raise KeyboardInterrupt
        left.pop()
        write(self, logs)

    def ended(name, entries):
        config = small_study(name, trials=3, sampler="tpe", seed=4)
        for left[:] in ([0] * entries, [0] * 1000):
            with contextlib.suppress(KeyboardInterrupt), TrialQueue(config) as queue:
                work(queue, on_line=lambda _: None, train=train)
        with TrialQueue(config) as queue:
            done = {slot: (trial.params, trial.values) for slot, trial in queue.latest().items()}
            assert [trial.number for trial in queue.trials() if not trial.state.is_finished()] == []
        return done, 1000 - len(left)

    write, left = JournalFileBackend.append_logs, []
    monkeypatch.setattr(JournalFileBackend, "append_logs", entered)
    straight, _ = ended("straight", 1000)
    assert sorted(straight) == [0, 1, 2] and None not in straight[2]
    for entries in (*range(1, 9), 17, 25):
        assert ended(f"killed{entries}", entries)[0] == straight, f"killed after {entries} entries"


@pytest.mark.slow
def test_pruning_is_the_same_after_a_lost_attempt(tmp_path, monkeypatch):
    config = small_study(trials=6, pruning={"min_steps": 30, "reduction_factor": 3}, seed=1)

    def ended(place, lost):
        monkeypatch.setenv("NAVI_HOME", str(start_warehouse(tmp_path / place)))

        def train(settings, *, partition, **given):
            answer = analytic_trainer(settings, partition=partition, **given)
            if partition in lost:
                lost.remove(partition)
                raise KeyboardInterrupt
            return answer

        while True:
            with contextlib.suppress(KeyboardInterrupt), TrialQueue(config) as queue:
                work(queue, on_line=lambda _: None, train=train)
                return {slot: (trial.params, trial.values, trial.state.name) for slot, trial in queue.latest().items()}

    straight = ended("straight", [])
    assert {state for *_, state in straight.values()} == {"COMPLETE", "PRUNED"}
    assert ended("lost", [partition_of("small", slot) for slot in (0, 1, 3)]) == straight


def test_worker_that_died_under_another_hostname_is_lost(monkeypatch):
    """A container has a new hostname at every start; only a lock file in this home decides about a worker."""
    config = small_study(trials=1)
    dead = TrialQueue(config)
    dead.claim()
    dead._lock.__exit__(None, None, None)
    monkeypatch.setattr("socket.gethostname", lambda: "another")
    lock = dead._lock_of(dead.worker)
    elsewhere = lock.rename(lock.with_suffix(".elsewhere"))
    with TrialQueue(config) as queue:
        assert queue.claim() is None and queue.in_living_hands() == 0
        elsewhere.rename(lock)
        complete_by(queue)
        assert queue.left() == 0


def test_trial_of_a_failed_worker_resumes_on_another_hostname(monkeypatch):
    """Example: a full disk prevents the requeue, then the container starts with another hostname."""
    config = small_study(trials=1)

    def claim_and_fail():
        with TrialQueue(config) as queue:
            queue.claim()
            raise OSError("full")

    with pytest.raises(OSError, match="full"):
        claim_and_fail()
    monkeypatch.setattr("socket.gethostname", lambda: "another")
    with TrialQueue(config) as queue:
        complete_by(queue)
        assert queue.left() == 0


def test_two_machines_that_claim_at_once_get_different_slots(tmp_path, monkeypatch):
    """With a server's storage each machine has a home, and so a lock, of its own."""
    import optuna

    config = small_study(trials=4, sampler="random", storage=f"sqlite:///{tmp_path / 'server.db'}")
    ask, between = optuna.Study.ask, []
    books = []
    for place in ("one", "other"):
        monkeypatch.setenv("NAVI_HOME", str(start_warehouse(tmp_path / place)))
        books.append(TrialQueue(config))

    def asked(self, *given):
        if not between:
            between.append(None)
            between[0] = books[1].claim()
        return ask(self, *given)

    monkeypatch.setattr(optuna.Study, "ask", asked)
    trials = [books[0].claim(), between[0]]
    assert [trial.user_attrs["slot"] for trial in trials] == [1, 0]
    assert len({trial.suggest_float("x", 0, 1) for trial in trials}) == 2
    for queue in books:
        queue.close()


@pytest.mark.slow
def test_command_waits_for_trials_of_another_command(monkeypatch):
    from navi_pipeline.lib.studies import perform

    sittings, reported = [], []
    sit = perform._sitting
    monkeypatch.setattr(perform, "_sitting", lambda *given: sittings.append(1) or sit(*given))
    monkeypatch.setattr(perform.time, "sleep", lambda _: None)
    config = small_study(trials=1)
    with TrialQueue(config) as other:
        trial = other.claim()

        def report(line):
            reported.append(line)
            run_trial(other, trial, on_line=print, ending=lambda: False, train=analytic_trainer)

        assert perform_study(config, on_line=report).row["status"] == "finished"
    assert len(sittings) == 1 and reported == ["study small: waiting for 1 trials that another command of it trains"]


def test_study_without_living_workers_is_shown_as_stopped(capsys):
    from navi_pipeline.cli.study import show

    dead = TrialQueue(small_study(trials=1))
    dead.claim()
    show("small", as_json=True)
    assert json.loads(capsys.readouterr().out)["status"] == "running"
    dead._lock.__exit__(None, None, None)
    show("small", as_json=True)
    shown = json.loads(capsys.readouterr().out)
    assert (shown["status"], [row["state"] for row in shown["rows"]]) == ("stopped", ["waiting"])


def test_trials_that_lag_behind_are_pruned_while_they_train():
    config = small_study(trials=12, pruning={"min_steps": 30, "reduction_factor": 3}, seed=1)
    with TrialQueue(config) as queue:
        complete_by(queue)
        rows = [trial_row(queue, trial) for trial in queue.trials()]
        ended = {row["state"] for row in rows}
        best = pick_trial(queue)
    assert ended == {"complete", "pruned"}
    assert all((row["step"] < 90) == (row["state"] == "pruned") for row in rows)
    assert best.value == max(row["value"] for row in rows if row["state"] == "complete")


@pytest.mark.slow
def test_an_infeasible_trial_is_never_the_best():
    config = small_study(trials=8, constraints=[{"metric": "memory_gib", "at_most": 0.25}])
    with TrialQueue(config) as queue:
        complete_by(queue)
        rows = [trial_row(queue, trial) for trial in queue.trials()]
        assert pick_trial(queue).params["ppo.epochs"] <= 2
    assert {row["feasible"] for row in rows} == {True, False}
    assert all(row["feasible"] == (row["params"]["ppo.epochs"] <= 2) for row in rows)
    assert all(
        row["constraints"]["memory_gib"] == pytest.approx(0.1 * row["params"]["ppo.epochs"] - 0.25) for row in rows
    )


@pytest.mark.slow
def test_two_objectives_give_a_pareto_front_without_pruning():
    objectives = [{"metric": "reward_ema"}, {"metric": "sps", "summary": "median"}]
    with TrialQueue(small_study(objectives=objectives, sampler="nsga2")) as queue:
        complete_by(queue)
        done = [trial.values for trial in queue.trials()]
        front = [trial.values for trial in queue.best()]
        page = study_result(queue, "finished", reused=False).report.read_text()
    for values in front:
        assert not any(a >= values[0] and b >= values[1] and [a, b] != values for a, b in done)
    assert "Front" in page and "http" not in page.replace("http://www.w3.org", "")
    with pytest.raises(ConfigError, match="single objective"):
        small_study(objectives=objectives, pruning={})


def test_trainer_failure_is_the_outcome_of_its_trial():
    def wrong(config, **_):
        raise RunError("the trainer ended with exit code 1; its last lines:\nRuntimeError: out of memory")

    with TrialQueue(small_study(trials=2)) as queue:
        work(queue, on_line=lambda _: None, train=wrong)
        rows = [trial_row(queue, trial) for trial in queue.trials()]
        assert [(row["state"], row["outcome"]) for row in rows] == [("failed", "out_of_memory")] * 2
        assert rows[0]["reason"] == "RuntimeError: out of memory"
        with pytest.raises(RunError, match="no complete and feasible trial"):
            pick_trial(queue)


def test_study_whose_trials_all_failed_fails_with_the_reasons_and_tries_them_again():
    def wrong(config, **_):
        raise RunError("the trainer ended with exit code 1; its last lines:\nValueError: odd")

    with TrialQueue(small_study(trials=2)) as queue:
        work(queue, on_line=lambda _: None, train=wrong)
        params = [trial.params for trial in queue.latest().values()]
        with pytest.raises(RunError, match="every trial of study small failed: 2 × ValueError: odd; mend that"):
            require_success(queue)
        queue.retry_failed()
        queue.retry_failed()
        complete_by(queue)
        require_success(queue)
        assert [trial.params for trial in queue.latest().values()] == params and len(queue.trials()) == 4
        queue.retry_failed()
        assert queue.left() == 0


@pytest.mark.parametrize("missing", [pytest.param("GPU", marks=pytest.mark.slow), "Ray"])
def test_missing_infrastructure_ends_the_study_and_consumes_no_trial(monkeypatch, missing):
    if missing == "Ray":
        monkeypatch.setenv("NAVI_TRAINER", "ray")
        monkeypatch.setitem(sys.modules, "ray", None)
    reason = {"GPU": "device 'cuda': no GPU", "Ray": "NAVI_TRAINER=ray needs Ray"}[missing]
    settings = {"task": "cart_pole", "total_steps": STEPS, "device": "cuda" if missing == "GPU" else "cpu"}
    with TrialQueue(small_study(trials=2, settings=settings)) as queue:
        with pytest.raises(UnavailableError, match=f"{reason}.*mend that, then `navi study resume small`"):
            work(queue, on_line=lambda _: None)
        assert [trial_row(queue, trial)["state"] for trial in queue.trials()] == ["waiting"]
        assert queue.left() == 2


def test_full_disk_stops_the_worker_and_requeues_the_trial():
    def full(config, **_):
        raise UnavailableError("the trainer has no room: x.pt: No space left on device")

    with TrialQueue(small_study(trials=2)) as queue:
        with pytest.raises(RunError, match=r"No space left on device; mend that, then `navi study resume small`"):
            work(queue, on_line=lambda _: None, train=full)
        assert [trial_row(queue, trial)["state"] for trial in queue.trials()] == ["waiting"]
        complete_by(queue)
        assert [trial.state.name for trial in queue.latest().values()] == ["COMPLETE", "COMPLETE"]


@pytest.mark.slow
def test_run_older_than_its_study_keeps_its_metric_rows():
    """The study's folder was removed: the trainer finds a finished run and reports no metrics again."""
    answers = {}

    def train(config, *, partition, **given):
        if partition not in answers:
            answers[partition] = analytic_trainer(config, partition=partition, **given)
        return answers[partition]

    def values():
        with TrialQueue(small_study(trials=2, objectives=[{"metric": "episode_return"}])) as queue:
            work(queue, on_line=lambda _: None, train=train)
            return [trial.values for trial in queue.trials()]

    first = values()
    shutil.rmtree(study_folder("small"))
    assert values() == first and None not in first


@pytest.mark.slow
def test_timeout_is_an_outcome_and_interruption_requeues():
    with TrialQueue(small_study("late", trials=1, timeout=1e-6)) as queue:
        complete_by(queue)
        assert trial_row(queue, queue.trials()[0])["outcome"] == "timeout"
    ending = iter([False, False, True, True])
    with TrialQueue(small_study("left", trials=1)) as queue:
        work(queue, on_line=lambda _: None, train=analytic_trainer, ending=lambda: next(ending))
        assert [trial_row(queue, trial)["state"] for trial in queue.trials()] == ["waiting"]
        complete_by(queue)
        assert [trial.state.name for trial in queue.trials()] == ["COMPLETE"]


def test_trial_with_an_externally_ended_trainer_is_requeued():
    reported = iter([True] + [False] * 100)
    with TrialQueue(small_study("ended", trials=1)) as queue:
        work(
            queue,
            on_line=lambda _: None,
            train=lambda *a, **k: analytic_trainer(*a, **(k | {"stop": lambda: next(reported)})),
        )
        rows = [trial_row(queue, trial) for trial in queue.trials()]
    assert [(row["state"], row["attempt"], row["step"], row["reason"]) for row in rows] == [("complete", 2, 90, None)]


@pytest.mark.slow
def test_trial_fails_after_its_trainer_was_ended_in_every_attempt():
    with TrialQueue(small_study(trials=1, attempts=3)) as queue:
        work(
            queue,
            on_line=lambda _: None,
            train=lambda *a, **k: analytic_trainer(*a, **(k | {"stop": lambda: True})),
        )
        assert [(t.user_attrs["outcome"], t.user_attrs["attempt"]) for t in queue.trials()] == [("crash", 3)]
        assert queue.left() == 0 and queue.trials()[-1].user_attrs["reason"] == HINDERED


@pytest.mark.parametrize("reason", [HINDERED, INTERRUPTED])
def test_trial_with_a_locked_run_is_requeued_untrained(monkeypatch, reason):
    monkeypatch.setattr("navi_pipeline.lib.training.supervised.LOCK_PATIENCE", 0.3)
    config = small_study(trials=1)
    with TrialQueue(config) as queue:
        trial = queue.claim()
        settings = trial_config(config, trial.params)
        with RunDirectory.open(navi_home() / "runs", asset=ASSET, partition=partition_of("small", 0), config=settings):
            ended = run_trial(
                queue,
                trial,
                on_line=print,
                ending=lambda: reason == INTERRUPTED,
                train=lambda *_, **__: pytest.fail("it was trained"),
            )
        assert ended == "interrupted" and trial.user_attrs["reason"] == reason
        again = queue.claim()
    assert again.number == 0 and again.user_attrs["attempt"] == 1 + (reason == HINDERED)


def test_trial_with_a_run_locked_at_start_is_requeued():
    def late(settings, *, asset, partition, **_):
        with RunDirectory.open(navi_home() / "runs", asset=asset, partition=partition, config=settings):
            raise RunError("run trial-small-0 is in use by process 42; wait for it, or stop it first")

    def held(settings, *, asset, partition, **_):
        taken.append(RunDirectory.open(navi_home() / "runs", asset=asset, partition=partition, config=settings))
        raise RunError(f"run {taken[0].run_id} is in use by process 42; wait for it, or stop it first")

    taken = []
    config = small_study(trials=1)
    with TrialQueue(config) as queue:
        assert run_trial(queue, queue.claim(), on_line=print, ending=lambda: False, train=held) == "interrupted"
        assert queue.trials()[0].user_attrs["reason"] == HINDERED
        again = queue.claim()
        assert again.number == 0 and again.user_attrs["attempt"] == 2
        taken[0].close()
    with TrialQueue(small_study("free", trials=1)) as queue:
        # The same message about an unlocked run is another failure.
        assert run_trial(queue, queue.claim(), on_line=print, ending=lambda: False, train=late) == "failed"


def test_study_resumes_with_its_own_settings_only():
    TrialQueue(small_study()).close()
    with pytest.raises(ConfigError, match="begun with another seed"):
        TrialQueue(small_study(seed=7))
    TrialQueue(small_study(trials=20, workers=2)).close()
    assert read_study("small").trials == 20
    with pytest.raises(RecordError, match="no study 'other'; known: small"):
        read_study("other")


@pytest.mark.slow
def test_study_refuses_to_resume_with_a_changed_preset(tmp_path, monkeypatch):
    from navi_pipeline.lib.studies import perform

    monkeypatch.setattr(perform, "_sitting", lambda queue, *_: complete_by(queue) or 1)
    preset = tmp_path / "mine.yaml"
    preset.write_text("ppo: {gamma: 0.9}")
    config = small_study(trials=1, preset=str(preset))
    perform_study(config, on_line=print)
    preset.write_text("ppo: {gamma: 0.99}")
    with pytest.raises(ConfigError, match=r"was begun with ppo\.gamma 0\.9; its preset .*mine\.yaml changed since"):
        perform_study(config.model_copy(update={"trials": 2}), on_line=print)
    with TrialQueue(config) as queue, pytest.raises(ConfigError, match="begun with"):
        write_preset(queue, pick_trial(queue), tmp_path / "best.yaml")
    with TrialQueue(config.model_copy(update={"trials": 2})) as queue, pytest.raises(ConfigError, match="begun with"):
        complete_by(queue)
    before = Warehouse().query("select config from trials")["config"][0]
    assert perform_study(config, on_line=print).reused, "a study that is done trains nothing"
    Warehouse().ingest()
    assert Warehouse().query("select config from trials")["config"][0] == before
    preset.write_text("ppo: {gamma: 0.9}")
    assert perform_study(config.model_copy(update={"trials": 2}), on_line=print).row["completed"] == 2


def test_changed_preset_settings_differ_and_newer_settings_do_not(tmp_path):
    preset = tmp_path / "mine.yaml"
    preset.write_text("env: {reward: {weights: {collision: 0.5}}}")
    with TrialQueue(small_study(preset=str(preset))) as queue:
        assert queue.differing() == []
        kept = queue.folder / "settings.json"
        known = json.loads(kept.read_text())
        del known["ppo"]["clip"]
        kept.write_text(json.dumps(known | {"warp": 1, "grpo": None}))
        assert queue.differing() == []
        preset.write_text("env: {reward: {weights: {collision: 0.5}}}\nppo: {clip: 0.3}")
        assert queue.differing() == ["ppo.clip 0.2"], "a Navi without this setting trained as its default says"
        preset.write_text("env: {reward: {weights: {collision: 0.5, clearance: 1.0}}}")
        assert queue.differing() == ["env.reward.weights {'collision': 0.5}"]
        with pytest.raises(ConfigError, match="begin another, `navi study run small --set name=small-2`"):
            queue.require_same_settings()


def test_settings_of_an_older_study_are_read_from_its_trials(tmp_path):
    preset = tmp_path / "mine.yaml"
    preset.write_text("ppo: {gamma: 0.9}")
    with TrialQueue(small_study(trials=1, preset=str(preset))) as queue:
        complete_by(queue)
        kept = queue.folder / "settings.json"
        kept.unlink()
        assert queue.differing() == [] and kept.exists()
        kept.unlink()
        preset.write_text("ppo: {gamma: 0.99}")
        assert queue.differing() == ["ppo.gamma 0.9"] and not kept.exists()


def test_study_with_a_removed_setting_is_shown_and_resumed():
    space = {"dqn.learning_rate": {"kind": "float", "low": 1e-4, "high": 1e-2, "log": True}}
    config = small_study(learner="dqn", trials=1, space=space)
    with TrialQueue(config) as queue:
        complete_by(queue)
    file = study_folder("small") / "study.json"
    reported = json.loads(file.read_text())
    file.write_text(
        json.dumps(reported | {"settings": reported["settings"] | {"dqn": {"gamma": 0.99, "microbatch": 4}}})
    )
    known = read_study("small").model_copy(update={"trials": 2})
    assert known.settings["dqn"] == {"gamma": 0.99}
    with TrialQueue(known) as queue:
        assert queue.differing() == [] and pick_trial(queue).number == 0
        complete_by(queue)
        assert queue.left() == 0


def test_custom_learner_needs_a_named_search_space(monkeypatch):
    monkeypatch.setattr(LEARNER_NAMES, "_custom", ["hesitant"])
    share = {"learner_options.share": {"kind": "float", "low": 0.1, "high": 1.0}}
    config = small_study(learner="hesitant", space=share, trials=1)
    with TrialQueue(config) as queue:
        complete_by(queue)
        assert 0.1 <= trial_row(queue, queue.trials()[0])["config"]["learner_options"]["share"] <= 1.0
    with pytest.raises(ConfigError, match="what is to vary of hesitant, a learner of your own"):
        TrialQueue(small_study("other", learner="hesitant", space={}))
    monkeypatch.setattr(LEARNER_NAMES, "_custom", [])
    assert read_study("small").learner == "hesitant"
    with pytest.raises(ConfigError, match="no learner 'hesitant'; allowed: ppo"):
        TrialQueue(read_study("small"))


def test_override_of_a_study_keeps_its_other_settings():
    settings = find_study("quick", overrides={"settings": {"total_steps": 512}}).settings
    assert settings == STUDIES["quick"]["settings"] | {"total_steps": 512}


def test_invalid_search_space_is_refused_before_training():
    with pytest.raises(ConfigError, match="did you mean 'learning_rate'"):
        TrialQueue(small_study(space={"ppo.learning_rat": SPACE["ppo.learning_rate"]}))
    with pytest.raises(ConfigError, match="has no logarithm"):
        small_study(space={"ppo.clip": {"kind": "float", "low": 0, "high": 1, "log": True}})


@pytest.mark.parametrize("name", STUDIES)
def test_catalogue_studies_vary_existing_settings(name):
    assert corner_config(find_study(name)).algorithm == algorithm_of(find_study(name).learner)


@pytest.mark.parametrize("preset", ["rooms", "rooms_standard"])
def test_dqn_study_removes_the_privileged_critic_of_its_preset(preset):
    study = parse_config(StudyConfig, {"name": "x", "learner": "dqn", "preset": preset})
    assert not trial_config(study, {}).policy.privileged_critic
    assert not load_preset(preset, {"algorithm": "dqn"}).policy.privileged_critic
    with pytest.raises(ConfigError, match="has no critic"):
        trial_config(study, {"policy.privileged_critic": True})


def test_study_over_other_scenes_has_another_name():
    one, other = (over_scenes(find_study("ppo"), scenes) for scenes in (["a.gmdag"], ["b.gmdag"]))
    assert one.name != other.name and one.name.startswith("ppo-")
    assert trial_config(one, {}).corpus.scenes == ("a.gmdag",) and trial_config(one, {}).total_steps == 131_072
    with pytest.raises(RunError, match="no training scene"):
        over_scenes(find_study("ppo"), [])


def test_study_that_is_interrupted_is_stopped_and_resumes(monkeypatch):
    from navi_pipeline.lib.studies import perform

    config = small_study(trials=2)
    with monkeypatch.context() as until:
        until.setattr(perform, "_sitting", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            perform_study(config, on_line=print)
    Warehouse().ingest()
    assert Warehouse().query("select status from studies")["status"].tolist() == ["stopped"]
    with TrialQueue(config) as queue:
        complete_by(queue)
    result = perform_study(config, on_line=print)
    assert result.row["status"] == "finished" and result.reused and len(result.trials) == 2


@pytest.mark.parametrize("learner", SPACES)
def test_trials_are_not_registered_as_versions(learner):
    commands = []

    def trainer(config, *, command, **_):
        commands.append(command)
        raise RunError("enough")

    given = {"demonstrations": ("flights",), "settings": {}} if learner == "bc" else {}
    with TrialQueue(small_study(learner=learner, space={}, preset="quick", trials=1, **given)) as queue:
        work(queue, on_line=lambda _: None, train=trainer)
    assert commands and all("--no-register" in command for command in commands)


@pytest.mark.parametrize("learner", SPACES)
def test_every_learner_has_a_space(learner):
    given = {"demonstrations": ("flights",)} if learner == "bc" else {}
    config = parse_config(StudyConfig, {"name": "x", "learner": learner, "preset": "quick"} | given)
    assert corner_config(config).algorithm == algorithm_of(learner) and len(search_space(config)) >= 3


def test_best_trial_preset_reproduces_its_config(tmp_path):
    with TrialQueue(small_study(trials=3)) as queue:
        complete_by(queue)
        best = pick_trial(queue)
        write_preset(queue, best, tmp_path / "best.yaml")
        config = trial_config(queue.config, best.params)
    taken = resolve_config(preset=str(tmp_path / "best.yaml"), environ={})
    assert config_hash(taken) == config_hash(config) == best.user_attrs["config_hash"]
    assert config_hash(resolve_config(file=tmp_path / "best.yaml", environ={})) == config_hash(config)


def test_study_asset_reports_each_trial_as_a_partition():
    from navi_pipeline.defs.experiments import study, trial
    from navi_pipeline.defs.resources import resources_of

    with TrialQueue(find_study("quick")) as queue:
        complete_by(queue)
    with dg.DagsterInstance.ephemeral() as instance:
        instance.add_dynamic_partitions("studies", ["quick"])
        for _ in range(2):
            done = dg.materialize(
                [study, trial], instance=instance, partition_key="quick", selection=[study], resources=resources_of()
            )
            assert done.success
        assert instance.get_materialized_partitions(trial.key) == {"quick-0000", "quick-0001"}
        events = instance.fetch_materializations(dg.AssetRecordsFilter(asset_key=trial.key), limit=10).records
        assert len(events) == 2
        metadata = events[0].asset_materialization.metadata
        assert metadata["run_id"].value.startswith("trial-quick-000") and "ppo.learning_rate" in metadata
        shown = done.asset_materializations_for_node("study")[0].metadata
        assert shown["complete"].value == 2 and shown["reused"].value is True


@pytest.mark.slow
def test_trial_of_a_real_training_is_recorded(tmp_path):
    """With real worker and trainer processes."""
    config = find_study("quick", overrides={"trials": 1})
    settings = config.settings | {"total_steps": 256}
    reported = []
    result = perform_study(
        config.model_copy(update={"settings": settings}), on_line=lambda _: None, on_trial=reported.append
    )
    assert audit_faults(config, result.trials) == []
    (row,) = reported
    assert row["memory_gib"] > 0.05 and row["step"] == 256 and os.path.exists(row["checkpoint"])
    metrics = Warehouse().query("select count(*) as n from metrics where run_id = ?", [row["run_id"]])
    assert metrics["n"][0] > 0
    kept = json.loads((study_folder("quick") / "study.json").read_text())
    assert parse_config(StudyConfig, kept).settings == settings


@pytest.mark.slow
def test_dpo_study_learns_from_a_file_of_pairs_and_records_its_population(tmp_path):
    """With real worker and trainer processes."""
    draws = torch.Generator().manual_seed(0)
    seen, acted = torch.rand(8, 2, 5, 4, generator=draws), torch.zeros(8, 2, 5, 1)
    acted[:, 0] = 1.0
    lengths, scores = torch.full((8, 2), 5), torch.tensor([[1.0, 0.0]], dtype=torch.float64).repeat(8, 1)
    write_pairs(tmp_path / "pairs.jsonl", Pairs(seen.half(), acted, lengths, scores, {}))
    settings = STUDIES["quick"]["settings"] | {
        "task_options": {"masked": False},
        "total_steps": 256,
        "dpo": {"rollout": 16, "bptt": 8, "pairs": str(tmp_path / "pairs.jsonl")},
    }
    goal = {"metric": "held_out_margin"}
    config = find_study(
        "dpo", overrides={"preset": None, "constraints": [], "pruning": None, "trials": 2, "workers": 1}
    )
    config = parse_config(StudyConfig, config.model_dump() | {"settings": settings, "objectives": [goal]})
    result = perform_study(config, on_line=lambda _: None)
    assert result.row["completed"] == 2 and audit_faults(config, result.trials) == []
    assert all(row["config"]["dpo"]["pairs_hash"] for row in result.trials)
    rows = Warehouse().query("select step, name, value from metrics where run_id = 'study-dpo'")
    found = {name: value for step, name, value in rows.itertuples(index=False) if step == 2}
    first, second = (row["params"]["dpo.update_epochs"] for row in sorted(result.trials, key=lambda row: row["slot"]))
    assert found["spread_dpo.update_epochs"] == pytest.approx(abs(first - second) / 3)
    assert found["objective_max"] == max(row["value"] for row in result.trials)


def test_population_statistics_follow_their_definitions():
    space = find_study("ppo_speed").space
    params = [{"policy.encoder": name, "ppo.epochs": epochs, "ppo.learning_rate": rate} for name, epochs, rate in
              (("rayvit", 1, 1e-4), ("rayvit", 4, 3e-3), ("ring_cnn", 2, 3e-4))]  # fmt: skip
    values = [1.0, 4.0, 4.0]
    found = trial_statistics(space, params, values)
    pairs = list(itertools.combinations(range(3), 2))
    assert found["spread_policy.encoder"] == pytest.approx(2 / 3)
    assert found["spread_ppo.epochs"] == pytest.approx(
        np.mean([abs(params[i]["ppo.epochs"] - params[j]["ppo.epochs"]) / 3 for i, j in pairs])
    )
    places = [math.log(one["ppo.learning_rate"] / 1e-4) / math.log(30) for one in params]
    assert found["spread_ppo.learning_rate"] == pytest.approx(np.mean([abs(places[i] - places[j]) for i, j in pairs]))
    assert found["population_diversity"] == pytest.approx(np.mean([v for k, v in found.items() if k.startswith("spr")]))
    thirds = -(2 / 3 * math.log(2 / 3) + 1 / 3 * math.log(1 / 3))
    assert found["strategy_entropy"] == pytest.approx((thirds + 2 * math.log(3)) / 3)
    assert (found["objective_share_00"], found["objective_share_09"]) == (pytest.approx(1 / 3), pytest.approx(2 / 3))
    assert trial_statistics(space, [params[0]], [1.0])["population_diversity"] == 0.0


@pytest.mark.slow
def test_killed_workers_finish_each_of_thirty_trials_once(tmp_path, monkeypatch):
    from navi_pipeline.bench.study import kill_and_resume

    for name in ("NAVI_HOME", "DAGSTER_HOME"):
        monkeypatch.setenv(name, "")
    monkeypatch.delenv("DAGSTER_HOME")
    found = kill_and_resume(tmp_path, trials=30, workers=2, kills=3, seed=0, on_line=print)
    assert found["faults"] == [] and found["kills"] == 3 and found["partitions"] == 30
