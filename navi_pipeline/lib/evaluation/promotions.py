"""Promotion gate: challenger against champion on the validation scenes; each pair is decided once."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from navi_core.config import EvalConfig, config_hash, parse_config
from navi_core.errors import RegistryError
from navi_core.record import navi_home
from navi_pipeline.lib.evaluation.scoring import SplitScenes, flown, flown_policy, own_networks_of
from navi_pipeline.lib.records import content_key, pipeline_folder, pipeline_log, read_document, write_document

if TYPE_CHECKING:
    from navi_core.evaluate import EvalResult
    from navi_core.models import ModelVersion, Registry

ALIAS = "champion"
"""Registry alias of the serving version, the champion."""

_RULES = 2
"""Version of the promotion gate's decision rules; pairs decided by another version are decided again."""


def open_registry() -> Registry:
    """Open the model registry of the Navi home."""
    from navi_core.models import Registry

    return Registry(navi_home() / "models")


# Above 60 lines: the order of flights, writes and the alias's move is what makes a decision safe to repeat.
def challenge(policy: dict[str, Any], config: EvalConfig) -> dict[str, Any]:
    """Evaluate a model version against the champion; promote it if it wins and a second course confirms the win.

    Both fly the same frozen starts of the validation scenes. The first champion must beat random flight. A decided pair
    is not decided again. A smaller protocol than that of the champion's own promotion gives way to it, so that a small
    night decides on the champion's course.

    Args:
        policy: The policy's document.
        config: The protocol.

    Returns:
        The decision's row, with `champion` (who holds the alias now) and `reused`.

    Raises:
        EvaluationError: The corpus has no validation scene.
        RegistryError: Another version got the alias in the moment between decision and move; nothing moved.
    """
    from navi_core.evaluate import decide_and_confirm, scenes_seen, write_model_card

    registry = open_registry()
    version, holder = policy["version"], _holder(registry)
    held = pipeline_folder() / "decisions"
    if holder is not None and holder.version == version:
        known = held / f"{version}.json"
        row = read_document(known, made_by="promoted_model") if known.exists() else {"reason": f"{version} holds it"}
        return row | {"version": version, "promoted": True, "champion": version, "reused": True}
    config = _yardstick(held, holder, config)
    scenes = SplitScenes("validation")
    challenger = flown_policy(policy, scenes, config)
    previous = None if holder is None else holder.version
    flight_code = challenger.summary.get("flight_code")
    own = own_networks_of(Path(policy["checkpoint"])) + own_networks_of(holder)
    file = held / f"pair-{content_key(version, previous, challenger.evaluation_id, flight_code, _RULES, *own)}.json"
    reused = file.exists()
    if reused:
        row = read_document(file, made_by="promoted_model")
    else:

        def fly_again(others: EvalConfig) -> tuple[EvalResult, EvalResult]:
            ours = flown_policy(policy, scenes, others, confirms=True)
            return ours, _fly_opponent(holder, scenes, others, confirms=True)

        decision, _ = decide_and_confirm(
            version,
            (challenger, _fly_opponent(holder, scenes, config)),
            fly_again,
            previous_version=previous,
            alias=ALIAS,
            seen=scenes_seen(registry, version, challenger),
        )
        if registry.aliases().get(ALIAS) != previous:
            return challenge(policy, config)  # somebody else got the alias during the flights
        row = decision.to_row() | {
            "coverage": decision.coverage.to_row(),
            "collisions": decision.collisions.to_row(),
            "protocol": config.model_dump(mode="json"),
        }
        write_document(file, row)
    # An interrupted decision is completed here: the row has a natural key, and the alias moves once. A champion
    # that was rolled back since is not put back by deciding the same pair again.
    if not reused or (row["promoted"] and not _was_promoted(registry, version)):
        _record(row, config)
        write_document(held / f"{version}.json", row)
        if row["promoted"]:
            # A champion stands on the course of its promotion, which rankings are about.
            if (tested := SplitScenes("test", optional=True)).names:
                flown_policy(policy, tested, config)
            try:
                registry.promote(version, ALIAS, instead_of=previous)
            except RegistryError as error:
                # Another version got the alias after the row was written: it takes the row back, by the same key, and
                # the pair is decided anew.
                row |= {"promoted": False, "reason": f"Refused, {error}"}
                _record(row, config)
                write_document(held / f"{version}.json", row)
                file.unlink()
                raise
            write_model_card(registry.resolve(version), challenger, row["reason"])
            previous = version
    return row | {"champion": previous, "reused": reused}


def _yardstick(held: Path, holder: ModelVersion | None, config: EvalConfig) -> EvalConfig:
    """Return the protocol of the champion's promotion where it flies more than `config`, else `config`."""
    file = held / f"{holder.version if holder else None}.json"
    protocol = read_document(file, made_by="promoted_model").get("protocol") if file.exists() else None
    if protocol is None:  # no champion, or one of an older Navi
        return config
    former = parse_config(EvalConfig, protocol)
    return former if former.starts * former.max_steps > config.starts * config.max_steps else config


def _fly_opponent(
    holder: ModelVersion | None, scenes: SplitScenes, config: EvalConfig, *, confirms: bool = False
) -> EvalResult:
    """Return the champion's evaluation result, or the random pilot's if there is no champion."""
    columns = {"confirms": True} if confirms else {}
    if holder is None:
        return flown("random", scenes, config, columns=columns)
    return flown(
        holder,
        scenes,
        config,
        name=holder.version,
        weights=holder.weights_hash,
        columns={"run_id": holder.run_id, "step": holder.step_id, "model_version": holder.version, **columns},
    )


def _record(row: dict[str, Any], config: EvalConfig) -> None:
    with pipeline_log(f"promote-{row['version']}", seed=config.seed, config_hash=config_hash(config)) as log:
        log.row("promotions", {name: row[name] for name in row if name not in ("coverage", "collisions", "protocol")})


def _was_promoted(registry: Registry, version: str) -> bool:
    return ALIAS in registry.aliases() and any(move["version"] == version for move in registry.history(ALIAS))


def lineage_of(version: str) -> list[str]:
    """Return a version's lineage, the oldest ancestor first: version and training source of each."""
    return [f"{entry.version} ({entry.training_source})" for entry in reversed(open_registry().lineage(version))]


def _holder(registry: Registry) -> ModelVersion | None:
    return next((entry for entry in registry.list() if ALIAS in entry.aliases), None)
