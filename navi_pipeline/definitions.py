"""Dagster code location: everything in `defs/`, jobs, and an in-process executor.

Nothing heavy is imported here: torch, pandas, trimesh and matplotlib are imported by the functions
that use them, so that the code location loads in about a second.
"""

from pathlib import Path

import dagster as dg

from navi_pipeline import jobs


@dg.definitions
def defs() -> dg.Definitions:
    """Return the Dagster definitions of the code location: assets, checks, jobs, schedules, sensors."""
    return dg.Definitions.merge(
        dg.load_from_defs_folder(path_within_project=Path(__file__).parent),
        # The steps of a run follow each other, and share the imports of torch; training is a child process anyway.
        dg.Definitions(jobs=[jobs.whole_graph, *jobs.JOBS], executor=dg.in_process_executor),
    )
