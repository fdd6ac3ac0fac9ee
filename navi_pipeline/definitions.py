"""The Dagster code location: assets and checks of `defs/`, jobs, and an executor in one process.

Nothing heavy is imported here: torch, pandas, trimesh and matplotlib are imported by the functions
that use them, so that the code location loads in about a second.
"""

from __future__ import annotations

import dagster as dg

from navi_pipeline import jobs
from navi_pipeline.defs import automation
from navi_pipeline.defs.corpus import assets as corpus_assets
from navi_pipeline.defs.corpus import checks as corpus_checks
from navi_pipeline.defs.evaluation import assets as evaluation_assets
from navi_pipeline.defs.evaluation import checks as evaluation_checks
from navi_pipeline.defs.promotion import assets as promotion_assets
from navi_pipeline.defs.promotion import checks as promotion_checks
from navi_pipeline.defs.training import assets as training_assets
from navi_pipeline.defs.training import checks as training_checks

__all__ = ["defs"]

_ASSETS = (corpus_assets, training_assets, evaluation_assets, promotion_assets)
_CHECKS = (corpus_checks, training_checks, evaluation_checks, promotion_checks)


@dg.definitions
def defs() -> dg.Definitions:
    """Return all definitions of Navi."""
    graph = dg.Definitions(
        # A module lists what it imports from its neighbours too, so each asset is taken once, by its key.
        assets=list({asset.key: asset for asset in dg.load_assets_from_modules(_ASSETS)}.values()),  # type: ignore[union-attr]
        asset_checks=dg.load_asset_checks_from_modules(_CHECKS),
        jobs=[jobs.whole_graph, jobs.sources_job, jobs.compile_job, jobs.corpus_job, jobs.main_job],
        # The steps of a run follow each other, and share the imports of torch; training is a child process anyway.
        executor=dg.in_process_executor,
    )
    return dg.Definitions.merge(graph.map_asset_specs(func=automation.with_freshness), automation.definitions())
