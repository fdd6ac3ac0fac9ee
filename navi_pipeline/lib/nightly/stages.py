"""The stages of a night in order."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from navi_core.machine.file_lock import hold_lock
from navi_pipeline.lib.nightly.measuring import benchmarks, evaluation, promotion
from navi_pipeline.lib.nightly.night import Gate, Night, Work, night_lock, night_name
from navi_pipeline.lib.nightly.preflight import preflight
from navi_pipeline.lib.nightly.summary import write_summary
from navi_pipeline.lib.nightly.training import bounded_training, resume_proof
from navi_pipeline.settings.nightly import NightlyConfig


def stages_of(config: NightlyConfig) -> dict[str, Work]:
    """Return the stages of a night by name; a validation night trains and promotes nothing."""
    if not config.train:
        return {"preflight": preflight, "evaluation": evaluation, "benchmarks": benchmarks}
    return {
        "preflight": preflight,
        "training": bounded_training,
        "resume_proof": resume_proof,
        "evaluation": evaluation,
        "benchmarks": benchmarks,
        "promotion": promotion,
    }


def run_night(
    config: NightlyConfig, name: str | None = None, *, report: Callable[[str], None]
) -> tuple[Night, tuple[Path, Path]]:
    """Run a night from preflight to summary, or what is left of it.

    Args:
        config: Its settings.
        name: Its name; by default date, time and kind.
        report: Called with progress, a line at a time.

    Returns:
        The night, and its summary as Markdown and HTML.

    Raises:
        RunError: The name cannot name a file, another process works on this night, or it was begun with other
            settings.
    """
    name = night_name(config, name)
    report(f"night {name}")
    with hold_lock(night_lock(name), f"night {name}"):
        night = Night(config, name, report=report)
        with summed_up_if_broken(night):
            for stage, work in stages_of(config).items():
                night.run(stage, work)
        return night, write_summary(night)


@contextmanager
def summed_up_if_broken(night: Night) -> Iterator[None]:
    """Write the summary of a night that an error or a signal ends; what ended it is raised on."""
    try:
        yield
    except BaseException as error:
        night.note("run", Gate("the run ends", True, False, f"{type(error).__name__}: {error}".rstrip(": ")))
        try:
            write_summary(night)
        except Exception as fault:
            # The night's own error is the one to report.
            logging.getLogger("navi.nightly").warning("the summary of night %s is not written: %s", night.name, fault)
        raise


def written_off(night: Night) -> tuple[Path, Path]:
    """Mark what is left of a night that a hard gate has failed as skipped, and write its summary."""
    for stage, work in stages_of(night.config).items():
        if stage not in night.stages:
            night.run(stage, work)
    return write_summary(night)
