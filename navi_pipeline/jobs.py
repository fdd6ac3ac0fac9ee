"""Dagster jobs of the graph; a run has one partition, so scenes, policies, sweeps and studies have jobs of their own.

`Flow` runs the jobs in one process, stage by stage. The job `whole_graph` runs all of them in order: one click from an
empty home to a champion and a full warehouse.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any

import dagster as dg
from pydantic import Field

from navi_core.config import BASELINES
from navi_core.errors import ConfigError, RunError
from navi_core.presets import preset_names
from navi_pipeline.defs.corpus import spawn_verdict
from navi_pipeline.defs.experiments import BENCHMARKS
from navi_pipeline.defs.learning import POLICIES
from navi_pipeline.defs.partitions import register_policy
from navi_pipeline.lib.orchestration import FLOW_TAG, POOL, WORK, Work
from navi_pipeline.lib.run_launcher import require_success, run_job

_STUDIES = {"quick": "quick", "full": "ppo"}
"""Size of the sweeps → name of the study that is run with it."""


class FlowSettings(dg.Config):
    """Run config of the whole graph: profile, size of the sweeps, seed."""

    profile: str = Field(
        default="quick", description="Preset: demo, generalist, quick, rooms, rooms_standard, scans, standard."
    )
    size: str = Field(default="quick", description="Size of the sweeps: quick, or full (hours).")
    seed: int = Field(default=0, description="Seed of the trainings.")


class Flow:
    """Runner that materializes the asset graph in this process, job by job of the code location.

    Args:
        instance: Dagster instance that keeps the runs.
        job: Returns the job of a name, of the code location that the flow belongs to.
        settings: Profile, size of the sweeps, seed.
        report: Called with progress, a line at a time.
        echo: Let the trainer's lines through to standard error.

    Raises:
        ConfigError: There is no such profile or size.

    Attributes:
        stages: Duration of each job, and of each asset's step [s].
        metadata: Asset name → metadata of its latest materialization.
    """

    def __init__(
        self,
        instance: dg.DagsterInstance,
        job: Callable[[str], dg.JobDefinition],
        settings: FlowSettings,
        *,
        report: Callable[[str], None],
        echo: bool = False,
    ) -> None:
        # Before anything is made: Dagster would report it at the first asset that has the partition, minutes later.
        for what, allowed in (("profile", preset_names()), ("size", tuple(_STUDIES))):
            if (given := getattr(settings, what)) not in allowed:
                raise ConfigError(f"no {what} {given!r}; allowed: {', '.join(allowed)}")
        self.stages: dict[str, float] = {}
        self.metadata: dict[str, dict[str, Any]] = {}
        self._instance = instance
        self._job = job
        self._settings = settings
        self._report = report
        self._echo = echo

    def materialize_everything(self) -> list[str]:
        """Materialize every asset; return the failed blocking checks that guard the promotion."""
        self.materialize_scenes()
        self._require("recordings_job")
        register_policy(self._instance, self._settings.profile, self._settings.seed)
        self._require("demonstrations_job", partition=self._settings.profile)
        failed = self.materialize_policy("profile_job")
        size = self._settings.size
        for partitions, job, key in (("size", "benchmark_job", size), ("studies", "study_job", _STUDIES[size])):
            self._instance.add_dynamic_partitions(partitions, [key])
            self._require(job, partition=key)
        self.materialize_summary()
        return failed

    def materialize_scenes(self, plan: dict[str, Any] | None = None) -> None:
        """Materialize the corpus: plan, compile and gather the scenes.

        Args:
            plan: Settings of `scene_sources`; by default those of the plan that there is.
        """
        self._require("sources_job", ops={"scene_sources": {"config": plan or {}}})
        self._require("corpus_job", ops={"compiled_scene": {"config": {"echo": self._echo}}})
        numbers = self.metadata["corpus"]
        self._report(f"  corpus: {numbers['scenes']} scenes, {numbers['floor_area_m2']:.0f} m² of floor")
        for name, why in numbers["left_out_because"].items():
            self._report(f"  left out: {name}: {why}")

    def materialize_summary(self, pilots: Sequence[str] = BASELINES) -> None:
        """Materialize scripted pilots, leaderboard and warehouse.

        Args:
            pilots: Those that fly.
        """
        self._require("summary_job", ops={"baseline_evaluation": {"config": {"pilots": list(pilots)}}})

    def materialize_policy(self, job: str = "main_job") -> list[str]:
        """Train, evaluate and promote a profile's policy; return the blocking checks that failed.

        Args:
            job: main_job for PPO alone, profile_job for all learners.
        """
        partition = register_policy(self._instance, self._settings.profile, self._settings.seed)
        result = self._run(job, partition=partition, ops={"ppo_policy": {"config": {"echo": self._echo}}})
        checks = result.get_asset_check_evaluations()
        for check in checks:
            self._report(f"  check {check.check_name}: {'passed' if check.passed else 'FAILED'}")
        failed = [
            f"{check.check_name} ({check.description or check.asset_key.to_user_string()})"
            for check in checks
            if check.blocking and not check.passed
        ]
        if not failed:
            require_success(result)
        elif "policy_evaluation" not in self.metadata:
            raise RunError(f"training did not pass: {'; '.join(failed)}")
        return failed

    def _require(self, job: str, *, partition: str | None = None, ops: dict[str, Any] | None = None) -> None:
        require_success(self._run(job, partition=partition, ops=ops))

    def _run(
        self, job: str, *, partition: str | None = None, ops: dict[str, Any] | None = None
    ) -> dg.JobExecutionResult:
        self._report(f"{job} …")
        start = time.monotonic()
        result = run_job(
            self._instance,
            self._job(job),
            partition=partition,
            ops=ops,
            tags={FLOW_TAG: self._settings.profile},
            report=self._report,
        )
        for event in result.get_asset_materialization_events():
            made = event.materialization
            self.metadata[made.asset_key.to_user_string()] = {name: v.value for name, v in made.metadata.items()}
        for event in result.get_step_success_events():
            if event.step_key in self.metadata:
                self.stages[event.step_key] = round(event.step_success_data.duration_ms / 1e3, 2)
                spent = WORK.get(event.step_key, Work())
                self._report(f"  {event.step_key}: {self.stages[event.step_key]:.1f} s, {spent.cpu:.1f} CPU-s")
        self.stages[job] = round(time.monotonic() - start, 2)
        self._report(f"{job}: {self.stages[job]:.1f} s")
        return result


POLICY_ASSETS = (
    "bc_policy",
    *(asset.key.to_user_string() for asset in POLICIES.values()),
    "policy_evaluation",
    "promoted_model",
)
"""Assets partitioned by profile and seed, in the order of the graph."""


@dg.op(pool=POOL, description="Run the graph's jobs in order; each is a run of its own, seen on the assets' pages.")
def materialize_everything(context: dg.OpExecutionContext, config: FlowSettings) -> None:
    """Materialize all assets: scenes, demonstrations, training, evaluation, promotion, benchmarks, warehouse.

    The jobs are those of the run's code location; `navi pipeline materialize` runs them in one process.
    """
    flow = Flow(context.instance, context.repository_def.get_job, config, report=context.log.info)
    if failed := flow.materialize_everything():
        raise dg.Failure(f"the policy did not pass: {'; '.join(failed)}")


@dg.job(description="The whole graph with one click, from scenes to the warehouse.")
def whole_graph() -> None:
    """Materialize every asset of the graph; unchanged ones are reused."""
    materialize_everything()


_ASSET_JOBS: tuple[tuple[str, tuple[str, ...], str], ...] = (
    ("sources_job", ("scene_sources",), "Plan the scenes."),
    ("corpus_job", ("compiled_scene", "scene_quality", "corpus"), "Compile due scenes, and assemble the corpus."),
    ("recordings_job", ("recorded_demonstrations",), "Ingest recorded flights."),
    ("demonstrations_job", ("expert_demonstrations", "demonstrations"), "Record a scripted teacher for a profile."),
    ("profile_job", POLICY_ASSETS, "Train, evaluate and promote the policies of a profile and a seed."),
    (
        "main_job",
        ("ppo_policy", "policy_evaluation", "promoted_model"),
        "Train a profile by PPO, evaluate it on held-out scenes, and let it challenge the champion.",
    ),
    ("benchmark_job", tuple(BENCHMARKS), "Make every sweep in one size."),
    ("evaluation_job", ("evaluated_subject",), "Evaluate a pilot, a checkpoint or a version: `navi evaluate`."),
    ("promotion_job", ("challenged_version",), "Let a version challenge the champion: `navi models promote`."),
    ("ablation_job", ("ablation",), "Compare variants with a base."),
    ("study_job", ("study",), "Search over settings."),
    ("proof_job", ("study_proof",), "Compare a study's best settings with its preset: `navi study prove`."),
    (
        "summary_job",
        ("baseline_evaluation", "leaderboard", "warehouse"),
        "Fly the scripted pilots, rank all subjects and ingest every row.",
    ),
)
JOBS = [
    # Runs of several scenes report the check of each scene themselves.
    dg.define_asset_job(
        name, dg.AssetSelection.assets(*assets) - dg.AssetSelection.checks(spawn_verdict), description=description
    )
    for name, assets, description in _ASSET_JOBS
]
"""Jobs over assets."""
