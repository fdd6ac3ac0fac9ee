"""Nights: an asset per stage with its gates as checks, the nightly jobs over these assets, and their schedules."""

import logging
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import dagster as dg
from pydantic import Field

from navi_core.errors import NaviError
from navi_pipeline.defs.corpus import OWNERS
from navi_pipeline.defs.evaluation import ranked
from navi_pipeline.defs.partitions import night_partitions, register_policy
from navi_pipeline.defs.warehouse import folded_in
from navi_pipeline.lib.commands import reporting
from navi_pipeline.lib.evaluation.promotions import ALIAS, open_registry
from navi_pipeline.lib.nightly.night import Gate, Night, Stage, nightly_config
from navi_pipeline.lib.nightly.stages import run_stages, stages_of, summed_up_if_broken, write_summary
from navi_pipeline.lib.orchestration import POOL, record_check, worked_as
from navi_pipeline.lib.records import content_key
from navi_pipeline.lib.warehouse.warehouse import Warehouse
from navi_pipeline.settings import NightlyConfig


class NightSettings(dg.Config):
    """Run config of a night's first stage: overrides of the settings in the file of $NAVI_NIGHTLY."""

    minutes: float | None = Field(default=None, description="Length [min]; up to 60 it is a small night.")
    train: bool = Field(default=True, description="Off for a validation night, which trains and promotes nothing.")
    assignments: list[str] = Field(
        default_factory=list, description="Settings of NightlyConfig as a=b; `navi settings --of nightly` lists them."
    )


_CHECKS = {
    "preflight": ("free_disk", "home_is_writable", "profile", "warehouse", "champion", "corpus", "weights",
                  "nobody_trains", "native_kernels"),
    "training": ("training_ends_well", "no_stall", "a_checkpoint", "an_update", "finite_metrics", "speed", "viewer"),
    "resume_proof": ("resume", "finite_metrics"),
    "evaluation": ("beats_random_flight",),
    "benchmarks": ("no_drift",),
    "promotion": (),
}  # fmt: skip
"""Gates of each stage, as names of asset checks."""
_SOFT = {"nobody_trains", "native_kernels", "speed", "viewer", "beats_random_flight", "no_drift"}
_RESOURCES = {"hold", "trainer"}
"""Lock on the night's name, and home and trainer of the run."""
_NO_ERROR = "no_error"
"""Blocking check of every stage: its work raised no error."""
# No asset has a retry policy: Dagster would take Terminate for a failure of the step and start the trainer again in the
# same worker. A trainer that is killed is started again by its supervisor, a lost worker by run_retries.


def _stage(stage: str, description: str, after: Sequence[dg.AssetsDefinition] = ()) -> dg.AssetsDefinition:
    """Return the asset of a stage, partitioned by night; its gates are checks of the same step."""
    name = f"night_{stage}"
    first = stage == "preflight"

    @dg.asset(
        name=name,
        group_name="nights",
        kinds={"torch"},
        owners=OWNERS,
        code_version="1",
        pool=POOL if stage in ("training", "resume_proof", "benchmarks") else None,
        deps=after,
        partitions_def=night_partitions,
        required_resource_keys=_RESOURCES,
        check_specs=[
            dg.AssetCheckSpec(gate, asset=name, blocking=gate not in _SOFT, partitions_def=night_partitions)
            for gate in (*_CHECKS[stage], _NO_ERROR)
        ],
        config_schema=NightSettings.to_config_schema().as_field() if first else None,
        description=f"{description} If a hard gate fails, the stage writes the summary and fails; re-execution from "
        f"failure repeats it and continues.",
    )
    def night_stage(context: dg.AssetExecutionContext) -> Iterator[dg.AssetCheckResult | dg.MaterializeResult[None]]:
        given = NightSettings(**context.op_execution_context.op_config) if first else None
        with worked_as(name):
            yield from _perform(context, stage, given)

    return night_stage


def _perform(
    context: dg.AssetExecutionContext, stage: str, given: NightSettings | None
) -> Iterator[dg.AssetCheckResult | dg.MaterializeResult[None]]:
    """Do a stage of a night, unless it was done before; yield its checks, and its materialization if they hold."""
    context.resources.hold.take(context.op_execution_context, context.partition_key)
    # Later stages have the settings that the first one has stored.
    config = None if given is None else nightly_config(**given.model_dump())
    night = Night(config, context.partition_key, report=reporting(context.log.info))
    with summed_up_if_broken(night):
        done = night.run(stage, stages_of(night.config)[stage])
    for found in _evaluated(done):
        record_check(found)
        yield found
    metadata = {"status": done.status, "seconds": done.seconds}
    if night.failed:
        # Dagster abandons what follows a failed step, the summary too: it is written here.
        run_stages(night)
        reasons = "; ".join(f"{gate.name}: {gate.detail}" for gate in night.failed)
        raise dg.Failure(
            f"night {night.name} failed: {reasons}", metadata=metadata | _summary(context, night), allow_retries=False
        )
    decision = night.data("promotion") if stage == "promotion" else {}
    if stage == "evaluation":
        _renew(context, "leaderboard", *ranked())
    elif "version" in decision:  # else the champion was not challenged
        _renew(context, "promoted_model", *_promoted(decision), register_policy(
            context.instance, night.config.profile, night.config.seed
        ))  # fmt: skip
    yield dg.MaterializeResult(metadata=metadata)


