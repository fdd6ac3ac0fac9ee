"""Run directories: keys, the fence, fresh starts."""

import json
import os
import shutil
import subprocess
import sys

import pytest

from navi_core.config import PPOConfig, TrainConfig, config_hash
from navi_core.errors import RunError
from navi_core.record import RunDirectory
from navi_core.record.run_directory import learned_by_other_code


def opened(root, **kw):
    return RunDirectory.open(root, asset="ppo_policy", partition="quick", config=kw.pop("config", TrainConfig()), **kw)


def test_the_same_configuration_is_the_same_run_and_keeps_its_checkpoints(tmp_path):
    with opened(tmp_path) as run:
        assert run.fresh and run.run_id == f"ppo_policy-quick-{config_hash(TrainConfig())}"
        (run.checkpoints / "step.pt").write_bytes(b"state")
    with opened(tmp_path) as again:
        assert not again.fresh and (again.checkpoints / "step.pt").read_bytes() == b"state"


def test_a_changed_setting_is_another_run(tmp_path):
    with opened(tmp_path) as one, opened(tmp_path, config=TrainConfig(ppo=PPOConfig(gamma=0.9))) as other:
        assert one.path != other.path


def _begun_by_other_code(root, **removed):
    """Make the run that code without these settings would have made of the same command."""
    with opened(root) as run:
        (run.checkpoints / "step-000000000064.pt").write_bytes(b"state")
    record = json.loads((run.path / "config.json").read_text())
    for section, name in removed.items():
        del record["config"][section][name]
    (run.path / "config.json").write_text(json.dumps(record))
    return run.path.rename(root / "ppo_policy-quick-0123456789abcdef") / "checkpoints" / "step-000000000064.pt"


def test_new_run_names_the_earlier_run_of_other_code(tmp_path, caplog):
    learned = _begun_by_other_code(tmp_path, ppo="normalise_returns")
    opened(tmp_path).close()
    assert "another version of Navi" in caplog.text and str(learned) in caplog.text
    caplog.clear()
    opened(tmp_path).close()  # goes on with the new one
    opened(tmp_path, fresh=True).close()  # asks for nothing earlier
    opened(tmp_path, config=TrainConfig(ppo=PPOConfig(gamma=0.9))).close()  # another command
    opened(tmp_path, config=TrainConfig(algorithm="grpo")).close()
    assert not caplog.text


def test_earlier_run_is_named_by_best_or_last_checkpoint(tmp_path):
    last = _begun_by_other_code(tmp_path, ppo="normalise_returns")
    first = last.with_name("step-000000000032.pt")
    first.write_bytes(b"state")
    os.utime(last, (1, 1))  # copied in this order
    assert learned_by_other_code(tmp_path / f"ppo_policy-quick-{'f' * 16}", TrainConfig()) == last
    best = last.with_name("best.pt")
    best.write_bytes(b"state")
    os.utime(best, (0, 0))
    assert learned_by_other_code(tmp_path / f"ppo_policy-quick-{'f' * 16}", TrainConfig()) == best


def test_newest_earlier_run_is_named_and_never_the_run_itself(tmp_path):
    older = _begun_by_other_code(tmp_path, ppo="normalise_returns")
    newer = older.parents[1].with_name("ppo_policy-quick-fedcba9876543210") / "checkpoints" / older.name
    shutil.copytree(older.parents[1], newer.parents[1])
    os.utime(older, (1, 1))
    assert learned_by_other_code(tmp_path / f"ppo_policy-quick-{'f' * 16}", TrainConfig()) == newer
    assert learned_by_other_code(newer.parents[1], TrainConfig()) == older


def test_vanished_earlier_run_does_not_fail_a_new_run(tmp_path, caplog):
    learned = _begun_by_other_code(tmp_path, ppo="normalise_returns")
    learned.unlink()
    learned.symlink_to(tmp_path / "gone")  # listed, and not there when it is looked at
    opened(tmp_path).close()
    assert not caplog.text


def test_broken_config_is_no_earlier_run(tmp_path, caplog):
    learned = _begun_by_other_code(tmp_path, ppo="normalise_returns")
    for text in ("{", "[]", "{}", '{"config": "x"}', '{"config": {"ppo": 3}}'):
        (learned.parents[1] / "config.json").write_text(text)
        opened(tmp_path).close()
        for folder in tmp_path.glob("ppo_policy-quick-*"):
            if folder != learned.parents[1]:
                (folder / "config.json").unlink()
    assert not caplog.text


