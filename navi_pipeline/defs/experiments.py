"""Experiment assets: sweeps and ablations with their cells as partitions, studies with their trials."""

from functools import partial
from typing import Any

import dagster as dg
from pydantic import Field

from navi_core.config import parse_config
from navi_pipeline.defs.corpus import OWNERS, corpus
from navi_pipeline.defs.partitions import size_partitions
from navi_pipeline.lib.commands import performed
from navi_pipeline.lib.corpus.scenes import scene_paths
from navi_pipeline.lib.experiments.cells import Outcome
from navi_pipeline.lib.experiments.perform import (
    Experiment,
    ablation_experiment,
    perform_experiment,
    read_sweep,
    sweep_experiment,
)
from navi_pipeline.lib.experiments.verdicts import checklist
from navi_pipeline.lib.orchestration import POOL, materialized, worked, worked_as
from navi_pipeline.lib.records import OUTCOMES, content_key
from navi_pipeline.lib.reports.pages import embedded_charts, markdown_table
from navi_pipeline.lib.studies.catalogue import find_study, over_scenes, partition_of
from navi_pipeline.settings import AblationConfig, StudyConfig, SweepConfig

_STORIES = {
    "raycast_benchmark": "Rays a second and exactness of each tracer, on three families of scenes, against every "
    "triangle.",
    "resolution_sweep": "Cost of finer panoramas: training at 256x48, 384x72, 512x96 and 768x144 with the full "
    "network; a memory fault is a result.",
    "encoder_sweep": "Encoders compared on the same seeds: reward and cost.",
    "temporal_core_sweep": "Temporal cores compared on the same seeds, with a promotion checklist: better by "
    "interval, throughput, no extra build.",
    "cadence_sweep": "Decisions per row between updates: rollouts of 256 and 512.",
    "actor_scaling": "Throughput by rows that fly at once, from 4 to 32.",
}


class SweepSettings(dg.Config):
    """Run config of a sweep; None takes the default of its size."""

    seeds: int | None = Field(default=None, description="Repeats of each cell; by default the size's.")
    steps: int | None = Field(default=None, description="Decisions of a cell; by default the size's.")
    seconds: float | None = Field(default=None, description="Training time of a cell (s); by default the size's.")
    preset: str | None = Field(default=None, description="Settings that do not vary: demo, quick, standard.")
    memory_limit: float | None = Field(default=None, description="Address space of a cell (GiB).")
    timeout: float | None = Field(default=None, description="Wall time after which a cell is killed (s).")
    threads: int | None = Field(default=None, description="Torch threads of a cell; 0 measures the best number.")
    again: bool = Field(default=False, description="Measure every cell anew; earlier rows stay in the history.")


def _benchmark(sweep: str, story: str) -> dg.AssetsDefinition:
    @dg.asset(
        name=sweep,
        group_name="benchmarks",
        kinds={"torch"},
        owners=OWNERS,
        code_version="1",
        pool=POOL,
        deps=[corpus],
        required_resource_keys={"home"},
        partitions_def=size_partitions,
        description=f"{story} Every cell is a child process: memory faults, crashes and time limits are outcomes of "
        f"that cell. Finished cells are not measured again; rows go to the table benchmarks.",
    )
    @worked_as(sweep)
    def benchmark(context: dg.AssetExecutionContext, config: SweepSettings) -> dg.MaterializeResult[None]:
        """Measure the cells of a sweep that have no result yet."""
        given = config.model_dump(exclude={"again"}, exclude_none=True)
        settings = parse_config(SweepConfig, {"profile": context.partition_key} | given)
        return _experiment(context, sweep_experiment(sweep, settings), again=config.again)

    return benchmark


def _report(context: dg.AssetExecutionContext, spec: dg.AssetSpec, partition: str, metadata: dict[str, Any]) -> None:
    """Report a materialization of an external asset whose partitions are dynamic."""
    assert isinstance(spec.partitions_def, dg.DynamicPartitionsDefinition)
    context.instance.add_dynamic_partitions(str(spec.partitions_def.name), [partition])
    context.log_event(dg.AssetMaterialization(spec.key, partition=partition, metadata=metadata))


