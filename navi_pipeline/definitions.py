"""Dagster code location: assets and checks of `defs/`, jobs, automation, and an in-process executor.

Nothing heavy is imported here: torch, pandas, trimesh and matplotlib are imported by the functions
that use them, so that the code location loads in about a second.
"""

import dagster as dg

from navi_pipeline import jobs
from navi_pipeline.defs import automation, corpus, demonstrations, evaluation, experiments, learning, warehouse

_STAGES = (corpus, demonstrations, learning, evaluation, experiments, warehouse)


@dg.definitions
def defs() -> dg.Definitions:
    """Return the Dagster definitions of the code location: assets, checks, jobs, schedules, sensors."""
    graph = dg.Definitions.merge(
        # The steps of a run follow each other, and share the imports of torch; training is a child process anyway.
        dg.load_definitions_from_modules(_STAGES, executor=dg.in_process_executor),
        dg.Definitions(assets=list(experiments.BENCHMARKS.values()), jobs=[jobs.whole_graph, *jobs.JOBS]),
    )
    return dg.Definitions.merge(graph.map_asset_specs(func=automation.with_freshness), automation.AUTOMATION)
