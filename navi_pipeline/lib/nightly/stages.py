"""Stages of a night in order: evaluation, benchmarks with drift check, gated promotion, morning summary."""

import json
import logging
import os
import platform
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

from navi_core.config import CompileConfig, EvalConfig, config_hash
from navi_core.errors import RecordError
from navi_core.machine.file_lock import hold_lock
from navi_core.record import hardware_profile
from navi_pipeline.lib.corpus.scenes import corpus_path, read_corpus
from navi_pipeline.lib.evaluation.promotions import ALIAS, challenge, open_registry
from navi_pipeline.lib.evaluation.scoring import SplitScenes, comparison_row, score_policy, summary_rows
from navi_pipeline.lib.nightly.night import Gate, Night, Work, night_lock, night_name
from navi_pipeline.lib.nightly.preflight import preflight
from navi_pipeline.lib.nightly.training import bounded_training, night_policy, resume_proof
from navi_pipeline.lib.records import BenchmarkLog, write_text
from navi_pipeline.lib.reports.pages import (
    REWARD_PANELS,
    Part,
    curve_charts,
    markdown_table,
    reports_folder,
    section,
    table_part,
    text_part,
    write_page,
)
from navi_pipeline.lib.training.policies import curve_of
from navi_pipeline.lib.warehouse.warehouse import Warehouse
from navi_pipeline.settings import NightlyConfig

BENCHMARK = "nightly"
"""Benchmark name of the night's cells in the warehouse."""
_WEBHOOK_SECONDS = 10.0
_DRONES, _AZIMUTH, _ELEVATION = 64, 64, 16


def evaluation(night: Night) -> tuple[list[Gate], dict[str, Any]]:
    """Evaluate the night's policy (or the champion) and two scripted pilots on the test scenes."""
    score = score_policy(_policy(night), SplitScenes("test"), _protocol(night))
    Warehouse().ingest()
    rows = {pilot: comparison_row(metrics["c_vis_auc"]) for pilot, metrics in score.comparisons.items()}
    gate = Gate("beats random flight", False, rows["random"]["better"], rows["random"]["sentence"])
    return [gate], {"table": summary_rows(score), "comparisons": rows, "maps": score.maps}


def benchmarks(night: Night) -> tuple[list[Gate], dict[str, Any]]:
    """Benchmark the environment on each scene in turns, and compare with earlier nights on this hardware."""
    from navi_core.bench.engine.env import run_env
    from navi_core.scenes import compile_mesh, generate_scene

    config = night.config
    scenes = {
        family: compile_mesh(generate_scene(family, 0), CompileConfig(resolution=256)) for family in config.bench_scenes
    }
    figures: dict[str, list[float]] = {family: [] for family in scenes}
    # What is measured names the history; the length of the night and its hour do not belong to it.
    others = {"minutes": 1.0, "train": True, "profile": "quick", "compact_segments": None, "webhook": None,
              "training_cron": None, "training_hour": 22, "validation_hour": 7, "time_zone": "UTC"}  # fmt: skip
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
    rows: list[dict[str, Any]] = json.loads(drift.to_json(orient="records", double_precision=15))
    medians = {family: statistics.median_high(values) for family, values in figures.items()}
    return [_drift_gate(rows)], {"steps_per_second": medians, "drift": rows}


def _drift_gate(rows: list[dict[str, Any]]) -> Gate:
    """Check for a performance regression: the night's CPU time per decision against earlier nights."""
    slower = [row for row in rows if row["drifts"] and row["judged"]]
    if not rows:
        detail = "fewer than 3 earlier nights on this hardware; there is nothing to compare with yet"
    elif slower:
        detail = "; ".join(f"{r['cell']} {r['slowdown_percent']:+.0f} %" for r in slower) + " more CPU time a decision"
    else:
        worst = max((row["slowdown_percent"] for row in rows if row["judged"]), default=0.0)
        detail = f"at most {worst:+.1f} % against the median of the last nights"
    return Gate("no drift", False, not slower, detail)


def promotion(night: Night) -> tuple[list[Gate], dict[str, Any]]:
    """Evaluate the night's policy against the champion on the validation scenes and promote it if it wins."""
    from navi_core.models import record_registry

    comparison = night.data("evaluation")["comparisons"]["random"]
    if not comparison["better"]:
        reason = f"not asked: {comparison['sentence']}"
        return [], {"promoted": False, "reason": reason, "champion": _champion_now()}
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