def _evaluated(done: Stage) -> Iterator[dg.AssetCheckResult]:
    """Yield the result of each check of a stage; a gate that does not apply to this night holds."""
    checks = _CHECKS[done.name]
    gates: dict[str, list[Gate]] = {check: [] for check in (*checks, _NO_ERROR)}
    for gate in done.gates:
        # The resume proof has a gate for each number of steps.
        check = gate.name.partition(" +")[0].replace(" ", "_")
        gates[check if check in checks else _NO_ERROR].append(gate)
    for check, found in gates.items():
        hard = check not in _SOFT and all(gate.hard for gate in found if not gate.passed)
        yield dg.AssetCheckResult(
            asset_key=f"night_{done.name}",
            check_name=check,
            passed=all(gate.passed for gate in found),
            severity=dg.AssetCheckSeverity.ERROR if hard else dg.AssetCheckSeverity.WARN,
            description="; ".join(gate.detail for gate in found) or "nothing to report",
        )


def _promoted(decision: dict[str, Any]) -> tuple[dict[str, Any], str]:
    """Return metadata and data version of `promoted_model` after a challenge, as the asset has them."""
    registry = open_registry()
    champion = registry.resolve(ALIAS).weights_hash if ALIAS in registry.aliases() else None
    metadata = {
        "champion": decision["champion"] or "none",
        "challenger": decision["version"],
        "promoted": bool(decision["promoted"]),
        "reason": decision["reason"],
    }
    return metadata, content_key(champion)


def _renew(
    context: dg.AssetExecutionContext, asset: str, metadata: dict[str, Any], version: str, partition: str | None = None
) -> None:
    """Log the materialization of an asset that the night has renewed."""
    metadata = {"night": context.partition_key, **metadata}
    tags = {"dagster/data_version": version}
    context.log_event(dg.AssetMaterialization(asset, metadata=metadata, partition=partition, tags=tags))


def _summary(context: dg.AssetExecutionContext, night: Night) -> dict[str, Any]:
    """Write the night's summary, log the warehouse's materialization, and return the summary's metadata."""
    markdown, page = write_summary(night)
    _renew(context, "warehouse", *folded_in(Warehouse(), context.log.warning))
    return {
        "verdict": night.verdict,
        "summary": dg.MetadataValue.md(markdown.read_text("utf-8")),
        "page": dg.MetadataValue.path(str(page)),
    }


night_preflight = _stage("preflight", "Preflight check of disk, corpus, warehouse and initial weights.")
night_training = _stage("training", "Trains until the night's share of time is used up.", [night_preflight])
night_resume_proof = _stage("resume_proof", "Proof that the run resumes from its checkpoint.", [night_training])
night_evaluation = _stage(
    "evaluation", "Evaluates the night's policy and pilots on the test scenes.", [night_preflight, night_resume_proof]
)
night_benchmarks = _stage("benchmarks", "Benchmark of the environment against earlier nights.", [night_evaluation])
night_promotion = _stage("promotion", "Challenge of the champion by the night's policy.", [night_benchmarks])


@dg.asset(
    group_name="nights",
    kinds={"duckdb"},
    owners=OWNERS,
    code_version="1",
    deps=[night_benchmarks, night_promotion],
    partitions_def=night_partitions,
    required_resource_keys=_RESOURCES,
    description="Summary of the night: gates, stages and figures on one page, and as a row of the table nights.",
)
def night_summary(context: dg.AssetExecutionContext) -> dg.MaterializeResult[None]:
    """Write the summary of a night whose hard gates all hold."""
    context.resources.hold.take(context.op_execution_context, context.partition_key)
    night = Night(None, context.partition_key, report=reporting(context.log.info))
    with worked_as("night_summary"):
        return dg.MaterializeResult(metadata=_summary(context, night))


_VALIDATION = (night_preflight, night_evaluation, night_benchmarks, night_summary)
nightly_training = dg.define_asset_job(
    "nightly_training",
    dg.AssetSelection.assets(*_VALIDATION, night_training, night_resume_proof, night_promotion),
    description="Preflight, training from latest where it fits, resume proof, evaluation, benchmarks, gated promotion, "
    "summary.",
)
nightly_validation = dg.define_asset_job(
    "nightly_validation",
    dg.AssetSelection.assets(*_VALIDATION),
    config={"ops": {"night_preflight": {"config": {"train": False}}}},
    description="Preflight, evaluation of the champion, benchmarks and drift, summary; nothing is trained.",
)


_LATEST = timedelta(hours=1)
"""Maximum delay of a scheduled night; a later tick, caught up after the machine was off, is skipped."""


def _schedule(kind: str) -> dg.ScheduleDefinition:
    cron, zone = _when(kind)
    daily = all(field.isdigit() for field in cron.split()[:2])

    @dg.schedule(
        job_name=f"nightly_{kind}",
        cron_schedule=cron,
        execution_timezone=zone,
        name=f"nightly_{kind}_schedule",
        description=f"One {kind} night a tick, named after its date; a second start continues it. A missed "
        "night is left out.",
    )
    def nightly(context: dg.ScheduleEvaluationContext) -> dg.RunRequest | dg.SkipReason:
        due = context.scheduled_execution_time
        late = _now() - due
        if late > _LATEST:
            hours = late.total_seconds() / 3600
            return dg.SkipReason(f"due at {due:%Y-%m-%d %H:%M %Z}, {hours:.1f} h ago: a night does not begin by day")
        name = f"{due.astimezone(ZoneInfo(zone)):{'%Y-%m-%d' if daily else '%Y-%m-%d-%H%M'}}-{kind}"
        context.instance.add_dynamic_partitions(str(night_partitions.name), [name])
        config = {"ops": {"night_preflight": {"config": {"train": kind == "training"}}}}
        return dg.RunRequest(run_key=name, partition_key=name, run_config=config, tags={"night": name})

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
training_schedule = _schedule("training")
validation_schedule = _schedule("validation")
