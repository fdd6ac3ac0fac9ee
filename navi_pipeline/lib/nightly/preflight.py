"""Preflight checks of a nightly training job: disk, corpus, warehouse, initial weights, other runs.

Initial weights are `latest` if compatible, else the newest version of a night, else the champion. `latest` moves to the
newest training where rewards do not compare, so an experiment of the day may hold it in the evening. A night continues
from `latest` only if its network and rewards match the profile's.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from navi_core.config import CompileConfig, TrainConfig
from navi_core.errors import NaviError, RecordError
from navi_core.record import hardware_profile, navi_home
from navi_pipeline.lib.corpus.scenes import (
    RESOLUTION,
    compile_source,
    corpus_path,
    corpus_rows,
    plan_path,
    plan_scenes,
    read_corpus,
    write_corpus,
    write_plan,
)
from navi_pipeline.lib.evaluation.promotions import ALIAS, open_registry
from navi_pipeline.lib.nightly.night import Gate, Night, preset_settings
from navi_pipeline.lib.training.supervised import runs_in_use
from navi_pipeline.lib.warehouse.warehouse import Warehouse
from navi_pipeline.settings import NightlyConfig

if TYPE_CHECKING:
    from navi_core.models import ModelVersion, Registry

ASSET = "nightly"
"""Asset name and name prefix of a night's training runs."""
LATEST = "latest"
"""Registry alias of the newest version that is better than those before."""


def _candidates(registry: Registry) -> list[tuple[ModelVersion, str]]:
    """Return candidate model versions for the initial weights with their origin, in order of preference."""
    versions = registry.list()
    # Of nights with the same settings one is enough: hundreds of versions are a few networks.
    nights: dict[str, tuple[ModelVersion, str]] = {}
    for version in reversed(versions):
        if version.run_id.startswith(f"{ASSET}-"):
            nights.setdefault(version.config_hash, (version, "made by a night"))
    named = {alias: [(version, alias) for version in versions if alias in version.aliases] for alias in (LATEST, ALIAS)}
    return [*named[LATEST], *nights.values(), *named[ALIAS]]


def _why_not(config: TrainConfig, version: ModelVersion, *, needs_same_rewards: bool) -> str | None:
    """Check a model version's compatibility as initial weights; return the reason against it, None if compatible."""
    from navi_core.models import load_checkpoint
    from navi_core.models.lineage import same_network, same_rewards

    try:
        checkpoint = load_checkpoint(version.path)
        if not same_network(config.policy, checkpoint):
            return "is another network than the profile's"
        if needs_same_rewards and not same_rewards(config, checkpoint.train_config()):
            return "was paid for something else than the profile pays for"
    except NaviError as error:
        return f"cannot be read: {error}"
    return None


def preflight(night: Night) -> tuple[list[Gate], dict[str, Any]]:
    """Check everything that could fail later in the night, and generate a corpus if there is none."""
    from navi_core.kernels.native.library import find_compiler

    home = navi_home()
    home.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(home).free / 2**30
    need = night.config.free_disk_gib
    gates = [
        Gate("free disk", True, free >= need, f"{free:.1f} GiB free, {need:g} needed"),
        Gate("home is writable", True, os.access(home, os.W_OK), str(home)),
        _answer("profile", lambda: preset_settings(night.config).algorithm),
        _answer("warehouse", _warehouse),
    ]
    if not night.config.train:
        gates.append(_answer("champion", _champion))
    # Scenes may have to be made, which takes minutes and space: not where the night cannot begin anyway.
    if all(gate.passed for gate in gates):
        gates.append(_answer("corpus", lambda: _corpus(night)))
    data = {name: hardware_profile()[name] for name in ("hardware", "revision")}
    if night.config.train and all(gate.passed for gate in gates):
        try:
            data["start"], gate = choose_start(night.config)
        except NaviError as error:
            gate = Gate("weights", True, False, str(error))
        gates.append(gate)
    if night.config.train:
        busy = runs_in_use()
        gates.append(Gate("nobody trains", False, not busy, ", ".join(busy) or "no run is in use"))
    compiler = find_compiler()
    gates.append(
        Gate("native kernels", False, compiler is not None, " ".join(compiler or ("no compiler: numba serves",)))
    )
    return gates, data