_WORDS = {"passed": "passed", "warned": "passed with warnings", "failed": "failed"}


def summary_paths(name: str) -> tuple[Path, Path]:
    """Return the paths of a night's summary: Markdown file, HTML file."""
    return reports_folder() / f"night-{name}.md", reports_folder() / f"night-{name}.html"


def write_summary(night: Night) -> tuple[Path, Path]:
    """Write the summary of a night, finished or not; return the Markdown file and the HTML file."""
    title = f"Night {night.name}: {_WORDS[night.verdict]}"
    blocks, parts = [f"# {title}"], list[Part]()
    for heading, text, rows in _sections(night):
        blocks += [f"## {heading}", *([text] if text else []), *([markdown_table(rows)] if rows else [])]
        parts += section(heading, [text_part(text) if text else "", table_part(rows) if rows else ""])
    run_id = night.data("resume_proof").get("run_id") or night.data("training").get("run_id")
    if run_id:
        parts += section("Training", curve_charts(curve_of(run_id), REWARD_PANELS))
    markdown, page = summary_paths(night.name)
    write_text(markdown, "\n\n".join(blocks) + "\n", "the summary ")
    write_page(page, title, parts)
    detail = f"{night.verdict}: {_headline(night)}"
    night.record("events", {"event": "night", "detail": detail, "summary": str(markdown)})
    night.record("nights", _row(night))
    Warehouse().ingest()
    _compact(night.config.compact_segments)
    if night.failed:
        _call(os.environ.get("NAVI_NIGHTLY_WEBHOOK") or night.config.webhook, night, markdown, page)
    return markdown, page


def _call(url: str | None, night: Night, markdown: Path, page: Path) -> None:
    """Post a failed night to a webhook as JSON; a failure of the webhook is logged."""
    if not url:
        return
    body = {
        "night": night.name,
        "verdict": night.verdict,
        "text": f"Navi, night {night.name} on {platform.node()}: {night.verdict}: {_headline(night)}",
        "failed": [{"gate": gate.name, "detail": gate.detail} for gate in night.failed],
        "links": {"summary": markdown.absolute().as_uri(), "page": page.absolute().as_uri()},
    }
    try:
        if not url.startswith(("http://", "https://")):
            raise ValueError("only http:// and https:// are called")
        request = Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
        urlopen(request, timeout=_WEBHOOK_SECONDS).close()
    # The URL may hold a secret, so neither it nor what quotes it is logged.
    except (OSError, ValueError, HTTPException) as error:
        why = getattr(error, "reason", None) or type(error).__name__
        logging.getLogger("navi.nightly").warning("the webhook of night %s did not answer: %s", night.name, why)


def _row(night: Night) -> dict[str, Any]:
    """Return the night's row of the table `nights`: settings, weights, scenes, gates, figures."""
    trained = night.data("resume_proof") or night.data("training")
    flown, promoted = night.data("evaluation"), night.data("promotion")
    rows = read_corpus() if corpus_path().exists() else []
    scenes = {split: {row["name"]: row["content_hash"] for row in rows if row["split"] == split}
              for split in sorted({row["split"] for row in rows})}  # fmt: skip
    numbers = (
        {f"seconds {stage.name}": stage.seconds for stage in night.stages.values()}
        | {name: trained.get(name) for name in ("steps", "reward_ema", "steps_per_second")}
        | {f"steps/s {name}": speed for name, speed in night.data("benchmarks").get("steps_per_second", {}).items()}
        | dict(flown["table"][0] if flown else {})
    )
    return {
        "night": night.name,
        "kind": "training" if night.config.train else "validation",
        "verdict": night.verdict,
        "headline": _headline(night),
        "started_at": night.began_at,
        "ended_at": f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}",
        "settings": night.config.model_dump(mode="json"),
        "start_version": night.data("preflight").get("start"),
        "version": trained.get("version") or _champion_now(),
        "champion": promoted.get("champion") or _champion_now(),
        "promoted": promoted.get("promoted"),
        "scenes": scenes,
        "gates": night.gate_rows(),
        "figures": {name: value for name, value in numbers.items() if isinstance(value, int | float)},
    }


def _champion_now() -> str | None:
    return open_registry().aliases().get(ALIAS)


def _compact(most: int | None) -> None:
    """Compact the warehouse if it has more than `most` segments; a failure is logged and retried the next night."""
    if most is None or sum(1 for _ in Warehouse().done.glob("*.ndjson")) <= most:
        return
    try:
        Warehouse().compact()
    except RecordError as error:
        logging.getLogger("navi.nightly").warning("the warehouse was not compacted: %s", error)


