"""The Dagster code location: assets and checks of `defs/`, jobs, and an executor in one process.

Nothing heavy is imported here: torch, pandas, trimesh and matplotlib are imported by the functions
that use them, so that the code location loads in about a second.
"""

from typing import Any

import dagster as dg

from navi_pipeline import jobs
from navi_pipeline.defs import automation
from navi_pipeline.defs.benchmarks.assets import BENCHMARKS
from navi_pipeline.defs.benchmarks.checks import OUTCOMES
from navi_pipeline.defs.corpus import assets as corpus_assets
from navi_pipeline.defs.corpus import checks as corpus_checks
from navi_pipeline.defs.demonstrations import assets as demonstration_assets
from navi_pipeline.defs.demonstrations import checks as demonstration_checks
from navi_pipeline.defs.evaluation import assets as evaluation_assets
from navi_pipeline.defs.evaluation import checks as evaluation_checks
from navi_pipeline.defs.pretraining import assets as pretraining_assets
from navi_pipeline.defs.pretraining import checks as pretraining_checks
from navi_pipeline.defs.promotion import assets as promotion_assets
from navi_pipeline.defs.promotion import checks as promotion_checks
from navi_pipeline.defs.studies import assets as study_assets
from navi_pipeline.defs.training.assets import POLICIES
from navi_pipeline.defs.training.checks import FINITE, RISES
from navi_pipeline.defs.warehouse import assets as warehouse_assets
from navi_pipeline.defs.warehouse import checks as warehouse_checks

_ASSETS = (
    corpus_assets,
    demonstration_assets,
    pretraining_assets,
    evaluation_assets,
    promotion_assets,
    study_assets,
    warehouse_assets,
)
_CHECKS = (
    corpus_checks,
    demonstration_checks,
    pretraining_checks,
    evaluation_checks,
    promotion_checks,
    warehouse_checks,
)


@dg.definitions
def defs() -> dg.Definitions:
    """Return all definitions of Navi."""
    # A module lists what it imports from its neighbours too, so each asset is taken once, by its key.
    assets: list[Any] = [*dg.load_assets_from_modules(_ASSETS), *POLICIES.values(), *BENCHMARKS.values()]
    assets.append(study_assets.trial)
    graph = dg.Definitions(
        assets=list({asset.key: asset for asset in assets}.values()),
        asset_checks=[*dg.load_asset_checks_from_modules(_CHECKS), *FINITE, *RISES, *OUTCOMES],
        jobs=list(jobs.JOBS),
        # The steps of a run follow each other, and share the imports of torch; training is a child process anyway.
        executor=dg.in_process_executor,
    )
    return dg.Definitions.merge(graph.map_asset_specs(func=automation.with_freshness), automation.definitions())
