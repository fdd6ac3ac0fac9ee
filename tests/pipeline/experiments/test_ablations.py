"""Ablations: variants, cells and verdicts; and a small ablation from end to end."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import threading
import time

import dagster as dg
import numpy as np
import pytest
from typer.testing import CliRunner

from navi_core.config import parse_config
from navi_core.errors import ConfigError, RunError
from navi_core.record import RunDirectory, navi_home
from navi_pipeline.cli import experiments
from navi_pipeline.definitions import defs
from navi_pipeline.lib.experiments import ablations, cells, verdicts
from navi_pipeline.lib.experiments.ablations import _key, ablation_cell, resolved
from navi_pipeline.lib.experiments.cells import known_outcome, run_cells
from navi_pipeline.lib.experiments.perform import ablation_experiment, perform_experiment
from navi_pipeline.lib.experiments.variants import BASE, VARIANTS, find_variants
from navi_pipeline.lib.records import write_document
from navi_pipeline.lib.reports.warehouse_report import run_report
from navi_pipeline.lib.training.supervised import run_supervised, runs_in_use
from navi_pipeline.lib.warehouse.warehouse import Warehouse
from navi_pipeline.settings import AblationConfig
from tests.evaluate.conftest import made_result
from tests.pipeline.empty_warehouse import start_warehouse

TINY = AblationConfig(
    steps=256,
    seeds=2,
    train=("apartment:3",),
    scenes=("apartment:9003", "apartment:9004"),
    base={"actors": 8, "ppo": {"rollout": 16, "bptt": 8, "minibatch": 4}, "compile": {"resolution": 64}},
)


def ablate(names, config, *, cells=None, jobs=1, on_line=print):
    return perform_experiment(ablation_experiment(names, config), cells=cells, jobs=jobs, on_line=on_line)


def run_cell(name, variant, config, seed):
    """Measure a cell, or raise what kept it from an outcome."""
    made = []
    failure = run_cells([ablation_cell(name, variant, config, seed)], timeout=config.timeout, on_outcome=made.append)
    if failure is not None:
        raise failure
    return made[0]


def known(variant, config, seed):
    return known_outcome(ablation_cell("ablation", variant, config, seed))


@pytest.mark.parametrize("preset", ["demo", "quick", "standard"])
def test_variant_changes_only_its_sections_in_every_preset(preset):
    config = AblationConfig(preset=preset)
    base = resolved(VARIANTS[BASE], config).model_dump()
    for variant in VARIANTS.values():
        changed = resolved(variant, config).model_dump()
        sections = {name for name, value in changed.items() if value != base[name]}
        allowed = {*variant.settings} | ({"algorithm", "policy"} if variant.algorithm != "ppo" else set())
        assert sections <= allowed | {"compile"}, variant.name


def test_the_base_comes_first_and_unknown_variants_are_refused():
    assert [variant.name for variant in find_variants(["rnd", "no_aux"])] == [BASE, "rnd", "no_aux"]
    assert [variant.name for variant in find_variants([])] == list(VARIANTS)
    with pytest.raises(ConfigError, match="core_mamba2"):
        find_variants(["core_lstm"])


def test_custom_variants_extend_the_catalogue():
    own = {"slow": {"ppo": {"learning_rate": 1e-5}}, "off_policy": {"algorithm": "dqn"}}
    assert [variant.name for variant in find_variants([], own)] == [BASE, "slow", "off_policy"]
    assert [variant.name for variant in find_variants(["no_tax"], own)] == [BASE, "no_tax", "slow", "off_policy"]
    config = AblationConfig(variants=own)
    base, slow, other = find_variants([], config.variants)
    assert resolved(slow, config).ppo.learning_rate == 1e-5 != resolved(base, config).ppo.learning_rate
    assert resolved(other, config).algorithm == "dqn" == other.algorithm
    assert len({_key(variant, config, 0) for variant in (base, slow, other)}) == 3
    # Custom variants do not change the cells of the catalogue.
    assert _key(base, config, 0) == _key(VARIANTS[BASE], AblationConfig(), 0)
    with pytest.raises(ConfigError, match=r"no variant 'fast'; .*allowed: base, .*slow.* --vary adds your own"):
        find_variants(["fast"], own)
    with pytest.raises(ConfigError, match="variant 'rnd' is one of"):
        find_variants([], {"rnd": {}})


def test_renamed_variant_and_an_older_document_reuse_the_outcome_of_a_cell():
    def varied(name):
        config = TINY.model_copy(update={"variants": {name: {"ppo": {"epochs": 7}}}, "seeds": 1})
        return config, find_variants((), config.variants)[-1]

    config, slow = varied("slow")
    older = {"variant": "slow", "seed": 0, "status": "crash", "detail": "by itself", "result": "", "checkpoint": "",
             "cpu_minutes": {"train": 1.0, "evaluate": 0.5}, "metrics": {"steps": 256.0}, "commands": []}  # fmt: skip
    write_document(ablation_cell("ablation", slow, config, 0).file, older)
    renamed, slower = varied("slower")
    found = known(slower, renamed, 0)
    assert (found.level, found.seed, found.reused) == ("slower", 0, True) and found.metrics["cpu_minutes"] == 1.5
    rows = ablate((), renamed, cells=0).summary.rows
    assert [(row["variant"], row["failed"]) for row in rows] == [("base", 0), ("slower", 1)]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"base": {"seed": 3}}, "base sets the seed"),
        ({"variants": {"x": {"seed": 3}}}, "x sets the seed, which would make all cells one; use --seeds"),
        ({"variants": {"x": {"algorithm": "bc"}}}, r"'x': a clone alone is no variant; `navi study ablate bc\+ppo`"),
        ({"base": {"algorithm": "grpo"}}, "--vary NAME:algorithm=grpo"),
    ],
)
def test_variant_that_sets_seed_or_bc_is_refused(given, message):
    with pytest.raises(ConfigError, match=message):
        parse_config(AblationConfig, given)


def test_ablate_command_parses_variant_settings():
    def ablate(*words):
        return CliRunner().invoke(experiments.study, ["ablate", "--cells", "0", "--seeds", "1", "--json", *words])

    vary = ["--vary", "slow:ppo.learning_rate=1e-5", "--vary", "slow:ppo.epochs=3", "--vary", "same:actors=16"]
    done = ablate(*vary)
    assert done.exit_code == 0, done.output
    reported = json.loads(done.stdout[done.stdout.index("{") :])
    assert [row["variant"] for row in reported["rows"]][:2] == [BASE, "slow"]
    for wrong, why in (("slow", "is not name:a.b=c"), ("a b:actors=2", "variants"), ("slow:ppo.lr=1", "ppo")):
        refused = ablate("--vary", wrong)
        assert isinstance(refused.exception, ConfigError) and why in str(refused.exception)


def test_custom_code_change_changes_the_cell_key(monkeypatch):
    from navi_core.config.world import REWARD_NAMES
    from navi_core.world import register_reward
    from navi_core.world.rewards import REWARDS

    monkeypatch.setattr(REWARD_NAMES, "_custom", [])
    monkeypatch.setattr(REWARDS, "_builders", dict(REWARDS._builders))
    monkeypatch.setattr(REWARDS, "_sources", {})
    register_reward("haste", lambda config: lambda batch, action: batch.info["speed"])
    config = AblationConfig(variants={"unhurried": {"env": {"reward": {"weights": {"haste": -0.1}}}}})
    base, variant = find_variants([], config.variants)
    keys = _key(base, config, 0), _key(variant, config, 0)
    REWARDS._sources["haste"] = "another code"
    assert _key(base, config, 0) == keys[0] and _key(variant, config, 0) != keys[1]


@pytest.mark.parametrize("changed", [{"demo_pilot": "planner"}, {"demo_episodes": 7}])
def test_other_demonstrations_make_other_cells_of_cloned_variants_alone(changed):
    cloned = next(variant for variant in VARIANTS.values() if variant.cloned)
    config = AblationConfig(demo_pilot="frontier", demo_episodes=3)
    other = config.model_copy(update=changed)
    assert _key(cloned, config, 0) != _key(cloned, other, 0)
    assert _key(VARIANTS[BASE], config, 0) == _key(VARIANTS[BASE], other, 0)


def test_environment_settings_do_not_change_the_cell_key(monkeypatch):
    """The measuring processes do not receive these variables."""
    key = _key(VARIANTS[BASE], TINY, 0)
    monkeypatch.setenv("NAVI_ACTORS", "3")
    assert _key(VARIANTS[BASE], TINY, 0) == key and resolved(VARIANTS[BASE], TINY).actors == 8


def test_zero_cells_shows_known_outcomes_without_measuring():
    """The demo preset already has a GRU and a ring encoder: these variants are the base."""
    done = ablate(["core_gru", "no_tax"], AblationConfig(seeds=3), cells=0)
    assert done.waiting == 6 and done.outcomes == [] and done.summary.rows[0]["variant"] == BASE
    assert list(done.document["skipped"]) == ["core_gru"] and "not measured yet" in done.report.read_text()


@pytest.mark.slow
def test_small_ablation_resumes_and_records_comparisons():
    reported: list[str] = []
    first = ablate(["core_none"], TINY, cells=1, on_line=reported.append)
    assert first.waiting == 3 and len(reported) == 1 and first.outcomes[0].status == "ok", reported
    done = ablate(["core_none"], TINY, jobs=2, on_line=reported.append)
    assert done.waiting == 0 and len(reported) == 4 and done.outcomes[0] == first.outcomes[0]
    assert known(VARIANTS["core_none"], TINY, 1) == done.outcomes[3]
    assert done.summary.rows[1]["seeds"] == 2 and "no verdict" in done.summary.sentences[0]
    assert done.summary.rows[1]["cpu_minutes"] > 0.01
    rows = Warehouse().query("select a, b, seeds, scenes, matrices from comparisons")
    assert rows[["a", "b", "seeds", "scenes"]].values.tolist() == [["core_none", BASE, 2, 2]]
    cells = Warehouse().query("select cell, repeat, value from benchmarks where name = 'c_vis_auc' order by 1, 2")
    assert cells[["cell", "repeat"]].values.tolist() == [[BASE, 0], [BASE, 1], ["core_none", 0], ["core_none", 1]]
    page = run_report().read_text()
    assert ">Who is better</h2>" in page and "core_none against base" in page


def test_failed_cell_leaves_the_outcomes_of_other_cells(monkeypatch):
    begun, reported = [], []

    def measure(measurement, variant, config, seed, key):
        begun.append((variant.name, seed))
        if variant.name == "no_tax":
            raise RunError("the first was hindered")
        while seed and not measurement.stop():
            time.sleep(0.01)
        if seed:
            raise RunError("another was stopped")
        raise cells.CellError("crash", "out of memory")

    monkeypatch.setattr(ablations, "_measure", measure)
    with pytest.raises(RunError, match="the first was hindered"):
        ablate(["rnd", "no_tax"], TINY, on_line=reported.append)
    assert [line.split()[2] for line in reported] == ["base/seed0:", "rnd/seed0:"]
    assert begun == [(BASE, 0), ("rnd", 0), ("no_tax", 0)]
    assert "4 of 6 cells are not measured yet" in (navi_home() / "reports" / "ablation-ablation.html").read_text()


def test_ablation_whose_cells_all_failed_fails_with_the_reasons_and_measures_them_again(monkeypatch):
    def measure(*_):
        raise cells.CellError("crash", "train: odd")

    monkeypatch.setattr(ablations, "_measure", measure)
    for cells_now, crashes in ((2, 2), (1, 3), (None, 4), (None, 4)):
        again = "measures them anew" if crashes == 4 else f"goes on with the {4 - crashes} cells that wait"
        why = rf"no cell of Ablation ablation succeeded: {crashes} crash \(train: odd\); mend that, .* {again}; report"
        with pytest.raises(RunError, match=why):
            ablate(["rnd"], TINY, cells=cells_now)
        assert (known(VARIANTS[BASE], TINY, 0) is None) == (crashes == 4)
    page = (navi_home() / "reports" / "ablation-ablation.html").read_text()
    assert page.count("2 crash (train: odd)") == 2  # a row each of base and rnd


def test_each_cell_is_a_materialized_partition_as_soon_as_it_is_measured(monkeypatch):
    seen = []

    def measure(measurement, variant, config, seed, key):
        seen.append(sorted(instance.get_materialized_partitions(dg.AssetKey("cell"))))
        measurement.outcome.metrics["steps"] = 256.0
        raise cells.CellError("crash", "odd") if (variant.name, seed) == ("rnd", 1) else RunError("hindered")

    def make():
        settings = {"variants": ["rnd"], "settings": {"seeds": 2}}
        job = defs().resolve_implicit_global_asset_job_def().get_subset(asset_selection={dg.AssetKey("ablation")})
        ops = {"ablation": {"config": settings}}
        return job.execute_in_process(instance=instance, run_config={"ops": ops}, raise_on_error=False)

    base, rnd = (ablation_cell("ablation", VARIANTS[name], AblationConfig(), 0) for name in (BASE, "rnd"))
    known = {"variant": "rnd", "seed": 0, "status": "ok", "detail": "", "metrics": {"c_vis_auc": 70.0}}
    with dg.DagsterInstance.ephemeral() as instance:
        write_document(rnd.file, known | {"status": "timeout"})
        write_document(base.file, known | {"status": "crash"})
        monkeypatch.setattr(ablations, "_measure", measure)
        assert not make().success
        assert seen[0] == ["ablation-ablation-base-seed0", "ablation-ablation-rnd-seed0"]
        (record,) = instance.fetch_materializations(
            dg.AssetRecordsFilter(dg.AssetKey("cell"), asset_partitions=["ablation-ablation-rnd-seed0"]), limit=9
        ).records
        metadata = {name: one.value for name, one in record.asset_materialization.metadata.items()}
        assert metadata["status"] == "timeout" and metadata["c_vis_auc"] == 70.0


def test_interrupted_experiment_stops_its_command_first(monkeypatch, tmp_path):
    """The command stands for a trainer that takes its time for a checkpoint; the interruption is Ctrl-C."""
    command = (
        "import pathlib, signal, sys, time\n"
        "def end(*_):\n    time.sleep(0.5)\n    pathlib.Path(sys.argv[2]).touch()\n    sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, end)\npathlib.Path(sys.argv[1]).touch()\ntime.sleep(600)\n"
    )
    begun, checkpoint = tmp_path / "begun", tmp_path / "checkpoint"
    program = [sys.executable, "-c", command, str(begun), str(checkpoint)]
    monkeypatch.setattr(cells, "run_supervised", lambda _, **kw: run_supervised(program, **kw))

    def interrupt():
        while not begun.exists():
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    with pytest.raises(KeyboardInterrupt):
        run_cell("ended", VARIANTS[BASE], TINY, 0)
    assert checkpoint.exists() and known(VARIANTS[BASE], TINY, 0) is None


def test_cell_with_a_locked_run_has_no_outcome(monkeypatch):
    monkeypatch.setattr("navi_pipeline.lib.training.supervised.LOCK_PATIENCE", 0.3)
    base, config = VARIANTS[BASE], resolved(VARIANTS[BASE], TINY)
    key = _key(base, TINY, 0)
    with (
        RunDirectory.open(navi_home() / "runs", asset="ablation", partition=key, config=config),
        pytest.raises(RunError, match=f"another process trains ablation-{key}"),
    ):
        run_cell("held", base, TINY, 0)
    assert known(base, TINY, 0) is None


def test_cell_on_a_full_disk_has_no_outcome(monkeypatch):
    reported = ["a line", "error: x.pt: the checkpoint cannot be written: No space left on device"]
    monkeypatch.setattr(cells, "run_supervised", lambda *_, **__: (4, "", reported))
    with pytest.raises(RunError, match=r"train: cell .* has no room: .*No space left on device; the same command"):
        run_cell("full", VARIANTS[BASE], TINY, 0)
    assert known(VARIANTS[BASE], TINY, 0) is None


def test_cell_killed_before_its_outcome_is_recorded_once(monkeypatch):
    def killed(file, document):
        raise KeyboardInterrupt

    monkeypatch.setattr(cells, "run_supervised", lambda *_, **__: (3, "", ["error: a broken scene"]))
    with monkeypatch.context() as until:
        until.setattr(cells, "write_document", killed)
        with pytest.raises(KeyboardInterrupt):
            run_cell("twice", VARIANTS[BASE], TINY, 0)
    assert run_cell("twice", VARIANTS[BASE], TINY, 0).status == "crash"
    Warehouse().ingest()
    rows = Warehouse().query("select name from benchmarks where benchmark = 'ablation-twice' order by name")
    assert rows["name"].tolist() == ["cpu_minutes", "wall_seconds"]


@pytest.mark.slow
def test_cell_with_a_stopped_trainer_has_no_outcome():
    endless, ended = TINY.model_copy(update={"steps": 50_000_000}), threading.Event()

    def end_the_trainer():
        while not ended.wait(0.5):
            for run in runs_in_use(prefix="ablation-"):
                # A trainer holds the lock a moment before its process id stands in it.
                with contextlib.suppress(ProcessLookupError, ValueError):
                    os.kill(int((navi_home() / "runs" / ".locks" / f"{run}.lock").read_text()), signal.SIGTERM)

    threading.Thread(target=end_the_trainer, daemon=True).start()
    try:
        with pytest.raises(RunError, match=r"train.* was (stopped at step [\d,]+ \(SIGTERM\)|ended by SIGTERM)"):
            run_cell("ended", VARIANTS[BASE], endless, 0)
    finally:
        ended.set()
    assert known(VARIANTS[BASE], endless, 0) is None


@pytest.mark.slow
def test_verdicts_follow_holm_rule_among_many_variants(monkeypatch, tmp_path):
    """20 variants without effect and one with: by Holm's rule only that one is significant."""
    monkeypatch.setenv("NAVI_HOME", str(start_warehouse(tmp_path)))
    draws, scenes = np.random.default_rng(5), tuple("abcdefgh")

    def seeds(name, gain=0.0):
        tables = gain + draws.normal(size=(5, 1)) + draws.normal(size=(5, 8))
        return {
            seed: made_result(f"{name}{seed}", [[v, v] for v in row], scenes=scenes, weights=f"{name}{seed}")
            for seed, row in enumerate(tables)
        }

    names = [f"v{number}" for number in range(20)]
    flown = {"base": seeds("base"), "good": seeds("good", 9.0)} | {name: seeds(name) for name in names}
    alone = [verdicts._verdicts([name], flown, whole=True)[name] for name in names]
    together = verdicts._verdicts(["good", *names], flown, whole=True)
    assert sum(verdict.better or verdict.worse for verdict in alone) >= 1
    assert [name for name, verdict in together.items() if verdict.better or verdict.worse] == ["good"]
    assert any("among 21 variants it may be chance (Holm): " in verdict.sentence for verdict in together.values())


