"""Nightly jobs (one op per stage), their schedules, and the asset materializations that a night reports."""

import logging
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any
from zoneinfo import ZoneInfo

import dagster as dg
from pydantic import Field

from navi_core.config import parse_config
from navi_core.errors import NaviError
from navi_pipeline.defs.evaluation import ranked
from navi_pipeline.defs.partitions import GPU, register_policy
from navi_pipeline.defs.warehouse import folded_in
from navi_pipeline.lib.commands import reporting
from navi_pipeline.lib.evaluation.promotions import ALIAS, open_registry
from navi_pipeline.lib.nightly.night import Night, night_name, nightly_config
from navi_pipeline.lib.nightly.stages import run_stages, stages_of, summed_up_if_broken, write_summary
from navi_pipeline.lib.records import content_key
from navi_pipeline.lib.warehouse.warehouse import Warehouse
from navi_pipeline.settings import NightlyConfig


def renewed_by(stage: str, night: Night) -> list[dg.AssetMaterialization]:
    """Return the asset materializations of a passed stage of a night; empty if it renewed no asset.

    Args:
        stage: A stage that has passed.
        night: Its night.
    """
    if stage == "evaluation":
        return [_materialization("leaderboard", night, *ranked())]
    decision = night.data("promotion") if stage == "promotion" else {}
    # Without a version the champion was not challenged.
    return [_promotion(night, decision)] if "version" in decision else []


def renewed_warehouse(night: Night, warn: Callable[..., None]) -> dg.AssetMaterialization:
    """Ingest the rows that the night has written and return the warehouse's materialization."""
    return _materialization("warehouse", night, *folded_in(Warehouse(), warn))


def _promotion(night: Night, decision: dict[str, Any]) -> dg.AssetMaterialization:
    registry = open_registry()
    champion = registry.resolve(ALIAS).weights_hash if ALIAS in registry.aliases() else None
    metadata: dict[str, Any] = {
        "champion": decision["champion"] or "none",
        "challenger": decision["version"],
        "promoted": bool(decision["promoted"]),
        "reason": decision["reason"],
    }
    # As the asset's own: a night of a profile is one more challenge of it.
    partition = dg.MultiPartitionKey({"profile": night.config.profile, "seed": str(night.config.seed)})
    return _materialization("promoted_model", night, metadata, content_key(champion), partition=partition)


def _materialization(
    asset: str, night: Night, metadata: dict[str, Any], version: str, partition: str | None = None
) -> dg.AssetMaterialization:
    return dg.AssetMaterialization(
        asset, metadata={"night": night.name, **metadata}, partition=partition, tags={"dagster/data_version": version}
    )


_LATEST = timedelta(hours=1)
"""Maximum delay of a scheduled night; a later tick, caught up after the machine was off, is skipped."""
# No op has a retry policy: Dagster would take Terminate for a failure of the step and start the trainer again in the
# same worker. A trainer that is killed is started again by its supervisor, a lost worker by run_retries.


class NightSettings(dg.Config):
    """Run config of a nightly job: overrides of the settings in the file of $NAVI_NIGHTLY."""

    minutes: float | None = Field(default=None, description="Length [min]; up to 60 it is a small night.")
    name: str | None = Field(
        default=None, description="Name; by default date and time. The same name resumes the night."
    )
    assignments: list[str] = Field(
        default_factory=list, description="Settings of NightlyConfig as a=b; `navi settings --of nightly` lists them."
    )


def _begin(train: bool) -> dg.OpDefinition:
    @dg.op(
        name="begin_training_night" if train else "begin_validation_night",
        description="Settle the night's name and settings.",
        required_resource_keys={"hold", "trainer"},
    )
    def begin(context: dg.OpExecutionContext, config: NightSettings) -> dict[str, Any]:
        settings = nightly_config(minutes=config.minutes, assignments=config.assignments, train=train)
        name = night_name(settings, config.name)
        context.resources.hold.take(context, name)
        reporting(context.log.info)(f"night {name}")
        night = Night(settings, name, report=reporting(context.log.info))
        return {"name": night.name, "settings": settings.model_dump(mode="json")}

    return begin


def _tonight(context: dg.OpExecutionContext, night: dict[str, Any]) -> Night:
    context.resources.hold.take(context, night["name"])
    return Night(parse_config(NightlyConfig, night["settings"]), night["name"], report=reporting(context.log.info))


