"""A worker of a study: takes trials until there are none, a process of its own (`python -m … NAME`)."""

import signal
import sys
import threading
from collections.abc import Callable

from navi_core.errors import NaviError
from navi_core.terminal import print_status
from navi_pipeline.lib.studies.rows import record_trials
from navi_pipeline.lib.studies.trial import Train, run_trial
from navi_pipeline.lib.studies.trial_queue import TrialQueue, read_study
from navi_pipeline.lib.training.trainer_client import train_in_child


def work(
    queue: TrialQueue,
    *,
    on_line: Callable[[str], None],
    ending: Callable[[], bool] = lambda: False,
    train: Train = train_in_child,
) -> int:
    """Carry out trials until every slot is done or in other hands.

    Args:
        queue: The study.
        on_line: Called with a line for every trial, and with those of the trainers.
        ending: Whether to stop; the trial at hand is left to be taken up again.
        train: What trains.

    Returns:
        Trials that this worker took.

    Raises:
        ConfigError: A preset differs from when the study began.
    """
    taken = 0
    while not ending():
        queue.require_same_settings()  # a preset may be edited while a study lasts
        trial = queue.claim()
        if trial is None:
            break
        taken += 1
        ended = run_trial(queue, trial, on_line=on_line, ending=ending, train=train)
        done = queue.trials()[trial.number]
        record_trials(queue, [done])
        result = done.user_attrs.get("reason") or ", ".join(f"{value:.4g}" for value in done.values or ())
        slot = int(done.user_attrs["slot"])
        on_line(f"study {queue.config.name}: trial {slot + 1}/{queue.config.trials} {ended} {result}")
    return taken


def main(name: str) -> int:
    """Work on a study of this home until it is done or this process is stopped."""
    stopped = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopped.set())
    try:
        with TrialQueue(read_study(name)) as queue:
            work(queue, on_line=print_status, ending=stopped.is_set)
    except (NaviError, OSError) as error:
        print_status(f"{type(error).__name__}: {error}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