@pytest.mark.slow
def test_earlier_looks_multiply_the_p_value(monkeypatch, tmp_path):
    """A pair with p = 0.03: shown at the first look, not at the second, and not before all cells are measured."""
    monkeypatch.setenv("NAVI_HOME", str(start_warehouse(tmp_path)))
    draws, scenes = np.random.default_rng(5), tuple("abcdefgh")
    tables = {name: draws.normal(size=(7, 1)) + draws.normal(size=(7, 8)) for name in ("base", "more")}

    def seeds(name, count, gain):
        return {
            seed: made_result(f"{name}{seed}", [[v, v] for v in row + gain], scenes=scenes, weights=f"{name}{seed}")
            for seed, row in enumerate(tables[name][:count])
        }

    def verdict(count, gain, **how):
        flown = {"base": seeds("base", count, 0.0), "more": seeds("more", count, gain)}
        return verdicts._verdicts(["more"], flown, **({"whole": True} | how))["more"]

    gains = np.linspace(-4, 4, 161)
    slightly = next(gain for gain in gains if 0.026 < verdict(7, gain, whole=False).p_value < 0.049 and
                    verdict(7, gain, whole=False).mean_difference > 0)  # fmt: skip
    assert "before all cells are measured" in verdict(7, slightly, whole=False).sentence
    Warehouse().ingest()
    assert Warehouse().query("select * from comparisons").empty, "an incomplete ablation records no look"
    verdict(4, slightly)  # too few for a verdict, and so no look
    first = verdict(5, slightly)
    again = verdict(5, slightly)
    assert "before" not in first.sentence and again.sentence == first.sentence, "the same look"
    second = verdict(7, slightly)
    assert not second.better and second.low > 0
    assert "looked at 2 times, it may be chance" in second.sentence and second.sentence.endswith("before with 5 seeds.")
    Warehouse().ingest()
    looks = Warehouse().query(
        "select seeds, looks from comparisons join comparison_looks using (comparison_id, metric)"
    )
    assert sorted(looks.values.tolist()) == [[4, 1], [5, 1], [7, 2]]
    monkeypatch.setenv("NAVI_HOME", str(start_warehouse(tmp_path / "another")))
    assert verdict(7, slightly).better
