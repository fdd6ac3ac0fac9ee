"""The supervised child: forwarded lines, cancelling, a dying parent, restarts."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from navi_core.config import TrainConfig
from navi_core.errors import RunError
from navi_pipeline.lib.training import trainer_client
from navi_pipeline.lib.training.supervised import run_supervised
from navi_pipeline.lib.training.trainer_client import train_in_child

ROOT = Path(__file__).resolve().parents[3]


def python(code, *arguments):
    return [sys.executable, "-c", code, *arguments]


def alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"


def gone(pid, seconds=20.0):
    """Whether a process ends in time; one that does not is killed."""
    deadline = time.monotonic() + seconds
    while alive(pid):
        if time.monotonic() > deadline:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            return False
        time.sleep(0.02)
    return True


def test_stdout_and_stderr_lines_are_separate():
    lines = []
    code = "import sys\nprint('result')\nprint('one', file=sys.stderr)\nprint('two', file=sys.stderr)\nsys.exit(3)"
    assert run_supervised(python(code), on_line=lines.append) == (3, "result\n", ["one", "two"])
    assert lines == ["one", "two"]


def test_exit_by_signal_is_a_negative_return_code():
    code = "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)"
    assert run_supervised(python(code), on_line=print)[0] == -signal.SIGKILL


STUBBORN = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN if sys.argv[1] == "ignore" else lambda *_: (print("checkpoint", file=sys.stderr, flush=True), sys.exit(0)))
grandchild = subprocess.Popen([sys.executable, "-c", "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"])
print(os.getpid(), grandchild.pid, file=sys.stderr, flush=True)
time.sleep(600)
"""  # noqa: E501


@pytest.mark.parametrize("manner", ["obey", "ignore"])
def test_interrupt_terminates_then_kills_the_process_group(manner):
    """An exception in the supervising thread stands for Dagster's interrupt."""
    pids, cancelled = [], []

    class Cancelled(BaseException):
        pass

    def on_line(line):
        pids.extend(int(word) for word in line.split())
        time.sleep(0.3)  # let the grandchild set its handler
        cancelled.append(time.monotonic())
        raise Cancelled

    grace = {"obey": 20.0, "ignore": 1.0}[manner]
    with pytest.raises(Cancelled):
        run_supervised(python(STUBBORN, manner), on_line=on_line, grace_seconds=grace)
    took = time.monotonic() - cancelled[0]
    assert [gone(pid) for pid in pids] == [True, True]
    assert (took > grace) == (manner == "ignore")


@pytest.mark.parametrize(
    "manner",
    [
        "signal.signal(signal.SIGTERM, signal.SIG_DFL)",
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)",
        "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])",
    ],
)
def test_child_ends_after_kill_9_of_its_parent(manner):
    child = "import os, sys, time\nprint(os.getpid(), file=sys.stderr, flush=True)\ntime.sleep(600)"
    parent = (
        f"import signal, sys\n{manner}\nsys.path.insert(0, {str(ROOT)!r})\n"
        "from navi_pipeline.lib.training.supervised import run_supervised\n"
        f"run_supervised([sys.executable, '-c', {child!r}], on_line=lambda line: print(line, flush=True))\n"
    )
    process = subprocess.Popen(python(parent), stdout=subprocess.PIPE, text=True)
    pid = int(process.stdout.readline())
    assert alive(pid)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert gone(pid)


def test_setting_variables_are_removed_from_the_child_environment(monkeypatch):
    monkeypatch.setenv("NAVI_ACTORS", "3")
    monkeypatch.setenv("NAVI_PPO__GAMMA", "0.5")
    monkeypatch.setenv("NAVI_HOME", "/somewhere")
    monkeypatch.setenv("NAVI_PLUGINS", "my_networks")
    code = (
        "import os\nprint(sorted(n for n in os.environ if n in ('NAVI_ACTORS', 'NAVI_PPO__GAMMA', *os.sys.argv[1:])))"
    )
    command = [*python(code), "NAVI_HOME", "NAVI_PLUGINS"]
    assert run_supervised(command, on_line=print)[1].strip() == "['NAVI_HOME', 'NAVI_PLUGINS']"


