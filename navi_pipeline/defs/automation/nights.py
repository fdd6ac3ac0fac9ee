"""The nights as jobs: one op per stage, so that the run page shows how far a night came, and their schedules."""

from functools import cache
from typing import Any

import dagster as dg

from navi_pipeline.defs.pools import GPU

__all__ = ["JOBS", "SCHEDULES", "nightly_training", "nightly_validation"]

_STAGES = ("preflight", "training", "resume_proof", "evaluation", "benchmarks", "promotion")
_VALIDATION_STAGES = ("preflight", "evaluation", "benchmarks")
# No op has a retry policy: Dagster would take Terminate for a failure of the step and start the trainer again in the
# same worker. A trainer that is killed is started again by its supervisor, a lost worker by run_retries.


class NightSettings(dg.Config):
    """What a night may be told; everything else is in the file that $NAVI_NIGHTLY names."""

    minutes: float | None = None
    """Length [min]; up to 60 it is a small night."""
    name: str | None = None
    """Name; by default the date. The same name goes on where it stood."""
    assignments: list[str] = []
    """Settings of NightlyConfig as a=b."""


def _begin(train: bool) -> Any:
    @dg.op(
        name="begin_training_night" if train else "begin_validation_night", description="Settle the night's settings."
    )
    def begin(context: dg.OpExecutionContext, config: NightSettings) -> dict[str, Any]:
        from navi_pipeline.lib.nightly.night import Night
        from navi_pipeline.lib.nightly.settings import nightly_config

        settings = nightly_config(minutes=config.minutes, assignments=config.assignments, train=train)
        night = Night(settings, config.name, say=context.log.info)
        return {"name": night.name, "settings": settings.model_dump(mode="json")}

    return begin


@cache
def _stage(stage: str) -> Any:
    # One op for both nights: a name stands for one definition in the code location.
    @dg.op(
        name=stage,
        pool=GPU if stage in ("training", "resume_proof", "benchmarks") else None,
        description=f"Stage {stage} of the night; skipped where a hard gate has failed before.",
    )
    def run(context: dg.OpExecutionContext, night: dict[str, Any]) -> dict[str, Any]:
        from navi_core.config import NightlyConfig, parse_config
        from navi_pipeline.lib.nightly.night import Night
        from navi_pipeline.lib.nightly.stages import stages_of

        config = parse_config(NightlyConfig, night["settings"])
        tonight = Night(config, night["name"], say=context.log.info, keep_failed=True)
        done = tonight.run(stage, stages_of(config)[stage])
        told = {gate.name: f"{'holds' if gate.passed else 'DOES NOT HOLD'}: {gate.detail}" for gate in done.gates}
        context.add_output_metadata({"status": done.status, "seconds": done.seconds, **told})
        return night

    return run


@dg.op(description="Write the morning's summary, and fail the run if a hard gate does not hold.")
def morning_summary(context: dg.OpExecutionContext, night: dict[str, Any]) -> None:
    """Summarise the night."""
    from navi_core.config import NightlyConfig, parse_config
    from navi_pipeline.lib.nightly.night import Night
    from navi_pipeline.lib.nightly.summary import write_summary

    config = parse_config(NightlyConfig, night["settings"])
    tonight = Night(config, night["name"], say=context.log.info, keep_failed=True)
    markdown, page = write_summary(tonight)
    context.add_output_metadata(
        {
            "verdict": tonight.verdict,
            "summary": dg.MetadataValue.md(markdown.read_text()),
            "page": dg.MetadataValue.path(str(page)),
        }
    )
    if tonight.failed:
        reasons = "; ".join(f"{gate.name}: {gate.detail}" for gate in tonight.failed)
        raise dg.Failure(f"night {tonight.name} failed: {reasons}", allow_retries=False)


def _night(name: str, stages: tuple[str, ...], train: bool, description: str) -> Any:
    begin, work = _begin(train), [_stage(stage) for stage in stages]

    # One process, so that ops share the imports of torch; training is a child process anyway.
    @dg.job(name=name, description=description, executor_def=dg.in_process_executor)
    def night() -> None:
        passed = begin()
        for op in work:
            passed = op(passed)
        morning_summary(passed)

    return night


nightly_training = _night(
    "nightly_training", _STAGES, True,
    "Preflight, bounded training from latest, resume proof, evaluation, benchmarks, gated promotion, summary.",
)  # fmt: skip
nightly_validation = _night(
    "nightly_validation", _VALIDATION_STAGES, False,
    "Preflight, evaluation of the champion, benchmarks and drift, summary; nothing is trained.",
)  # fmt: skip
JOBS: tuple[Any, ...] = (nightly_training, nightly_validation)


def _schedule(job: Any, cron: str, kind: str) -> Any:
    @dg.schedule(
        job=job,
        cron_schedule=cron,
        execution_timezone="UTC",
        name=f"{job.name}_schedule",
        description=f"One {kind} night a day; named after its date, so that a second start goes on with it.",
    )
    def nightly(context: dg.ScheduleEvaluationContext) -> dg.RunRequest:
        name = f"{context.scheduled_execution_time:%Y-%m-%d}-{kind}"
        begin = f"begin_{kind}_night"
        return dg.RunRequest(
            run_key=name, run_config={"ops": {begin: {"config": {"name": name}}}}, tags={"night": name}
        )

    return nightly


SCHEDULES: tuple[Any, ...] = (
    _schedule(nightly_training, "0 22 * * *", "training"),
    _schedule(nightly_validation, "0 7 * * *", "validation"),
)
"""Both are off until they are switched on in the UI: the training takes eight hours."""
