"""Dagster code location: everything in `defs/`, jobs, and an in-process executor.

Nothing heavy is imported here: torch, pandas, trimesh and matplotlib are imported by the functions
that use them, so that the code location loads in about a second.
"""

import inspect
from pathlib import Path
from typing import Any

import dagster as dg

from navi_pipeline import jobs


@dg.definitions
def defs() -> dg.Definitions:
    """Return the Dagster definitions of the code location: assets, checks, jobs, schedules, sensors."""
    found = dg.load_from_defs_folder(path_within_project=Path(__file__).parent)
    return dg.Definitions(
        # An asset that several modules import is found several times.
        assets=[
            _linked(one) if isinstance(one, dg.AssetsDefinition) else one
            for one in {id(one): one for one in found.assets or ()}.values()
        ],
        asset_checks=found.asset_checks,
        schedules=found.schedules,
        sensors=found.sensors,
        resources=found.resources,
        jobs=[*(found.jobs or ()), jobs.whole_graph, *jobs.JOBS],
        # The steps of a run follow each other, and share the imports of torch; training is a child process anyway.
        executor=dg.in_process_executor,
    )


def _linked(asset: dg.AssetsDefinition) -> dg.AssetsDefinition:
    """Link an asset to the lines of its function; `dg.with_source_code_references` would link to its decorators."""
    function: Any = getattr(asset.op.compute_fn, "decorated_fn", asset.op.compute_fn)
    code = inspect.unwrap(function).__code__
    lines = dg.LocalFileCodeReference(file_path=code.co_filename, line_number=code.co_firstlineno)
    metadata = {"dagster/code_references": dg.CodeReferencesMetadataValue(code_references=[lines])}
    return asset.map_asset_specs(lambda spec: spec.merge_attributes(metadata=metadata))