def _experiment(
    context: dg.AssetExecutionContext,
    experiment: Experiment,
    *,
    cells: int | None = None,
    jobs: int = 1,
    again: bool = False,
) -> dg.MaterializeResult[None]:
    """Perform an experiment, log a materialization of `cell` for each of its cells, and return its own."""
    known = context.instance.get_materialized_partitions(cell.key)

    def report(outcome: Outcome) -> None:
        partition = f"{experiment.page}-{outcome.cell.replace('/', '-')}"
        if not outcome.reused or partition not in known:
            about = {"status": outcome.status, "run_id": outcome.run_id, "detail": outcome.detail}
            _report(context, cell, partition, about | outcome.metrics)

    perform = partial(perform_experiment, experiment, cells=cells, jobs=jobs, again=again)
    made = performed(perform, on_line=context.log.info, on_cell=report)
    ended, summary = [outcome.status for outcome in made.outcomes], made.summary
    intervals = embedded_charts([made.verdict_chart], "intervals")
    metadata: dict[str, Any] = {
        "cells": len(ended),
        **{status: ended.count(status) for status in OUTCOMES},
        "reused": made.reused,
        "table": dg.MetadataValue.md(markdown_table(summary.rows)),
        "picture": dg.MetadataValue.md(embedded_charts(made.charts, experiment.name)),
        "report": dg.MetadataValue.path(str(made.report)),
        "verdict": dg.MetadataValue.md("\n\n".join(summary.sentences)) if summary.sentences else None,
        "intervals": dg.MetadataValue.md(intervals) if made.verdict_chart else None,
        "checklist": dg.MetadataValue.md(markdown_table(checklist(summary.verdicts))) if summary.verdicts else None,
    }
    return materialized(
        metadata, content_key([[outcome.cell, outcome.status, outcome.measured_at] for outcome in made.outcomes])
    )


BENCHMARKS: dict[str, dg.AssetsDefinition] = {sweep: _benchmark(sweep, story) for sweep, story in _STORIES.items()}
"""Sweep name → benchmark asset."""
SWEEP_ASSETS = list(BENCHMARKS.values())
"""Benchmark assets as a list: Dagster's module loader finds lists, but no dictionaries."""


class AblationSettings(dg.Config):
    """Run config of an ablation: variants of the catalogue, and settings that all cells share."""

    name: str = Field(default="ablation", description="Name of the ablation, in its rows and its page.")
    variants: list[str] = Field(default_factory=list, description="What to change; by default everything.")
    settings: dict[str, Any] = Field(default_factory=dict, description="Settings of AblationConfig, such as steps.")
    cells: int | None = Field(default=None, description="Cells to measure now; by default all that wait.")
    jobs: int = Field(default=1, description="Cells at the same time, each on one core.")


@dg.asset(
    group_name="benchmarks",
    kinds={"torch"},
    owners=OWNERS,
    code_version="1",
    pool=POOL,
    required_resource_keys={"home"},
    description="Ablation of settings. Every variant is trained with several seeds and flown on unseen "
    "scenes; better and worse follow Holm's rule over the variants. Cells that are done are not measured again.",
)
@worked
def ablation(context: dg.AssetExecutionContext, config: AblationSettings) -> dg.MaterializeResult[None]:
    """Measure the cells of an ablation that have no result yet."""
    settings = parse_config(AblationConfig, config.settings)
    experiment = ablation_experiment(config.variants, settings, config.name)
    return _experiment(context, experiment, cells=config.cells, jobs=config.jobs)


class ProofSettings(dg.Config):
    """Run config of a study's proof."""

    study: str = Field(description="A study of this home.")
    seeds: int = Field(default=5, description="Training seeds of both sides; a verdict needs five.")
    jobs: int = Field(default=1, description="Cells at the same time.")


@dg.asset(
    group_name="studies",
    kinds={"torch"},
    owners=OWNERS,
    code_version="1",
    pool=POOL,
    required_resource_keys={"home"},
    description="Proof of a study's best settings against its preset: both are trained with fresh seeds and compared "
    "by the paired interval of the study's objective. Cells that are done are not measured again.",
)
@worked
def study_proof(context: dg.AssetExecutionContext, config: ProofSettings) -> dg.MaterializeResult[None]:
    """Measure the cells of a study's proof that have no result yet."""
    from navi_pipeline.lib.studies.proof import proof_experiment

    return _experiment(context, proof_experiment(config.study, config.seeds), jobs=config.jobs)


cell = dg.AssetSpec(
    "cell",
    deps=[*SWEEP_ASSETS, ablation, study_proof],
    group_name="benchmarks",
    kinds={"torch"},
    owners=OWNERS,
    code_version="1",
    partitions_def=dg.DynamicPartitionsDefinition(name="cells"),
    description="One cell of a sweep, an ablation or a proof: a variant with a seed, and its outcome. The asset that "
    "measures it reports it.",
)
"""External asset of the cells of experiments; only these report its materializations."""


