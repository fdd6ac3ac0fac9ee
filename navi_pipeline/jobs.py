"""Dagster jobs of the graph; a run has one partition, so scenes, profiles and sweep sizes have jobs of their own.

`Flow` runs the jobs in one process, stage by stage. The job `whole_graph` runs all of them in order: one click from an
empty home to a champion and a full warehouse.
"""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import dagster as dg
from pydantic import Field

from navi_core.errors import ConfigError, RunError
from navi_pipeline.defs.corpus import CompileSettings
from navi_pipeline.defs.experiments import BENCHMARKS
from navi_pipeline.defs.learning import POLICIES
from navi_pipeline.defs.partitions import GPU, profile_partitions, size_partitions
from navi_pipeline.lib.corpus.scenes import due_scenes, read_plan
from navi_pipeline.lib.orchestration import PROCESS_TAG, WORK, Work, process_mark

if TYPE_CHECKING:
    from dagster._core.definitions.unresolved_asset_job_definition import UnresolvedAssetJobDefinition

_STUDIES = {"quick": "quick", "full": "ppo"}
"""Size of the sweeps → name of the study that is run with it."""


class Flow:
    """Runner that materializes the asset graph in this process, job by job of the code location.

    Args:
        instance: Dagster instance that keeps the runs.
        job: Returns the job of a name, of the code location that the flow belongs to.
        profile: Training profile.
        size: Size of the sweeps.
        seed: Seed of the training runs.
        report: Called with progress, a line at a time.
        echo: Let the trainer's lines through to standard error.

    Raises:
        ConfigError: There is no such profile or size.

    Attributes:
        stages: Duration of each asset's step, or of the runs of a partitioned one [s].
        metadata: Asset name → metadata of its latest materialization.
    """

    def __init__(
        self,
        instance: dg.DagsterInstance,
        job: Callable[[str], dg.JobDefinition],
        *,
        profile: str,
        size: str = "quick",
        seed: int,
        report: Callable[[str], None],
        echo: bool = False,
    ) -> None:
        # Before anything is made: Dagster would report it at the first asset that has the partition, minutes later.
        for what, given, partitions in (("profile", profile, profile_partitions), ("size", size, size_partitions)):
            allowed = partitions.get_partition_keys()
            if given not in allowed:
                raise ConfigError(f"no {what} {given!r}; allowed: {', '.join(allowed)}")
        self.stages: dict[str, float] = {}
        self.metadata: dict[str, dict[str, Any]] = {}
        self._instance = instance
        self._job = job
        self._profile = profile
        self._size = size
        self._seed = seed
        self._report = report
        self._echo = echo

    def materialize_everything(self) -> list[str]:
        """Materialize every asset; return the failed blocking checks that guard the promotion."""
        self.materialize_scenes()
        with self._stage("recorded_demonstrations"):
            self._require(self._run("recordings_job"))
        failed = self.materialize_policy("profile_job")
        for job, partition in (
            ("baseline_job", None),
            ("benchmark_job", self._size),
            ("study_job", _STUDIES[self._size]),
            ("summary_job", None),
        ):
            with self._stage(job):
                self._require(self._run(job, partition=partition))
        return failed

    def materialize_scenes(self, plan: dict[str, Any] | None = None) -> None:
        """Materialize the corpus: plan, compile and gather the scenes.

        Args:
            plan: Settings of `scene_sources`; by default those of the plan that there is.
        """
        with self._stage("scene_sources"):
            self._require(self._run("sources_job", ops={"scene_sources": {"config": plan or {}}}))
        known = self._instance.get_materialized_partitions(dg.AssetKey("compiled_scene"))
        due, planned = due_scenes(known, CompileSettings().compile_config()), len(read_plan())
        self._report(f"  {planned} scenes, {planned - len(due)} unchanged")
        with self._stage("compiled_scene"):
            for number, source in enumerate(due, start=1):
                self._require(self._run("compile_job", partition=source.name))
                if number % 7 == 0 or number == len(due):
                    self._report(f"  compiled_scene {number}/{len(due)}")
        with self._stage("corpus"):
            self._require(self._run("corpus_job"))
        numbers = self.metadata["corpus"]
        self._report(f"  corpus: {numbers['scenes']} scenes, {numbers['floor_area_m2']:.0f} m² of floor")
        for name, why in numbers["left_out_because"].items():
            self._report(f"  left out: {name}: {why}")

    def materialize_policy(self, job: str = "main_job") -> list[str]:
        """Train, evaluate and promote a profile's policy; return the blocking checks that failed.

        Args:
            job: main_job for PPO alone, profile_job for everything that a profile has.
        """
        with self._stage(job):
            result = self._run(job, partition=self._profile, ops=self._settings(job))
        checks = result.get_asset_check_evaluations()
        for check in checks:
            self._report(f"  check {check.check_name}: {'passed' if check.passed else 'FAILED'}")
        failed = [
            f"{check.check_name} ({check.description or check.asset_key.to_user_string()})"
            for check in checks
            if check.blocking and not check.passed
        ]
        if not failed:
            self._require(result)
        elif "policy_evaluation" not in self.metadata:
            raise RunError(f"training did not pass: {'; '.join(failed)}")
        return failed

    def _settings(self, job: str) -> dict[str, Any]:
        """Return the run config of a job's learners: the seed for each, and the echo of the trainer's lines for PPO."""
        steps = self._job(job).graph.node_names()
        learners = [name for name in steps if name.endswith("_policy")]
        seeds: dict[str, Any] = {name: {"config": {"seed": self._seed}} for name in learners}
        seeds["ppo_policy"]["config"]["echo"] = self._echo
        return seeds

    def _run(
        self, job: str, *, partition: str | None = None, ops: dict[str, Any] | None = None
    ) -> dg.ExecuteInProcessResult:
        # Dagster's own log lines stay in its storage; the terminal shows ours.
        config: dict[str, Any] = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}, "ops": ops or {}}
        with _sigterm_kept():
            result = self._job(job).execute_in_process(
                run_config=config,
                instance=self._instance,
                partition_key=partition,
                raise_on_error=False,
                tags={"navi/flow": self._profile, PROCESS_TAG: process_mark(os.getpid())},
            )
        for event in result.get_asset_materialization_events():
            made = event.materialization
            self.metadata[made.asset_key.to_user_string()] = {name: v.value for name, v in made.metadata.items()}
        if job != "compile_job":
            for event in result.all_events:
                if event.is_step_success and event.step_key in self.metadata:
                    self.stages[event.step_key] = round(event.step_success_data.duration_ms / 1e3, 2)
                    spent = WORK.get(event.step_key, Work())
                    self._report(f"  {event.step_key}: {self.stages[event.step_key]:.1f} s, {spent.cpu:.1f} CPU-s")
        return result

    @staticmethod
    def _require(result: dg.ExecuteInProcessResult) -> None:
        if result.success:
            return
        for event in result.all_events:
            data = event.step_failure_data if event.is_step_failure else None
            if data is not None and data.error is not None:
                cause = data.error
                while cause.cause is not None:
                    cause = cause.cause
                raise RunError(f"{event.step_key} failed: {cause.message.strip()}")
        raise RunError("a run failed; `make ui` shows why")

    @contextmanager
    def _stage(self, name: str) -> Iterator[None]:
        self._report(f"{name} …")
        start = time.monotonic()
        yield
        self.stages[name] = round(time.monotonic() - start, 2)
        self._report(f"{name}: {self.stages[name]:.1f} s")


