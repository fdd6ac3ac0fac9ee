"""Study asset, a search over settings, and its trials as partitions of an external asset."""

from typing import Any

import dagster as dg
from pydantic import Field

from navi_pipeline.defs.corpus import OWNERS, corpus
from navi_pipeline.defs.partitions import GPU
from navi_pipeline.lib.corpus.scenes import scene_paths
from navi_pipeline.lib.orchestration import worked_as
from navi_pipeline.lib.records import content_key
from navi_pipeline.lib.reports.pages import embedded_charts, markdown_table
from navi_pipeline.lib.studies.catalogue import STUDIES, find_study, over_scenes, partition_of

study_partitions = dg.StaticPartitionsDefinition(list(STUDIES))
trial_partitions = dg.DynamicPartitionsDefinition(name="trials")


class StudySettings(dg.Config):
    """Settings of a study; None takes the study's own."""

    trials: int | None = Field(default=None, description="Trials; by default the study's own.")
    workers: int | None = Field(default=None, description="Trials at a time; by default the study's own.")


@dg.asset(
    name="study",
    group_name="studies",
    kinds={"optuna", "torch"},
    owners=OWNERS,
    code_version="1",
    pool=GPU,
    deps=[corpus],
    partitions_def=study_partitions,
    description="Which settings learn best? Optuna proposes them, workers train them, and trials that lag behind end "
    "early. A worker that dies is replaced and its trial taken up from its last checkpoint; a study that was stopped "
    "goes on. Each trial is reported as a partition of `trial`.",
)
def study(context: dg.AssetExecutionContext, config: StudySettings) -> dg.MaterializeResult[None]:
    """Carry a study to its end, and report its trials."""
    with worked_as("study"):
        return _materialize(context, config)


trial = dg.AssetSpec(
    "trial",
    deps=[study],
    group_name="studies",
    kinds={"torch"},
    owners=OWNERS,
    code_version="1",
    partitions_def=trial_partitions,
    description="One trial of a study: its settings, its training run and what came of it. Reported by `study`.",
)
"""Lineage of the trials; nothing materializes it but `study`."""


def _materialize(context: dg.AssetExecutionContext, settings: StudySettings) -> dg.MaterializeResult[None]:
    # Optuna is imported when a study runs, not when the graph is loaded.
    from navi_pipeline.lib.studies.perform import perform_study
    from navi_pipeline.lib.studies.results import selection_note

    given = {name: value for name, value in settings.model_dump().items() if value is not None}
    config = find_study(context.partition_key, overrides=given)
    if "task" not in config.settings:
        config = over_scenes(config, [str(path) for path in scene_paths("train")])
    known = context.instance.get_materialized_partitions(trial.key)

    def report(row: dict[str, Any]) -> None:
        partition = partition_of(config.name, row["slot"])
        if partition in known:
            return
        context.instance.add_dynamic_partitions(str(trial_partitions.name), [partition])
        context.log_event(dg.AssetMaterialization(trial.key, partition=partition, metadata=_trial_metadata(row)))

    made = perform_study(config, on_line=context.log.info, on_trial=report)
    ended = [row["state"] for row in made.trials]
    metadata: dict[str, Any] = {
        "trials": len(ended),
        **{state: ended.count(state) for state in ("complete", "pruned", "failed")},
        "reused": made.reused,
        "best_params": made.row["best_params"] or {},
        "table": dg.MetadataValue.md(markdown_table([_trial_metadata(row) for row in made.trials])),
        "picture": dg.MetadataValue.md(embedded_charts([made.chart], config.name)),
        "report": dg.MetadataValue.path(str(made.report)),
    }
    if made.row["best_value"] is not None:
        metadata["best_value"] = float(made.row["best_value"])
        metadata["worth"] = selection_note(made.row["completed"] + made.row["pruned"])
    outcomes = [[row["params"], row["state"], row["objective_values"]] for row in made.trials]
    return dg.MaterializeResult(metadata=metadata, data_version=dg.DataVersion(content_key(outcomes)))


def _trial_metadata(row: dict[str, Any]) -> dict[str, Any]:
    names = ("study", "slot", "trial", "state", "value", "reward_ema", "sps", "step", "run_id", "config_hash", "reason")
    return {**{name: row[name] for name in names if row[name] is not None}, **row["params"]}
