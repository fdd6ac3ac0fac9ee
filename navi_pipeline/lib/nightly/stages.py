"""The stages of a night in order."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from navi_core.config import NightlyConfig
from navi_pipeline.lib.nightly.measuring import benchmarks, evaluation, promotion
from navi_pipeline.lib.nightly.night import Night, Work
from navi_pipeline.lib.nightly.preflight import preflight
from navi_pipeline.lib.nightly.summary import write_summary
from navi_pipeline.lib.nightly.training import bounded_training, resume_proof

__all__ = ["run_night", "stages_of"]


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
    config: NightlyConfig, name: str | None = None, *, say: Callable[[str], None]
) -> tuple[Night, tuple[Path, Path]]:
    """Run a night from preflight to summary, or what is left of it.

    Args:
        config: Its settings.
        name: Its name; by default the date and the kind.
        say: Told what happens, a line at a time.

    Returns:
        The night, and its summary as Markdown and HTML.
    """
    night = Night(config, name, say=say)
    for stage, work in stages_of(config).items():
        night.run(stage, work)
    return night, write_summary(night)