def choose_start(night: NightlyConfig) -> tuple[str, Gate]:
    """Select the initial weights: the first compatible version of latest, earlier nights, champion; else new weights.

    The alias `latest` may move during the night.

    Returns:
        A version, or `none` for new weights; and the gate that names the versions that were passed over.

    Raises:
        RegistryError: The registry cannot be read.
    """
    if night.fresh:
        return "none", Gate("weights", False, True, "begins with new weights, as configured")
    config = preset_settings(night)
    passed: dict[str, str] = {}
    start, begins = "none", "new weights"
    for version, what in _candidates(open_registry()):
        why = _why_not(config, version, needs_same_rewards=what == LATEST)
        if why is None:
            start, begins = version.version, f"{version.version}, {what}"
            break
        passed.setdefault(version.version, f"{version.version} ({what}) {why}")
    detail = "; ".join([f"begins with {begins}", *(f"passed over: {why}" for why in passed.values())])
    return start, Gate("weights", False, not passed, detail)


def _answer(name: str, call: Callable[[], object]) -> Gate:
    try:
        return Gate(name, True, True, str(call()))
    except NaviError as error:
        return Gate(name, True, False, str(error))


def _warehouse() -> str:
    report = Warehouse().ingest()
    Warehouse().query("select 1")  # what ingests may still give no reader an answer
    refused = f", {len(report.quarantined)} segments refused" if report.quarantined else ""
    return f"{report.rows} rows folded in{refused}"


def _corpus(night: Night) -> str:
    """Check that the manifest's files exist, or generate a corpus if no scenes are planned."""
    from pathlib import Path

    if corpus_path().exists():
        rows = read_corpus()
    elif plan_path().exists():
        # Whose plan it is, and why it was not gone on with, a night cannot know; to replace it would lose it.
        raise RecordError(
            f"{plan_path()} plans scenes, and nobody has gathered a corpus of them; materialize compiled_scene (all "
            "partitions) and corpus, or remove the plan: then the night generates scenes"
        )
    else:
        night.report("  there is no corpus yet; scenes are generated")
        rows = _made_corpus(night)
    splits = {split: sum(row["split"] == split for row in rows) for split in ("train", "validation", "test")}
    missing = [row["name"] for row in rows if not Path(row["gmdag"]).exists()]
    if missing:
        raise RecordError(f"the files of {', '.join(missing[:3])} are gone; materialize compiled_scene again")
    if empty := [split for split, count in splits.items() if not count]:
        raise RecordError(f"the corpus has no {' and no '.join(empty)} scene; materialize scene_sources with some")
    return ", ".join(f"{count} {split}" for split, count in splits.items())


def _made_corpus(night: Night) -> list[dict[str, Any]]:
    config = night.config
    counts = {"train": config.train_scenes, "validation": config.validation_scenes, "test": config.test_scenes}
    sources = plan_scenes("apartment", counts)
    # As the assets do it: with a preset's own, the sensor would find every scene out of date.
    settings = CompileConfig(resolution=RESOLUTION)
    for number, source in enumerate(sources, start=1):
        compile_source(source, settings)
        if number % 10 == 0:
            night.report(f"  {number} of {len(sources)} scenes compiled")
    # The plan comes last: a night that is interrupted before leaves none, and its scenes are reused.
    write_plan(sources, "apartment", counts)
    write_corpus([row for row in corpus_rows() if row["verdict"] != "FAIL"])
    return read_corpus()


def _champion() -> str:
    from navi_core.models import load_checkpoint

    version = open_registry().resolve(ALIAS)
    load_checkpoint(version.path)
    return version.version