@cache
def _stage(stage: str) -> dg.OpDefinition:
    # One op for both nights: a name stands for one definition in the code location.
    @dg.op(
        name=stage,
        pool=GPU if stage in ("training", "resume_proof", "benchmarks") else None,
        description=f"Stage {stage} of the night. Where a hard gate does not hold it writes the summary and fails; "
        "the run re-executed from failure repeats this stage and goes on.",
        required_resource_keys={"hold", "trainer"},
    )
    def run(context: dg.OpExecutionContext, night: dict[str, Any]) -> dict[str, Any]:
        tonight = _tonight(context, night)
        with summed_up_if_broken(tonight):
            done = tonight.run(stage, stages_of(tonight.config)[stage])
        metadata: dict[str, Any] = {
            gate.name: f"{'holds' if gate.passed else 'DOES NOT HOLD'}: {gate.detail}" for gate in done.gates
        }
        metadata |= {"status": done.status, "seconds": done.seconds}
        if tonight.failed:
            # Dagster abandons what follows a failed step, the summary too: it is written here.
            run_stages(tonight)
            metadata |= _summary(context, tonight)
            reasons = "; ".join(f"{gate.name}: {gate.detail}" for gate in tonight.failed)
            raise dg.Failure(f"night {tonight.name} failed: {reasons}", metadata=metadata, allow_retries=False)
        for made in renewed_by(stage, tonight):
            register_policy(context.instance, tonight.config.profile, tonight.config.seed)
            context.log_event(made)
        context.add_output_metadata(metadata)
        return night

    return run


def _summary(context: dg.OpExecutionContext, tonight: Night) -> dict[str, Any]:
    """Write the night's summary, log the warehouse's materialization, and return the summary's metadata."""
    markdown, page = write_summary(tonight)
    context.log_event(renewed_warehouse(tonight, context.log.warning))
    return {
        "verdict": tonight.verdict,
        "summary": dg.MetadataValue.md(markdown.read_text("utf-8")),
        "page": dg.MetadataValue.path(str(page)),
    }


@dg.op(
    description="Write the morning's summary of a night whose hard gates all hold.",
    required_resource_keys={"hold", "trainer"},
)
def morning_summary(context: dg.OpExecutionContext, night: dict[str, Any]) -> None:
    """Write the night's summary and attach it as output metadata."""
    tonight = _tonight(context, night)
    context.add_output_metadata(_summary(context, tonight))


def _night(name: str, train: bool, description: str) -> dg.JobDefinition:
    begin, work = _begin(train), [_stage(stage) for stage in stages_of(NightlyConfig(train=train))]

    # One process, so that ops share the imports of torch and the lock; training is a child process anyway.
    @dg.job(name=name, description=description, executor_def=dg.in_process_executor)
    def night() -> None:
        passed = begin()
        for op in work:
            passed = op(passed)
        morning_summary(passed)

    return night


nightly_training = _night(
    "nightly_training", True,
    "Preflight, training from latest where it fits, resume proof, evaluation, benchmarks, gated promotion, summary.",
)  # fmt: skip
nightly_validation = _night(
    "nightly_validation", False,
    "Preflight, evaluation of the champion, benchmarks and drift, summary; nothing is trained.",
)  # fmt: skip


def _schedule(job: dg.JobDefinition, kind: str) -> dg.ScheduleDefinition:
    cron, zone = _when(kind)
    daily = all(field.isdigit() for field in cron.split()[:2])

    @dg.schedule(
        job=job,
        cron_schedule=cron,
        execution_timezone=zone,
        name=f"{job.name}_schedule",
        description=f"One {kind} night a tick, named after its date, so that a second start goes on with it; one that "
        "was missed is left out.",
    )
    def nightly(context: dg.ScheduleEvaluationContext) -> dg.RunRequest | dg.SkipReason:
        due = context.scheduled_execution_time
        late = _now() - due
        if late > _LATEST:
            hours = late.total_seconds() / 3600
            return dg.SkipReason(f"due at {due:%Y-%m-%d %H:%M %Z}, {hours:.1f} h ago: a night does not begin by day")
        name = f"{due.astimezone(ZoneInfo(zone)):{'%Y-%m-%d' if daily else '%Y-%m-%d-%H%M'}}-{kind}"
        begin = f"begin_{kind}_night"
        return dg.RunRequest(
            run_key=name, run_config={"ops": {begin: {"config": {"name": name}}}}, tags={"night": name}
        )

    return nightly


def _now() -> datetime:
    return datetime.now(UTC)


def _when(kind: str) -> tuple[str, str]:
    """Return the cron expression and time zone of a schedule, from `NightlyConfig` when the code location loads."""
    try:
        settings = nightly_config()
    except NaviError as error:
        # A file that cannot be read fails each night by name; here it would take the whole graph with it.
        logging.getLogger("navi.nightly").warning("nights are scheduled at their default hours: %s", error)
        settings = NightlyConfig()
    hour = settings.training_hour if kind == "training" else settings.validation_hour
    cron = settings.training_cron if kind == "training" else None
    return cron or f"0 {hour} * * *", settings.time_zone


# Dagster's loader finds definitions by name: they are off until switched on in the UI; the training takes eight hours.
training_schedule = _schedule(nightly_training, "training")
validation_schedule = _schedule(nightly_validation, "validation")
