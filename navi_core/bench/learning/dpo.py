"""Benchmark of DPO: coverage of a policy before and after it learns preferences between two pilots.

Runs start from new weights, so the gain is explained by preferences alone.
"""

import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

from navi_core.bench.report import Assignments, Log, Option, Report, Row, Scenes, figure, report
from navi_core.bench.task_runs import temporary_run
from navi_core.config import EvalConfig, TrainConfig
from navi_core.demos import make_pairs, write_pairs
from navi_core.evaluate import build_course, compare, evaluate
from navi_core.learn import EventBus, UpdateMade, train
from navi_core.policy import build_policy
from navi_core.presets import merge, parse_assignments, resolve_config
from navi_core.record.home import load_scenes
from navi_core.scenes import Scene
from navi_core.world import Field

_PROTOCOL = EvalConfig(starts=3, max_steps=200)
"""Evaluation configuration: the quick protocol of `navi evaluate`."""
_SETTINGS: dict[str, Any] = {
    "algorithm": "dpo",
    "actors": 8,
    # Rollouts teach nothing here, so they are short; the reference stays what the run began with.
    "dpo": {"rollout": 32, "bptt": 32, "learning_rate": 1e-3, "ref_sync_every_updates": 0},
}


def dpo_config(seed: int, updates: int, pairs: Path | None, changes: dict[str, Any] | None = None) -> TrainConfig:
    """Build the configuration of a DPO run: the preset `quick` with the benchmark's settings.

    Args:
        seed: Seed.
        updates: Updates.
        pairs: File of pairs.
        changes: Nested values that win.

    Raises:
        ConfigError: A setting is unknown or impossible.
    """
    values = merge(_SETTINGS, changes or {})
    steps = updates * values["actors"] * values["dpo"]["rollout"]
    flags = merge(values, {"seed": seed, "total_steps": steps, "checkpoint_every": steps})
    return resolve_config(preset="quick", flags=merge(flags, {"dpo": {"pairs": None if pairs is None else str(pairs)}}))


# More than 60 lines: one measurement, its arguments and its row.
def run_dpo(
    scenes: Sequence[Scene],
    unseen: Sequence[Scene],
    seeds: Sequence[int],
    *,
    winner: str = "forward-plus",
    loser: str = "random",
    count: int = 256,
    steps: int = 32,
    updates: int = 20,
    changes: dict[str, Any] | None = None,
    protocol: EvalConfig = _PROTOCOL,
    progress: Callable[[str], None] = lambda _: None,
) -> Iterator[Row]:
    """Generate preference pairs, then train DPO with every seed and evaluate on unseen scenes before and after.

    Args:
        scenes: Scenes of the pilots' flights.
        unseen: Unseen scenes for the evaluation.
        seeds: Seeds.
        winner: The better pilot.
        loser: The worse pilot.
        count: Number of pairs.
        steps: Decisions of a segment.
        updates: Updates of a run.
        changes: Settings that differ from the benchmark's.
        protocol: Evaluation protocol of the unseen scenes.
        progress: Called with a line about what was done.

    Yields:
        Rows with the keys:
        seed: Seed of the weights and of the order of pairs.
        pairs: Pairs learned from and held out.
        updates: Updates made.
        held_out: Share of held-out pairs whose winner became likelier, against the loser.
        before: Mean C_vis AUC of the policy that the run began with.
        after: That of the policy that it ended with.
        gain: Mean paired difference.
        low: Lower end of its 95 % interval over scenes.
        high: Upper end.
        over_loser: Mean paired difference of the policy after to the pilot that lost.
        over_loser_low: Lower end of its interval.
        over_loser_high: Upper end.
        cpu_seconds: Process CPU time of learning.

    Raises:
        ConfigError: A pilot or a setting is unknown, or the winner hardly ever earns more.
        NonFiniteError: NaN appeared.
    """
    field = Field(scenes, device="cpu")
    course = build_course(unseen, protocol, vocabulary=dict(field.vocabulary))
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "pairs.jsonl"
        pairs = make_pairs(
            field, dpo_config(0, updates, None, changes).env, count, winner=winner, loser=loser, steps=steps
        )
        write_pairs(file, pairs)
        progress(f"{count} pairs; {winner} earned more at {float(pairs.metadata['won']):.1%} of the starts")
        base = evaluate(loser, course)
        for seed in seeds:
            config = dpo_config(seed, updates, file, changes)

            def learned(now: UpdateMade, seed: int = seed) -> None:
                progress(f"seed {seed}, update {now.updates}: {now.line()}")

            before = evaluate(build_policy(config.policy, seed=seed), course, name="before")
            start = time.process_time()
            with temporary_run(config, str(seed)) as (run, log):
                done = train(config, run, field=field, log=log, events=EventBus({UpdateMade: learned}, strict=True))
                seconds = time.process_time() - start
                after = evaluate(done.checkpoint, course, name="after")
            moved, over = compare(after, before), compare(after, base)
            progress(f"seed {seed}: {moved.sentence}; {over.sentence}")
            yield {
                "seed": seed,
                "pairs": count,
                "updates": done.updates,
                "held_out": done.metrics["held_out_accuracy"],
                "before": moved.mean_b,
                "after": moved.mean_a,
                "gain": moved.mean_difference,
                "low": moved.low,
                "high": moved.high,
                "over_loser": over.mean_difference,
                "over_loser_low": over.low,
                "over_loser_high": over.high,
                "cpu_seconds": seconds,
            }


def dpo(
    scene: Scenes = None,
    unseen: Annotated[
        list[str] | None, Option(flag="--unseen", help="Scenes to fly before and after.", metavar="S")
    ] = None,
    winner: Annotated[str, Option(help="Pilot that should win.")] = "forward-plus",
    loser: Annotated[str, Option(help="Pilot that should lose.")] = "random",
    count: Annotated[int, Option(flag="--pairs", min=2, help="Number of pairs.")] = 256,
    updates: Annotated[int, Option(min=1, help="Updates of a run.")] = 20,
    seeds: Annotated[int, Option(min=1, help="Number of seeds.")] = 1,
    first_seed: Annotated[int, Option(min=0, help="First seed.")] = 0,
    assign: Assignments = None,
    *,
    log: Log,
) -> Report:
    """Benchmark DPO on preferences between the flights of two pilots."""
    changes = parse_assignments(assign or ())
    resolution = dpo_config(first_seed, updates, None, changes).compile.resolution
    flown, other = (load_scenes(s, resolution) for s in (scene or ["apartment:0-15"], unseen or ["apartment:100-115"]))
    done = run_dpo(
        flown, other, range(first_seed, first_seed + seeds),
        winner=winner, loser=loser, count=count, updates=updates, changes=changes, progress=log,
    )  # fmt: skip
    title = f"DPO, {winner} preferred to {loser}; C_vis AUC of {len(other)} unseen scenes"
    caption = "intervals of 95 % over scenes and starts"
    return report(
        title,
        list(done),
        {
            "seed": figure("seed"),
            "pairs": figure("pairs"),
            "updates": figure("updates"),
            "held out": figure("held_out", ".1%"),
            "AUC before": figure("before", ".1f"),
            "after": figure("after", ".1f"),
            "gain": figure("gain", "+.1f"),
            "low": figure("low", "+.1f"),
            "high": figure("high", "+.1f"),
            f"over {loser}": figure("over_loser", "+.1f"),
            "its low": figure("over_loser_low", "+.1f"),
            "its high": figure("over_loser_high", "+.1f"),
            "CPU [s]": figure("cpu_seconds", ".0f"),
        },
        words=1,
        caption=caption,
    )
