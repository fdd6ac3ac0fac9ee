"""Evaluation, benchmarks with drift, and the gated promotion of a night."""

import time
from typing import Any

from navi_core.config import CompileConfig, EvalConfig, config_hash
from navi_core.errors import EvaluationError
from navi_pipeline.lib.evaluation.promotions import ALIAS, challenge, open_registry
from navi_pipeline.lib.evaluation.scoring import comparison_row, score_policy, summary_rows
from navi_pipeline.lib.nightly.night import Gate, Night
from navi_pipeline.lib.nightly.training import night_policy
from navi_pipeline.lib.records import BenchmarkLog
from navi_pipeline.lib.warehouse.warehouse import Warehouse

BENCHMARK = "nightly"
"""Name under which the night's cells are recorded."""
_DRONES, _AZIMUTH, _ELEVATION = 64, 64, 16


def evaluation(night: Night) -> tuple[list[Gate], dict[str, Any]]:
    """Fly the night's policy (or the champion) and two pilots over the test scenes."""
    score = score_policy(_policy(night), "test", _protocol(night))
    if score is None:
        raise EvaluationError("the corpus has no test scene; materialize scene_sources with test above 0")
    Warehouse().ingest()
    rows = {pilot: comparison_row(metrics["c_vis_auc"]) for pilot, metrics in score.comparisons.items()}
    gate = Gate("beats random flight", False, rows["random"]["better"], rows["random"]["sentence"])
    return [gate], {"table": summary_rows(score), "comparisons": rows, "maps": score.maps}


def benchmarks(night: Night) -> tuple[list[Gate], dict[str, Any]]:
    """Fly each scene in turns, record the figures, and compare them with the last nights on this hardware."""
    from navi_core.bench.engine.env import run_env
    from navi_core.scenes import compile_mesh, generate_scene

    config = night.config
    scenes = {
        family: compile_mesh(generate_scene(family, 0), CompileConfig(resolution=256)) for family in config.bench_scenes
    }
    figures: dict[str, list[float]] = {family: [] for family in scenes}
    # What is measured names the history; the length of the night and its hour do not belong to it.
    others = {"minutes": 1.0, "train": True, "profile": "quick", "compact_segments": None,
              "training_hour": 22, "validation_hour": 7, "time_zone": "UTC"}  # fmt: skip
    digest = config_hash(config.model_copy(update=others))
    with BenchmarkLog(BENCHMARK, run_id=f"{night.run_id}-{time.time_ns()}", config_hash=digest) as log:
        for turn in range(config.bench_repeats):
            for family, scene in scenes.items():
                (row,) = run_env(
                    [(_AZIMUTH, _ELEVATION)],
                    [_DRONES],
                    [scene],
                    threads=1,
                    steps=config.bench_steps,
                    seed=config.seed + turn,
                )
                figures[family].append(row["steps_per_second"])
                log.cell(
                    family,
                    {
                        "steps_per_second": (row["steps_per_second"], "1/s"),
                        "cpu_ms": (row["cpu_per_1000"], "ms"),
                        "overhead": (row["overhead"], "share"),
                    },
                    repeat=turn,
                    seed=config.seed + turn,
                    step=config.bench_steps * _DRONES,
                    parameters={"drones": _DRONES, "azimuth_bins": _AZIMUTH, "elevation_bins": _ELEVATION},
                )
        trained = night.data("training").get("steps_per_second")
        if trained:
            log.cell(f"training-{config.profile}", {"steps_per_second": (trained, "1/s")}, seed=config.seed)
    Warehouse().ingest()
    # Process CPU time is what neighbours on the machine disturb least; wall time is shown beside it.
    drift = Warehouse().query(
        "select cell, name, value, baseline, unit, slowdown_percent, benchmark_slowdown_percent, earlier_runs, "
        "cell_drifts or benchmark_drifts as drifts, name = 'cpu_ms' as judged from drift_vs_baseline "
        "where benchmark = ? and run_id like ? || '%' order by name, cell",
        [BENCHMARK, night.run_id],
    )
    rows: list[dict[str, Any]] = [
        {str(name): value.item() if hasattr(value, "item") else value for name, value in row.items()}
        for row in drift.to_dict("records")
    ]
    slower = [row for row in rows if row["drifts"] and row["judged"]]
    if not rows:
        detail = "fewer than 3 earlier nights on this hardware; there is nothing to compare with yet"
    elif slower:
        detail = "; ".join(f"{r['cell']} {r['slowdown_percent']:+.0f} %" for r in slower) + " more CPU time a decision"
    else:
        worst = max((row["slowdown_percent"] for row in rows if row["judged"]), default=0.0)
        detail = f"at most {worst:+.1f} % against the median of the last nights"
    medians = {family: sorted(values)[len(values) // 2] for family, values in figures.items()}
    return [Gate("no drift", False, not slower, detail)], {"steps_per_second": medians, "drift": rows}


def promotion(night: Night) -> tuple[list[Gate], dict[str, Any]]:
    """Let the night's policy challenge the champion on the validation scenes."""
    from navi_core.models import record_registry

    comparison = night.data("evaluation")["comparisons"]["random"]
    if not comparison["better"]:
        reason = f"not asked: {comparison['sentence']}"
        return [], {"promoted": False, "reason": reason, "champion": open_registry().aliases().get(ALIAS)}
    decision = challenge(_policy(night), _protocol(night))
    record_registry(open_registry())
    Warehouse().ingest()
    kept = ("version", "promoted", "reason", "champion", "mean_difference", "low", "high")
    return [], {name: decision.get(name) for name in kept}


def _protocol(night: Night) -> EvalConfig:
    config = night.config
    return EvalConfig(starts=config.eval_starts, max_steps=config.eval_steps, seed=config.seed)


def _policy(night: Night) -> dict[str, Any]:
    if night.config.train:
        return night_policy(night)
    entry = open_registry().resolve(ALIAS)
    return {
        # Whatever made it: a champion is called by its version.
        "algorithm": "ppo",
        "profile": f"champion-{entry.version}",
        "seed": night.config.seed,
        "checkpoint": str(entry.path),
        "weights_hash": entry.weights_hash,
        "run_id": entry.run_id,
        "steps": entry.step_id,
        "version": entry.version,
    }
