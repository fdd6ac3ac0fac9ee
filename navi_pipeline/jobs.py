"""Jobs of the graph; a run has one partition, so scenes, profiles and sizes of sweeps have jobs of their own.

`whole_graph` runs them all in order: one click from an empty folder to a champion and a full warehouse.
"""

from typing import TYPE_CHECKING

import dagster as dg
from pydantic import Field

from navi_pipeline.defs.benchmarks import BENCHMARKS
from navi_pipeline.defs.learning import POLICIES
from navi_pipeline.defs.partitions import GPU
from navi_pipeline.flow import Flow

if TYPE_CHECKING:
    from dagster._core.definitions.unresolved_asset_job_definition import UnresolvedAssetJobDefinition

PROFILE_ASSETS = (
    "expert_demonstrations",
    "demonstrations",
    "bc_policy",
    *(asset.key.to_user_string() for asset in POLICIES.values()),
    "policy_evaluation",
    "promoted_model",
)
"""Assets with a partition for each profile, in the order of the graph."""


def _job(name: str, assets: tuple[str, ...], description: str) -> "UnresolvedAssetJobDefinition":
    return dg.define_asset_job(name, dg.AssetSelection.assets(*assets), description=description)


class FlowSettings(dg.Config):
    """What the whole graph is materialized with."""

    profile: str = Field(
        default="quick", description="Preset that is trained: demo, quick, rooms, rooms_standard, scans, standard."
    )
    size: str = Field(default="quick", description="Size of the sweeps: quick, or full (hours).")
    seed: int = Field(default=0, description="Seed of the trainings.")


@dg.op(pool=GPU, description="Run the graph's jobs in order; each is a run of its own, seen on the assets' pages.")
def materialize_everything(context: dg.OpExecutionContext, config: FlowSettings) -> None:
    """Scenes, demonstrations, training, evaluation, promotion, benchmarks, warehouse.

    The jobs are those of the code location that the run was launched from; `navi materialize` does it in one process.
    """
    job = context.repository_def.get_job
    flow = Flow(
        context.instance, job, profile=config.profile, size=config.size, seed=config.seed, report=context.log.info
    )
    failed = flow.materialize_everything()
    if failed:
        raise dg.Failure(f"the policy did not pass: {'; '.join(failed)}")


@dg.job(description="The whole graph with one click, from scenes to the warehouse.")
def whole_graph() -> None:
    """Materialize every asset; what has not changed is reused."""
    materialize_everything()


JOBS: tuple["dg.JobDefinition | UnresolvedAssetJobDefinition", ...] = (
    whole_graph,
    _job("sources_job", ("scene_sources",), "Plan the scenes."),
    _job("compile_job", ("compiled_scene",), "Compile one scene."),
    _job("corpus_job", ("scene_quality", "corpus"), "Judge the scenes and gather the corpus."),
    _job("recordings_job", ("recorded_demonstrations",), "Take in what people recorded."),
    _job("profile_job", PROFILE_ASSETS, "Teach, train, evaluate and promote the policies of a profile."),
    _job(
        "main_job",
        ("ppo_policy", "policy_evaluation", "promoted_model"),
        "Train a profile by PPO, evaluate it on held-out scenes, and let it challenge the champion.",
    ),
    _job("baseline_job", ("baseline_evaluation",), "Fly the scripted pilots."),
    _job("benchmark_job", tuple(BENCHMARKS), "Make every sweep in one size."),
    _job("study_job", ("study",), "Search over settings."),
    _job("summary_job", ("leaderboard", "warehouse"), "Rank everybody and fold every row in."),
)
"""Every job of the code location."""
