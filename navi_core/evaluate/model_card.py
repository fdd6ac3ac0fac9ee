"""Model card of a promoted version: scenes, scores with intervals, failures, limits and licence, in Markdown."""

import re
from collections import Counter
from pathlib import Path

from navi_core.errors import RegistryError, printable
from navi_core.evaluate.result import EvalResult
from navi_core.models import ModelVersion, load_checkpoint
from navi_core.record.durable import write_durably

_LISTED = 5
"""Weakest flights listed."""
_NAMES = {"c_vis_auc": "C_vis AUC (%)", "c_seen_auc": "C_seen AUC (%)"}
"""Names of the headline metrics."""
_GENERATED = re.compile(r"[a-z]+(?=_\d{4,}$)")


def write_model_card(entry: ModelVersion, flown: EvalResult, reason: str) -> Path:
    """Write the model card of a version beside its checkpoint, and return its path.

    Args:
        entry: The promoted version.
        flown: Its evaluation on the validation scenes.
        reason: The promotion's verdict in words.

    Raises:
        CheckpointError: The version's file cannot be read.
        RegistryError: The card cannot be written.
    """
    file = entry.path.with_suffix(".md")
    with RegistryError.of_system(f"{file} cannot be written"):
        write_durably(file, _card(entry, flown, reason).encode())
    return file


def _card(entry: ModelVersion, flown: EvalResult, reason: str) -> str:
    trained = load_checkpoint(entry.path)
    config, protocol, summary = trained.train_config(), flown.config, flown.summary
    seconds = protocol.max_steps / entry.decision_hz
    hit = sum(not row["collision_free"] for row in flown.episodes)
    metric = protocol.coverage_metric
    name = _NAMES[metric]
    weakest = sorted(flown.episodes, key=lambda row: float(row[metric]))[:_LISTED]
    lines = [
        f"# Model card of {entry.version}",
        "",
        f"Policy of {entry.encoder_backend} + {entry.temporal_core}, trained by {config.algorithm} for "
        f"{entry.step_id:,} decisions (run `{entry.run_id}`, revision {entry.code_revision or 'unknown'}).",
        f"Parents: {', '.join(entry.parents) or 'none'}.",
        "",
        "## Scenes",
        "",
        f"Trained on {len(trained.scene_hashes)} scenes: {_kinds(list(trained.scene_hashes))}.",
        f"Evaluated on {len(flown.scenes)} other scenes: {_kinds(flown.scenes)}.",
        "",
        "## Scores",
        "",
        f"{len(flown.episodes)} flights of {seconds:g} s; intervals are 95 %, over scenes.",
        "",
        "| metric | value |",
        "|---|---|",
        f"| {name} | {_interval(summary, metric)} |",
        f"| collisions per minute | {summary['collisions_per_minute']:.2f} |",
        f"| flights without a collision | {len(flown.episodes) - hit} of {len(flown.episodes)} |",
        "",
        printable(reason),
        "",
        "## Failures",
        "",
        "The flights with the least coverage:",
        "",
        f"| scene | start | {name} | collisions per minute |",
        "|---|---|---|---|",
        *(
            f"| {_cell(row['scene'])} | {row['start']} | {row[metric]:.1f} | {row['collisions_per_minute']:.1f} |"
            for row in weakest
        ),
        "",
        "## Limits",
        "",
        f"It decides {entry.decision_hz:g} times a second, with a range of {config.env.max_distance:g} m. It has "
        "flown in simulation alone: no real drone, no moving obstacle.",
        "",
        "## Licence",
        "",
        "Navi and the scenes that it generates: Apache-2.0. Scenes from files keep the licences of their owners; "
        "add them before you pass the model on.",
        "",
    ]
    return "\n".join(lines)


def _kinds(names: list[str]) -> str:
    """Return the number of generated scenes of each family, and the names of the others."""
    families = Counter(match[0] for name in names if (match := _GENERATED.match(name)))
    files = [_cell(name) for name in sorted(names) if not _GENERATED.match(name)]
    return ", ".join([*(f"{number} × {family}" for family, number in sorted(families.items())), *files]) or "none known"


def _interval(summary: dict[str, object], metric: str) -> str:
    low, high = summary[f"{metric}_low"], summary[f"{metric}_high"]
    ends = "" if low is None or high is None else f" [{low:.1f}, {high:.1f}]"
    return f"{summary[metric]:.1f}{ends}"


def _cell(name: object) -> str:
    return printable(str(name)).replace("|", "\\|")
