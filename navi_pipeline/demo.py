"""`navi demo`: the whole graph through Dagster, from scenes to a champion, and a table at the end."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from navi_core.errors import EvaluationError, RunError
from navi_core.record import navi_home

if TYPE_CHECKING:
    import dagster as dg

__all__ = ["dagster_home", "run_demo"]

PROFILE = "demo"
"""Training profile of the demo."""


def dagster_home() -> Path:
    """Return Dagster's folder: `$DAGSTER_HOME`, or `dagster_home/` of the checkout.

    Raises:
        RunError: It holds no dagster.yaml.
    """
    home = Path(os.environ.get("DAGSTER_HOME") or Path(__file__).resolve().parents[1] / "dagster_home").absolute()
    if not (home / "dagster.yaml").exists():
        raise RunError(f"{home} holds no dagster.yaml; set DAGSTER_HOME to the checkout's dagster_home folder")
    return home


def run_demo(*, seed: int = 0, as_json: bool = False) -> None:
    """Materialize the whole graph and print how the policy compares with two pilots.

    Args:
        seed: Seed of the training run.
        as_json: Print one JSON object on standard output and nothing else there.

    Raises:
        RunError: An asset failed.
        EvaluationError: The policy did not pass the gates before the promotion.
    """
    began = time.monotonic()
    os.environ["DAGSTER_HOME"] = str(dagster_home())
    with _instance() as instance:
        demo = _Demo(instance, seed)
        _say(f"Navi home {navi_home()}, Dagster home {os.environ['DAGSTER_HOME']}, seed {seed}")
        demo.materialize_scenes()
        failed = demo.materialize_policy()
    from navi_pipeline.lib.verdicts import read_verdict

    verdict = read_verdict(PROFILE)
    seconds = time.monotonic() - began
    promotion = None if failed else {n: v for n, v in demo.metadata["promoted_model"].items() if n != "versions"}
    if as_json:
        document = {
            "seed": seed,
            "seconds": round(seconds, 1),
            "stages": demo.stages,
            "test": verdict["test"],
            "external": verdict["external"],
            "policy": verdict["policy"],
            "promotion": promotion,
            "failed_gates": failed,
        }
        print(json.dumps(document, default=str))  # noqa: T201
    else:
        _print_result(verdict, promotion, seconds)
    if failed:
        raise EvaluationError(f"the policy did not pass: {'; '.join(failed)}")


class _Demo:
    """One pass over the graph; each stage is a job of the code location."""

    def __init__(self, instance: dg.DagsterInstance, seed: int) -> None:
        from navi_pipeline.definitions import defs

        self.stages: dict[str, float] = {}
        self.metadata: dict[str, dict[str, Any]] = {}
        self._instance = instance
        self._definitions = defs()
        self._seed = seed

    def materialize_scenes(self) -> None:
        """Plan, compile and gather the scenes."""
        import dagster as dg

        from navi_core.config import CompileConfig
        from navi_pipeline.defs.corpus.assets import CompileSettings
        from navi_pipeline.lib.compiled import unchanged
        from navi_pipeline.lib.scene_plan import read_plan

        with self._stage("scene_sources"):
            self._require(self._run("sources_job"))
        settings = CompileSettings()
        config = CompileConfig(resolution=settings.resolution, padding=settings.padding)
        known = self._instance.get_materialized_partitions(dg.AssetKey("compiled_scene"))
        plan = read_plan()
        due = [name for name, source in plan.items() if name not in known or not unchanged(source, config)]
        _say(f"  {len(plan)} scenes, {len(plan) - len(due)} unchanged")
        with self._stage("compiled_scene"):
            for number, name in enumerate(due, start=1):
                self._require(self._run("compile_job", partition=name))
                if number % 7 == 0 or number == len(due):
                    _say(f"  compiled_scene {number}/{len(due)}")
        with self._stage("corpus"):
            self._require(self._run("corpus_job"))
        numbers = self.metadata["corpus"]
        _say(f"  corpus: {numbers['scenes']} scenes, {numbers['floor_area_m2']:.0f} m² of floor")

    def materialize_policy(self) -> list[str]:
        """Train, evaluate, promote; return the blocking checks that failed."""
        ops = {"ppo_policy": {"config": {"seed": self._seed, "echo": True}}}
        with self._stage("main_job"):
            result = self._run("main_job", partition=PROFILE, ops=ops)
        for event in result.all_events:
            if event.is_step_success and event.step_key in self.metadata:
                self.stages[event.step_key] = round(event.step_success_data.duration_ms / 1e3, 2)
                _say(f"  {event.step_key}: {self.stages[event.step_key]:.1f} s")
        checks = result.get_asset_check_evaluations()
        for check in checks:
            _say(f"  check {check.check_name}: {'passed' if check.passed else 'FAILED'}")
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

    def _run(self, job: str, *, partition: str | None = None, ops: dict[str, Any] | None = None) -> Any:
        # Dagster's own log lines stay in its storage; the terminal shows ours.
        config: dict[str, Any] = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}, "ops": ops or {}}
        result = self._definitions.resolve_job_def(job).execute_in_process(
            run_config=config,
            instance=self._instance,
            partition_key=partition,
            raise_on_error=False,
            tags={"navi/demo": "true"},
        )
        for event in result.get_asset_materialization_events():
            made = event.materialization
            self.metadata[made.asset_key.to_user_string()] = {name: v.value for name, v in made.metadata.items()}
        return result

    @staticmethod
    def _require(result: Any) -> None:
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
        _say(f"{name} …")
        start = time.monotonic()
        yield
        self.stages[name] = round(time.monotonic() - start, 2)
        _say(f"{name}: {self.stages[name]:.1f} s")


@contextmanager
def _instance() -> Iterator[dg.DagsterInstance]:
    import dagster as dg

    with dg.DagsterInstance.from_config(os.environ["DAGSTER_HOME"]) as instance:
        yield instance


def _print_result(verdict: dict[str, Any], promotion: dict[str, Any] | None, seconds: float) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(width=None if sys.stdout.isatty() else 140, highlight=False)
    for split, title in (("test", "held-out scenes, never trained on"), ("external", "scenes of $NAVI_SCENES")):
        part = verdict[split]
        if part is None:
            continue
        table = Table(title=f"{title}: {part['scenes']}, episodes each: {part['episodes']}", title_justify="left")
        for name in part["table"][0]:
            table.add_column(name, justify="left" if name == "subject" else "right")
        for row in part["table"]:
            table.add_row(*(str(value) for value in row.values()))
        console.print(table)
        for pilot in part["comparisons"].values():
            console.print(pilot["c_vis_auc"]["sentence"], soft_wrap=True)
    if promotion is not None:
        console.print(f"\nchampion: {promotion['champion']}. {promotion['reason']}", soft_wrap=True)
    console.print(f"\n{seconds:.0f} s. Where to look next:")
    for command, what in (
        ("make ui", "the graph, its checks, maps with the paths flown, reward curves"),
        ('navi query "select * from leaderboard"', "who explores best"),
        ('navi query "select * from model_lineage"', "what the champion descends from"),
        ("navi query latest_curve", "how the training went"),
        ("NAVI_SCENES=/folder/of/meshes make demo", "the same on your own scenes"),
    ):
        console.print(f"  {command:<44} {what}", markup=False)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)  # noqa: T201