def _every_cell_was_measured(sweep: str, asset: dg.AssetsDefinition) -> dg.AssetChecksDefinition:
    @dg.asset_check(
        asset=asset,
        name="every_cell_was_measured",
        partitions_def=size_partitions,
        required_resource_keys={"home"},
        description="No cell ran out of memory, crashed or took too long; one that did is named.",
    )
    @worked
    def check(context: dg.AssetCheckExecutionContext) -> dg.AssetCheckResult:
        """Check that every cell of the sweep ended with status ok."""
        outcomes = read_sweep(sweep, context.partition_key)["outcomes"]
        failed = {cell: status for cell, status in outcomes.items() if status != "ok"}
        return dg.AssetCheckResult(
            passed=not failed,
            severity=dg.AssetCheckSeverity.WARN,
            description=", ".join(f"{cell}: {status}" for cell, status in failed.items()) or "all were measured",
            metadata={"cells": len(outcomes), "failed": len(failed)},
        )

    return check


SWEEP_CHECKS = [_every_cell_was_measured(sweep, asset) for sweep, asset in BENCHMARKS.items()]


class StudySettings(dg.Config):
    """Run config of a study; None takes the study's default."""

    trials: int | None = Field(default=None, description="Trials; by default the study's own.")
    workers: int | None = Field(default=None, description="Trials at a time; by default the study's own.")
    settings: dict[str, Any] = Field(
        default_factory=dict,
        description="All of StudyConfig, as a command resolved them; by default the catalogue's study of this name, "
        "over the corpus' training scenes.",
    )


@dg.asset(
    name="study",
    group_name="studies",
    kinds={"optuna", "torch"},
    owners=OWNERS,
    code_version="1",
    pool=POOL,
    deps=[corpus],
    partitions_def=dg.DynamicPartitionsDefinition(name="studies"),
    required_resource_keys={"trainer"},
    description="Search over settings: Optuna proposes them, workers train them, and lagging trials end early. A lost "
    "trial resumes from its last checkpoint, and a stopped study continues. Each trial is reported as a "
    "partition of `trial`.",
)
@worked_as("study")
def study(context: dg.AssetExecutionContext, config: StudySettings) -> dg.MaterializeResult[None]:
    """Run a study to its end, or resume it, and report each trial as a partition."""
    # Optuna is imported when a study runs, not when the graph is loaded.
    from navi_pipeline.lib.studies.perform import perform_study
    from navi_pipeline.lib.studies.results import selection_note

    given = config.model_dump(exclude={"settings"}, exclude_none=True)
    if config.settings:
        settings = parse_config(StudyConfig, config.settings | given)
    elif "task" not in (settings := find_study(context.partition_key, overrides=given)).settings:
        settings = over_scenes(settings, [str(path) for path in scene_paths("train")])
    known = context.instance.get_materialized_partitions(trial.key)

    def report(row: dict[str, Any]) -> None:
        partition = partition_of(settings.name, row["slot"])
        if partition not in known:
            _report(context, trial, partition, _trial_metadata(row))

    made = performed(perform_study, settings, on_line=context.log.info, on_trial=report)
    ended, row = [one["state"] for one in made.trials], made.row
    metadata: dict[str, Any] = {
        "trials": len(ended),
        **{state: ended.count(state) for state in ("complete", "pruned", "failed")},
        "reused": made.reused,
        "best_params": row["best_params"] or {},
        "table": dg.MetadataValue.md(markdown_table([_trial_metadata(one) for one in made.trials])),
        "picture": dg.MetadataValue.md(embedded_charts([made.chart], settings.name)),
        "report": dg.MetadataValue.path(str(made.report)),
        "best_value": row["best_value"],
        "worth": None if row["best_value"] is None else selection_note(row["completed"] + row["pruned"]),
    }
    return materialized(
        metadata, content_key([[one["params"], one["state"], one["objective_values"]] for one in made.trials])
    )


trial = dg.AssetSpec(
    "trial",
    deps=[study],
    group_name="studies",
    kinds={"torch"},
    owners=OWNERS,
    code_version="1",
    partitions_def=dg.DynamicPartitionsDefinition(name="trials"),
    description="One trial of a study: its settings, its training run and its outcome. Reported by `study`.",
)
"""External asset of a study's trials; only the asset `study` reports its materializations."""


def _trial_metadata(row: dict[str, Any]) -> dict[str, Any]:
    names = ("study", "slot", "trial", "state", "value", "reward_ema", "sps", "step", "run_id", "config_hash", "reason")
    return {**{name: row[name] for name in names if row[name] is not None}, **row["params"]}