def _headline(night: Night) -> str:
    if night.failed:
        return "; ".join(f"{gate.name}: {gate.detail}" for gate in night.failed)
    parts = []
    if steps := night.data("resume_proof").get("steps") or night.data("training").get("steps"):
        parts.append(f"{int(steps):,} steps")
    if promotion := night.data("promotion"):
        parts.append(_outcome(promotion))
    parts += [f"warning {gate.name}: {gate.detail}" for gate in night.warnings]
    return "; ".join(parts) or "nothing to report"


def _outcome(promotion: dict[str, Any]) -> str:
    if promotion["promoted"]:
        return f"{promotion['version']} became champion"
    return "the champion stays" if promotion["champion"] else "there is no champion yet"


def _sections(night: Night) -> list[tuple[str, str, list[dict[str, Any]]]]:
    # Another machine may resume the night and write its summary.
    about = hardware_profile() | night.data("preflight")
    where = f"Begun {night.began_at} on {about['hardware']}, code {about['revision']}."
    stages = [{"stage": s.name, "status": s.status, "seconds": round(s.seconds, 1)} for s in night.stages.values()]
    sections: list[tuple[str, str, list[dict[str, Any]]]] = [
        ("Verdict", f"{_headline(night).rstrip('.')}. {where}", []),
        ("Gates", "", night.gate_rows()),
        ("Stages", "", stages),
    ]
    flown = night.data("evaluation")
    if flown:
        text = " ".join(row["sentence"] for row in flown["comparisons"].values())
        sections.append(("Evaluation", text, flown["table"]))
    measured = night.data("benchmarks")
    if measured:
        speeds = [{"scene": name, "steps/s": round(value, 1)} for name, value in measured["steps_per_second"].items()]
        sections.append(("Benchmarks", f"{night.config.bench_repeats} turns each, medians.", speeds))
        kept = ("cell", "name", "value", "baseline", "unit", "slowdown_percent", "earlier_runs", "drifts")
        drift = [{name: row[name] for name in kept} for row in measured["drift"]]
        sections.append(("Drift", "Against the median of the last seven nights on this hardware.", drift))
    if promotion := night.data("promotion"):
        sections.append(("Promotion", str(promotion["reason"]), []))
    if night.failed:
        how = "Mend what the failed gate names; the same night given again goes on behind the stages that passed."
        sections.append(("What to do", how, []))
    return sections


def stages_of(config: NightlyConfig) -> dict[str, Work]:
    """Return stage name → function of a night, in order; a validation night has no training and no promotion."""
    if not config.train:
        return {"preflight": preflight, "evaluation": evaluation, "benchmarks": benchmarks}
    return {
        "preflight": preflight,
        "training": bounded_training,
        "resume_proof": resume_proof,
        "evaluation": evaluation,
        "benchmarks": benchmarks,
        "promotion": promotion,
    }


def run_night(
    config: NightlyConfig, name: str | None = None, *, report: Callable[[str], None]
) -> tuple[Night, tuple[Path, Path]]:
    """Run a night from preflight to summary, or resume it.

    Args:
        config: Settings of the night.
        name: Name of the night; by default date, time and kind.
        report: Called with progress, a line at a time.

    Returns:
        The night, and its summary as Markdown and HTML.

    Raises:
        RunError: The name cannot name a file, another process works on this night, or it was begun with other
            settings.
    """
    name = night_name(config, name)
    report(f"night {name}")
    with hold_lock(night_lock(name), f"night {name}"):
        night = Night(config, name, report=report)
        with summed_up_if_broken(night):
            run_stages(night)
        return night, write_summary(night)


def run_stages(night: Night) -> None:
    """Run the remaining stages of a night; after a failed hard gate they are marked as skipped."""
    for stage, work in stages_of(night.config).items():
        night.run(stage, work)


@contextmanager
def summed_up_if_broken(night: Night) -> Iterator[None]:
    """Context manager that writes the night's summary when an error or signal ends it, and re-raises."""
    try:
        yield
    except BaseException as error:
        night.note("run", Gate("the run ends", True, False, f"{type(error).__name__}: {error}".rstrip(": ")))
        try:
            write_summary(night)
        except Exception as fault:
            # The night's own error is the one to report.
            logging.getLogger("navi.nightly").warning("the summary of night %s is not written: %s", night.name, fault)
        raise
