"""Assets of the commands `navi evaluate` and `navi promote`: one partition per subject and per version."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import dagster as dg
from pydantic import Field

from navi_pipeline.defs.corpus import OWNERS
from navi_pipeline.lib.commands import exit_code, performed
from navi_pipeline.lib.orchestration import worked

subject_partitions = dg.DynamicPartitionsDefinition(name="subject")
"""Dynamic partitions by subject of `navi evaluate`: a pilot, a checkpoint, a run or a version."""
version_partitions = dg.DynamicPartitionsDefinition(name="version")
"""Dynamic partitions by version or alias that `navi promote` let challenge the champion."""
_PATHS = ("out", "models", "maps", "rrd")


class CommandSettings(dg.Config):
    """Run config of a command's run."""

    options: dict[str, Any] = Field(
        default_factory=dict,
        description="Arguments of the command by name: subject or version, scene, seed, …",
    )


def _call(command: Callable[..., None], config: CommandSettings) -> dg.MaterializeResult[None]:
    options = {name: Path(value) if name in _PATHS else value for name, value in config.options.items()}
    code = performed(partial(exit_code, command, **options))
    return dg.MaterializeResult(metadata={"exit_code": code, "options": dg.MetadataValue.json(config.options)})


@dg.asset(
    group_name="evaluation",
    kinds={"torch"},
    owners=OWNERS,
    code_version="1",
    partitions_def=subject_partitions,
    required_resource_keys={"home"},
    description="How does this pilot or checkpoint fly? One subject of `navi evaluate` on the scenes of its options; "
    "its rows are in the table evaluations, for it belongs to no profile.",
)
@worked
def evaluated_subject(config: CommandSettings) -> dg.MaterializeResult[None]:
    """Evaluate a pilot, a checkpoint or a version as the command does."""
    from navi_core.cli.evaluate import evaluate

    return _call(evaluate, config)


@dg.asset(
    group_name="promotion",
    kinds={"torch"},
    owners=OWNERS,
    code_version="1",
    partitions_def=version_partitions,
    required_resource_keys={"home"},
    description="Is this version better than the champion? One challenge by `navi promote` on the scenes of its "
    "options; exit code 1 means refused. The profiles' own challenges are in promoted_model.",
)
@worked
def challenged_version(config: CommandSettings) -> dg.MaterializeResult[None]:
    """Let a version challenge the champion as the command does."""
    from navi_core.cli.evaluate import promote

    return _call(promote, config)
