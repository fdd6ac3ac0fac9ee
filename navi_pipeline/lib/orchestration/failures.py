"""Failed runs of Dagster as rows of `events`, so that SQL knows them too."""

from collections.abc import Sequence

from navi_core.config import parse_config
from navi_core.errors import NaviError
from navi_core.machine.file_lock import is_locked
from navi_pipeline.lib.nightly.night import Gate, Night, night_lock, read_night
from navi_pipeline.lib.nightly.stages import stages_of
from navi_pipeline.lib.nightly.summary import summary_paths, write_summary
from navi_pipeline.lib.records.logs import pipeline_log
from navi_pipeline.settings.nightly import NightlyConfig


def record_failure(
    run_id: str, job: str, message: str, steps: Sequence[tuple[str, str]], *, night: str | None = None
) -> None:
    """Write one row, and the summary of a night that broke down.

    Args:
        run_id: Dagster's run.
        job: Its job.
        message: Message of Dagster.
        steps: Failed steps and their messages.
        night: Name of the night that it was.
    """
    with pipeline_log(f"dagster-{run_id}") as log:
        detail = f"{job}: {'; '.join(f'{step}: {text}' for step, text in steps) or message}"
        log.row("events", {"event": "run_failure", "detail": detail, "job": job, "steps": [step for step, _ in steps]})
    if night is None:
        return
    try:
        config = parse_config(NightlyConfig, read_night(night)["config"])
        broken = Night(config, night, report=lambda _: None, keep_failed=True)
    except NaviError:
        return  # it broke down before its first stage was over: there is nothing to summarise
    if (broken.failed or set(broken.stages) >= set(stages_of(config))) and summary_paths(night)[0].exists():
        return  # a hard gate failed the run, or the night was over before this run took it up: its summary reports it
    if is_locked(night_lock(night)):
        return  # another run is at work on it, and this one was refused
    broken.note("run", Gate("the run ends", True, False, detail))
    write_summary(broken)