def test_config_json_holds_the_whole_configuration(tmp_path):
    with opened(tmp_path) as run:
        record = json.loads((run.path / "config.json").read_text())
    assert TrainConfig.model_validate(record["config"]) == TrainConfig()


def test_a_second_holder_is_refused_and_the_first_is_named(tmp_path):
    code = (
        "import sys, time\nfrom navi_core.config import TrainConfig\nfrom navi_core.record import RunDirectory\n"
        f"run = RunDirectory.open({str(tmp_path)!r}, asset='ppo_policy', partition='quick', config=TrainConfig())\n"
        "print('held', flush=True)\ntime.sleep(60)\n"
    )
    holder = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout.readline().strip() == "held"
        with pytest.raises(RunError, match=f"process {holder.pid}"):
            opened(tmp_path)
        with pytest.raises(RunError, match=f"process {holder.pid}"):
            opened(tmp_path, fresh=True)
    finally:
        holder.kill()
        holder.wait()
    with opened(tmp_path) as run:  # a kill -9 releases the fence
        assert not run.fresh


def test_the_fence_holds_within_one_process(tmp_path):
    with opened(tmp_path), pytest.raises(RunError, match=str(os.getpid())):
        opened(tmp_path)


def test_a_fresh_start_moves_the_old_run_aside(tmp_path):
    for number in range(3):
        with opened(tmp_path, fresh=True) as run:
            assert run.fresh and not list(run.checkpoints.iterdir())
            (run.checkpoints / "n").write_text(str(number))
    kept = sorted((p / "checkpoints" / "n").read_text() for p in tmp_path.glob("*.old-*"))
    assert kept == ["0", "1"]


def test_a_fresh_start_forgets_earlier_rows_even_after_a_kill_before_the_first_row(tmp_path):
    outbox = tmp_path / "outbox"
    with opened(tmp_path / "runs") as run:
        run.metric_log(outbox).close()
    assert len(list(outbox.glob("*-forget.ndjson"))) == 1
    opened(tmp_path / "runs", fresh=True).close()  # dies before it writes a row
    with opened(tmp_path / "runs") as run:
        assert not run.fresh
        run.metric_log(outbox).close()
        run.metric_log(outbox).close()
    assert len(list(outbox.glob("*-forget.ndjson"))) == 2


def test_rows_carry_the_context(tmp_path):
    with opened(tmp_path / "runs", config=TrainConfig(seed=7)) as run:
        log = run.metric_log(tmp_path / "outbox")
        log.scalars(1, {"a": 1.0})
        log.close()
    head = json.loads(next((tmp_path / "outbox").glob("*metrics*")).read_text().splitlines()[0])
    assert head["context"]["seed"] == 7 and head["context"]["config_hash"] == config_hash(TrainConfig(seed=7))
    assert {"hardware", "versions", "revision"} <= set(head["context"])


@pytest.mark.parametrize("name", ["", "a/b", "../x", "a b"])
def test_keys_that_cannot_name_a_folder_are_refused(tmp_path, name):
    with pytest.raises(RunError, match="cannot name a folder"):
        RunDirectory.open(tmp_path, asset="a", partition=name, config=TrainConfig())


def test_a_folder_of_runs_that_is_a_file_is_refused(tmp_path):
    (tmp_path / "runs").write_text("")
    with pytest.raises(RunError, match=r"cannot make the runs folder .*runs: (Not a directory|File exists)"):
        opened(tmp_path / "runs")


def test_a_run_that_cannot_be_prepared_is_free_for_the_next_start(tmp_path):
    file = tmp_path / f"ppo_policy-quick-{config_hash(TrainConfig())}"
    file.write_text("")
    with pytest.raises(RunError, match="cannot prepare the run directory"):
        opened(tmp_path)
    file.unlink()
    opened(tmp_path).close()


@pytest.mark.parametrize("text", ["", "{", "[]", '{"config_hash": "0"}'])
def test_a_broken_or_foreign_config_file_is_refused(tmp_path, text):
    with opened(tmp_path) as run:
        file = run.path / "config.json"
    file.write_text(text)
    with pytest.raises(RunError, match="fresh"):
        opened(tmp_path)
    with opened(tmp_path, fresh=True):
        pass
