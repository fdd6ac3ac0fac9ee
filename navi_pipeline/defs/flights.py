"""Assets of the commands `navi evaluate` and `navi models promote`: one partition per subject and per version."""

from collections.abc import Callable
from functools import partial
from typing import Any

import dagster as dg
from pydantic import Field, validate_call

from navi_core.cli.evaluate import evaluate, promote
from navi_pipeline.defs.corpus import OWNERS
from navi_pipeline.lib.commands import exit_code, performed
from navi_pipeline.lib.orchestration import worked_as

subject_partitions = dg.DynamicPartitionsDefinition(name="subject")
"""Dynamic partitions by subject of `navi evaluate`: a pilot, a checkpoint, a run or a version."""
version_partitions = dg.DynamicPartitionsDefinition(name="version")
"""Dynamic partitions by version or alias that `navi models promote` let challenge the champion."""


class CommandSettings(dg.Config):
    """Run config of a command's run."""

    options: dict[str, Any] = Field(
        default_factory=dict,
        description="Arguments of the command by name: subject or version, scene, seed, …",
    )


def _flown(
    name: str, command: Callable[..., None], group: str, partitions: dg.PartitionsDefinition[str], description: str
) -> dg.AssetsDefinition:
    """Return the asset whose runs call a command, with the options as the types of its parameters."""

    @dg.asset(
        name=name,
        group_name=group,
        kinds={"torch"},
        owners=OWNERS,
        code_version="1",
        partitions_def=partitions,
        required_resource_keys={"home"},
        description=description,
    )
    @worked_as(name)
    def flown(config: CommandSettings) -> dg.MaterializeResult[None]:
        code = performed(partial(exit_code, validate_call(command), **config.options))
        return dg.MaterializeResult(metadata={"exit_code": code, "options": dg.MetadataValue.json(config.options)})

    return flown


evaluated_subject = _flown(
    "evaluated_subject",
    evaluate,
    "evaluation",
    subject_partitions,
    "Evaluation of one subject by `navi evaluate` on the scenes of its options. Its rows are in the table "
    "evaluations; it belongs to no profile.",
)
challenged_version = _flown(
    "challenged_version",
    promote,
    "promotion",
    version_partitions,
    "Challenge of the champion by one version: `navi models promote` on the scenes of its options. Exit code 1 means "
    "refused. The profiles' own challenges are in promoted_model.",
)