@contextmanager
def _sigterm_kept() -> Iterator[None]:
    """Context manager that restores the SIGTERM handler, which Dagster replaces by that of SIGINT."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        # Elsewhere neither Dagster nor anybody else can change it.
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)


PROFILE_ASSETS = (
    "expert_demonstrations",
    "demonstrations",
    "bc_policy",
    *(asset.key.to_user_string() for asset in POLICIES.values()),
    "policy_evaluation",
    "promoted_model",
)
"""Assets partitioned by profile, in the order of the graph."""


def _job(name: str, assets: tuple[str, ...], description: str) -> "UnresolvedAssetJobDefinition":
    return dg.define_asset_job(name, dg.AssetSelection.assets(*assets), description=description)


class FlowSettings(dg.Config):
    """Run config of the whole graph: profile, size of the sweeps, seed."""

    profile: str = Field(
        default="quick", description="Preset that is trained: demo, quick, rooms, rooms_standard, scans, standard."
    )
    size: str = Field(default="quick", description="Size of the sweeps: quick, or full (hours).")
    seed: int = Field(default=0, description="Seed of the trainings.")


@dg.op(pool=GPU, description="Run the graph's jobs in order; each is a run of its own, seen on the assets' pages.")
def materialize_everything(context: dg.OpExecutionContext, config: FlowSettings) -> None:
    """Materialize all assets: scenes, demonstrations, training, evaluation, promotion, benchmarks, warehouse.

    The jobs are those of the run's code location; `navi materialize` runs them in one process.
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
    """Materialize every asset of the graph; unchanged ones are reused."""
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
"""All jobs of the code location."""