@pytest.fixture
def scripted(tmp_path, monkeypatch):
    """Let train_in_child start a script of ours in place of the trainer; everything around it is real."""
    monkeypatch.setenv("NAVI_HOME", str(tmp_path / "home"))

    def install(code):
        real = run_supervised

        def run(command, **kw):
            return real(python(code, str(tmp_path), *command[1:]), **kw)

        monkeypatch.setattr(trainer_client, "run_supervised", run)

    return install


RESULT = {"checkpoint": "c.pt", "run_id": "r", "steps": 1, "reason": "total_steps"}


def test_killed_trainer_is_restarted_and_returns_its_result(scripted, tmp_path):
    scripted(
        "import json, os, signal, sys, pathlib\n"
        "lives = pathlib.Path(sys.argv[1], 'lives')\n"
        "n = int(lives.read_text()) if lives.exists() else 0\nlives.write_text(str(n + 1))\n"
        "if n == 0:\n    os.kill(os.getpid(), signal.SIGKILL)\n"
        f"print(json.dumps({RESULT!r}))\n"
    )
    lines = []
    assert train_in_child(TrainConfig(), asset="a", partition="p", on_line=lines.append) == RESULT
    assert (tmp_path / "lives").read_text() == "2" and "killed by signal 9" in lines[0]


def test_navi_error_is_not_retried_and_includes_last_lines(scripted, tmp_path):
    scripted(
        "import sys, pathlib\nlives = pathlib.Path(sys.argv[1], 'lives')\n"
        "lives.write_text((lives.read_text() if lives.exists() else '') + 'x')\n"
        "print('learning rate is negative', file=sys.stderr)\nsys.exit(2)"
    )
    with pytest.raises(RunError, match=r"exit code 2(?s:.*)learning rate is negative"):
        train_in_child(TrainConfig(), asset="a", partition="p", on_line=lambda line: None)
    assert (tmp_path / "lives").read_text() == "x"


def test_child_receives_the_whole_configuration(scripted, tmp_path):
    scripted(f"import json, sys\nprint(json.dumps({RESULT!r} | {{'argv': sys.argv[2:]}}))")
    result = train_in_child(TrainConfig(seed=5), asset="a", partition="p", on_line=lambda line: None)
    argv = result["argv"]
    file = Path(argv[argv.index("--config") + 1])
    assert TrainConfig.model_validate(json.loads(file.read_text())) == TrainConfig(seed=5)
    assert argv[:4] == ["-m", "navi_core.cli.main", "train", "ppo"]


@pytest.mark.parametrize("output", ["", "done", "[]", '{"steps": 1}'])
def test_a_result_without_a_checkpoint_is_refused(scripted, output):
    scripted(f"print({output!r})")
    with pytest.raises(RunError, match="result"):
        train_in_child(TrainConfig(), asset="a", partition="p", on_line=lambda line: None)


def test_lines_arrive_while_the_child_runs():
    seen = threading.Event()
    code = (
        "import sys, time\nprint('first', file=sys.stderr, flush=True)\ntime.sleep(1.0)\nprint('last', file=sys.stderr)"
    )
    times = []

    def on_line(line):
        times.append(time.monotonic())
        seen.set()

    run_supervised(python(code), on_line=on_line)
    assert len(times) == 2 and times[1] - times[0] > 0.5


def test_child_is_ended_after_its_timeout():
    seen = []
    code = "import os, sys, time\nprint(os.getpid(), file=sys.stderr, flush=True)\ntime.sleep(600)"
    with pytest.raises(TimeoutError, match="not done after 2 s"):
        run_supervised(python(code), on_line=seen.append, timeout=2.0, grace_seconds=1.0)
    assert gone(int(seen[0]))
