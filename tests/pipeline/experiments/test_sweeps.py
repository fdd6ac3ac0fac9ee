"""Sweeps: cell outcomes, reuse of measured cells, and the verdict of the checklist."""

import json
import os
import random
import signal
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from navi_core.config import parse_config
from navi_core.errors import ConfigError, RecordError, RunError
from navi_core.record import navi_home
from navi_pipeline.lib.corpus.scenes import corpus_path
from navi_pipeline.lib.experiments import cells as cells_module
from navi_pipeline.lib.experiments import perform
from navi_pipeline.lib.experiments.cells import Cell, Outcome, known_outcome, run_cells
from navi_pipeline.lib.experiments.perform import perform_experiment, sweep_experiment, training_scenery
from navi_pipeline.lib.experiments.sweeps import SWEEPS, BenchCommand, find_sweep, read_train, sweep_cells
from navi_pipeline.lib.experiments.verdicts import (
    checklist,
    core_verdicts,
    level_rows,
    paired_difference,
    sweep_summary,
)
from navi_pipeline.lib.records import pipeline_folder, write_document
from navi_pipeline.lib.training.supervised import fault
from navi_pipeline.lib.warehouse.warehouse import Warehouse
from navi_pipeline.settings import SweepConfig

ANSWER = {"reward_ema": 0.5}
ENDINGS = {
    "fine": f"import json\nprint(json.dumps({ANSWER!r}))",
    "large": "import sys\nprint('error: not enough memory', file=sys.stderr)\nsys.exit(12)",
    "broken": "import os\nos.abort()",
    "odd": "print('no document')",
    "late": "import sys\nprint('error: not one update', file=sys.stderr)\nsys.exit(124)",
    "full": "import sys\nprint('error: x: No space left on device', file=sys.stderr)\nsys.exit(1)",
    "reported": "import os, signal\nos.kill(os.getpid(), signal.SIGTERM)",
    "slow": f"import json, time\ntime.sleep(0.4)\nprint(json.dumps({ANSWER!r}))",
    "stuck": "import time\ntime.sleep(60)",
}

HINDERED = {"full", "reported"}


def scripted(name, seed=0, size=None):
    factors = {"core": name, "seed": seed}
    command = BenchCommand((name,), lambda document: (dict(document), []))
    file = pipeline_folder() / "sweeps" / "temporal_core_sweep" / f"{command.key('temporal_core_sweep', factors)}.json"
    return Cell(factors, file, command, "temporal_core_sweep", "temporal_core_sweep-quick", profile=size)


@pytest.fixture
def children(monkeypatch):
    """Let cells run small programs instead of `navi`; yields the names of those that ran."""
    ran = []
    real = cells_module.run_supervised

    def run(command, **kw):
        ran.append(command[3])
        return real([command[0], "-c", ENDINGS[command[3]]], **kw)

    monkeypatch.setattr(cells_module, "run_supervised", run)
    return ran


def sweep(cells, **kw):
    made = {}
    failure = run_cells(cells, timeout=3.0, on_outcome=lambda o: made.setdefault(o.cell, o), **kw)
    if failure is not None:
        raise failure
    return [made[cell.name] for cell in cells]


def test_cell_exit_maps_to_an_outcome_of_that_cell(children):
    outcomes = sweep([scripted(name) for name in ENDINGS if name not in HINDERED])
    assert {o.level: o.status for o in outcomes} == {
        "fine": "ok",
        "large": "out_of_memory",
        "broken": "crash",
        "odd": "crash",
        "late": "timeout",
        "slow": "ok",
        "stuck": "timeout",
    }
    assert outcomes[0].metrics["reward_ema"] == 0.5 and "not enough memory" in outcomes[1].detail
    Warehouse().ingest()
    rows = Warehouse().query("select cell, outcome, name, value, seed from benchmarks order by cell")
    assert set(rows["cell"]) == set(ENDINGS) - HINDERED and set(rows[rows["cell"] == "stuck"]["outcome"]) == {"timeout"}
    assert rows[(rows["cell"] == "fine") & (rows["name"] == "reward_ema")]["value"].tolist() == [0.5]


def test_finished_cells_are_reused(children):
    cells = [scripted(name) for name in ("fine", "large")]
    first = sweep(cells[:1])
    second = sweep(cells)
    assert children == ["fine", "large"]
    assert [o.reused for o in second] == [True, False] and second[0] == first[0]
    sweep(cells[:1], again=True)
    assert children == ["fine", "large", "fine"]
    Warehouse().ingest()
    assert len(Warehouse().query("select distinct run_id from benchmarks where cell = 'fine'")) == 2


def test_interrupted_sweep_resumes_at_the_first_missing_cell(children, monkeypatch):
    cells = [scripted("fine", seed) for seed in range(3)]
    allowed, real = [2], cells_module._measured

    def measure(*args):
        if not allowed[0]:
            raise KeyboardInterrupt
        allowed[0] -= 1
        return real(*args)

    monkeypatch.setattr(cells_module, "_measured", measure)
    with pytest.raises(KeyboardInterrupt):
        sweep(cells)
    allowed[0] = 1
    assert [o.reused for o in sweep(cells)] == [True, True, False] and len(children) == 3


@pytest.mark.parametrize(("name", "why"), [("full", "has no room: .*No space left"), ("reported", "ended by SIGTERM")])
def test_interrupted_cell_has_no_outcome(children, name, why):
    for _ in range(2):
        with pytest.raises(RunError, match=f"cell {name}/seed0 .*{why}.*; the same command goes on with it"):
            sweep([scripted("fine"), scripted(name), scripted("large")])
    assert children == ["fine", name, name]


@pytest.mark.parametrize(
    ("reported", "found"),
    [
        ("error: x.pt: No space left on device", "has no room: x.pt: No space left on device"),
        ("error: two lines\nx.pt: Disk quota exceeded", "has no room: x.pt: Disk quota exceeded"),
        (
            "Traceback\nOSError: [Errno 28] No space left on device: 'x'",
            "has no room: OSError: [Errno 28] No space left on device: 'x'",
        ),
        ("12:00:00 the cache cannot be kept: No space left on device\nerror: reward is nan in row 2", None),
        ("ValueError: no room", None),
        (
            "CUDA error: no CUDA-capable device is detected\nCompile with X",
            "lost its GPU: CUDA error: no CUDA-capable device is detected",
        ),
    ],
)
def test_fault_of_disk_or_gpu_counts_only_in_the_final_error(reported, found):
    assert fault(1, reported.splitlines()) == found and fault(0, reported.splitlines()) is None


@pytest.mark.slow
def test_sweep_whose_cells_all_failed_fails_with_the_reasons_and_measures_them_again(children, monkeypatch):
    cells = [scripted("late", seed) for seed in range(2)]
    monkeypatch.setattr(perform, "sweep_cells", lambda *_: cells)
    monkeypatch.setattr(perform, "training_scenery", list)

    def swept(**kw):
        experiment = sweep_experiment("cadence_sweep", SweepConfig(timeout=3.0))
        return perform_experiment(experiment, on_line=lambda line: None, **kw)

    for _ in range(2):
        with pytest.raises(
            RunError, match=r"no cell of cadence_sweep, quick succeeded: 2 timeout \(error: not one update\); "
        ):
            swept()
    assert children == ["late"] * 4
    cells.append(scripted("fine"))
    assert [row["reason"] for row in swept().summary.rows] == ["2 timeout (error: not one update)", ""]
    assert swept().reused and not swept(again=True).reused


def test_missing_gpu_is_no_outcome_of_a_cell(children, monkeypatch):
    name = "cuda"
    monkeypatch.setitem(ENDINGS, name, "import sys\nprint('error: no GPU', file=sys.stderr)\nsys.exit(69)")
    with pytest.raises(RunError, match=f"cell {name}/seed0 of temporal_core_sweep cannot run: error: no GPU; the same"):
        sweep([scripted(name)])
    assert not list((navi_home() / "pipeline" / "sweeps").rglob("*.json"))


def test_two_identical_sweeps_measure_each_cell_once(children):
    with ThreadPoolExecutor(2) as both:
        made = list(both.map(lambda _: sweep([scripted("slow", seed) for seed in range(2)]), range(2)))
    assert children == ["slow", "slow"] and made[0] == made[1]
    assert sorted(outcome.reused for outcomes in made for outcome in outcomes) == [False, False, True, True]


@pytest.mark.slow
def test_experiment_that_is_killed_again_and_again_counts_each_cell_once(children):
    cells, draws, kills = [scripted("slow", seed) for seed in range(5)], random.Random(3), 0
    while not all(known_outcome(cell) for cell in cells):
        child = os.fork()
        if not child:
            try:
                sweep(cells, jobs=2)
            finally:
                os._exit(0)
        time.sleep(draws.uniform(0.2, 2.0))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        kills += 1
    Warehouse().ingest()
    rows = Warehouse().query("select repeat, name, count(*) as n from benchmarks group by all order by all")
    assert kills >= 2 and rows["n"].tolist() == [1] * 15 and set(rows["repeat"]) == set(range(5))


@pytest.mark.slow
def test_cell_over_its_memory_limit_fails_alone():
    """Real training in real children: only the large cell's rollout does not fit into the bound."""

    def cell(rollout):
        flags = ["--preset", "quick", "--actors", "2", "--rollout", str(rollout), "--updates", "1", "--seconds", "20"]
        settings = {"threads": 1, "compile": {"resolution": 32}}
        arguments = ("bench", "train", "--json", *flags, "--memory-limit", "3")
        command = BenchCommand(arguments, read_train, settings, [("maze:0", "")])
        return Cell({"rollout": rollout}, pipeline_folder() / f"{rollout}.json", command, "bounded", "bounded")

    made = []
    assert run_cells([cell(1_000_000), cell(32)], timeout=120.0, on_outcome=made.append) is None
    large, small = made
    assert (large.status, small.status) == ("out_of_memory", "ok"), (large, small)
    assert small.metrics["steps"] == 128 and small.metrics["steps_per_second"] > 0 and len(small.curve) == 2


@pytest.mark.parametrize("name", [name for name in SWEEPS if name != "raycast_benchmark"])
def test_quick_cell_is_limited_to_2000_decisions_and_20_seconds(name):
    for _, command in find_sweep(name).cells(SweepConfig(), [])[0]:
        given = dict(zip(command.arguments[3::2], command.arguments[4::2], strict=True))
        decisions = int(given["--actors"]) * int(given["--rollout"]) * (1 + int(given["--updates"]))
        assert 1000 <= decisions <= 2000 and float(given["--seconds"]) <= 20


@pytest.mark.parametrize(
    ("name", "least", "most"),
    [
        ("resolution_sweep", 2048, 2048),
        ("encoder_sweep", 4096, 4096),
        ("cadence_sweep", 8192, 8192),
        ("actor_scaling", 2048, 4096),  # whole updates
        ("temporal_core_sweep", 25_000, 26_000),
    ],
)
def test_full_cells_train_the_full_network_with_three_seeds(name, least, most):
    cells, _ = find_sweep(name).cells(SweepConfig(profile="full"), [])
    for _, command in cells:
        given = dict(zip(command.arguments[3::2], command.arguments[4::2], strict=True))
        decisions = int(given["--actors"]) * int(given["--rollout"]) * (1 + int(given["--updates"]))
        assert least <= decisions <= most and given["--preset"] == "standard" and "--seconds" not in given
    assert {factors["seed"] for factors, _ in cells} == {0, 1, 2}


def test_memory_limit_of_a_cell_reaches_its_command():
    bounded = find_sweep("temporal_core_sweep").cells(SweepConfig(memory_limit=3.5), [])[0]
    assert {c.arguments[c.arguments.index("--memory-limit") + 1] for _, c in bounded} == {"3.5"}
    free = find_sweep("temporal_core_sweep").cells(SweepConfig(), [])[0]
    assert not [command for _, command in free if "--memory-limit" in command.arguments]


def test_rows_hold_the_profile_and_its_overrides(children):
    def record(profile, **asked):
        (size,) = {
            cell.profile for cell in sweep_cells("temporal_core_sweep", SweepConfig(profile=profile, **asked), [])
        }
        sweep([scripted("fine", len(asked), size)], again=True)

    record("quick")
    record("full")
    record("full", steps=25_000, seeds=5)
    record("full", steps=5000, preset="quick")
    Warehouse().ingest()
    rows = Warehouse().query("select profile, seeds from core_comparison order by profile")
    # Overrides equal to the profile change no size, and more seeds add cells of the same profile.
    assert rows.values.tolist() == [["full", 2], ["full, preset quick, steps 5000", 1], ["quick", 1]]


def test_cell_key_depends_on_scene_content_not_path():
    one, moved, other = (
        BenchCommand(("bench",), read_train, scenes=[scene]).key("s", {"seed": 0})
        for scene in (("/a", "x"), ("/b", "x"), ("/a", "y"))
    )
    assert one == moved != other


def test_oversized_quick_cells_and_unknown_sweeps_are_refused():
    with pytest.raises(ConfigError, match=r"steps 5000 exceeds the 2000 .*profile full"):
        parse_config(SweepConfig, {"steps": 5000})
    with pytest.raises(ConfigError, match="allowed: resolution_sweep, temporal_core_sweep"):
        find_sweep("core")
    with pytest.raises(RecordError, match="materialize corpus"):
        training_scenery()
    write_document(corpus_path(), {"scenes": []})
    with pytest.raises(RunError, match="no training scene"):
        training_scenery()


def outcome(core, seed, reward, rate=100.0, status="ok"):
    metrics = {"reward_ema": reward, "steps_per_2_cpu_seconds": rate, "wall_seconds": 1.0}
    factors = {"core": core, "seed": seed}
    return Outcome(f"{core}/seed{seed}", core, factors, status, "", metrics if status == "ok" else {})


def test_paired_interval_is_student_t():
    """Differences 1, 2, 3: mean 2, deviation 1, t(0.975, 2) = 4.3027, half width 4.3027/√3."""
    found = paired_difference({0: 1.0, 1: 2.0, 2: 3.0}, {0: 0.0, 1: 0.0, 2: 0.0, 9: 5.0})
    assert (found.mean, found.episodes) == (2.0, 3)
    assert found.low == pytest.approx(2.0 - 2.48414, abs=1e-4) and found.high == pytest.approx(4.48414, abs=1e-4)
    assert paired_difference({0: 1.0}, {0: 0.0}) is None


@pytest.mark.parametrize(
    ("seeds", "lead", "rate", "promote", "word"),
    [
        (5, 1.0, 100.0, True, "Promote gru"),
        (3, 1.0, 100.0, False, "no claim"),
        (5, 1.0, 80.0, False, "better than mamba2"),
        (5, -1.0, 200.0, False, "worse than mamba2"),
        (2, -1.0, 200.0, False, "behind mamba2, but 2 seeds are no claim"),
        (5, 0.0, 200.0, False, "not shown to differ"),
    ],
)
def test_core_promotion_needs_every_point_of_the_checklist(seeds, lead, rate, promote, word):
    spread = [0.0, 0.1, -0.1, 0.05, -0.05]
    outcomes = [outcome("mamba2", seed, 0.0) for seed in range(seeds)]
    outcomes += [outcome("gru", seed, lead + spread[seed], rate) for seed in range(seeds)]
    (verdict,) = core_verdicts(outcomes)
    assert verdict["promote"] is promote and word in verdict["sentence"]
    assert ("worse" in verdict["sentence"]) == ("worse" in word)
    assert json.dumps(verdict)


def test_sweeps_judge_each_level_against_the_first():
    spread = [0.0, 0.1, -0.1]
    outcomes = [outcome("rayvit", seed, 0.0) for seed in range(3)]
    outcomes += [outcome("ring_cnn", seed, 1.0 + spread[seed], 200.0) for seed in range(3)]
    outcomes += [outcome("large", 0, 0.0, status="out of memory")]
    learnt = sweep_summary("encoder_sweep", ("reward_ema", "steps_per_second"), outcomes)
    assert learnt.sentences[0].startswith("ring_cnn is ahead of rayvit, but 3 seeds are no claim")
    assert learnt.sentences[0].endswith("at 2.00 times its throughput.") and learnt.verdicts == []
    assert learnt.sentences[1].startswith("large against rayvit: fewer than two pairs")
    assert [label for label, *_ in learnt.differences] == ["ring_cnn"] and "rayvit" in learnt.label
    paced = sweep_summary("resolution_sweep", ("steps_per_second",), outcomes)
    assert paced.sentences[0] == "ring_cnn trains 2 times as fast as rayvit, in decisions per CPU-second."
    assert paced.sentences[1].startswith("large against rayvit: no pair") and paced.differences == []
    rays = Outcome("maze/seed0", "maze", {}, metrics={"native/mrays_per_cpu_second": 4.0})
    assert sweep_summary("raycast_benchmark", ("native/mrays_per_cpu_second",), [rays]).sentences == []


def test_level_row_counts_outcomes_and_averages_measured_cells():
    outcomes = [outcome("gru", 0, 1.0), outcome("gru", 1, 3.0), outcome("gru", 2, 0.0, status="crash")]
    (row,) = level_rows(outcomes, ("reward_ema",))
    assert row == {"cell": "gru", "outcome": "2 ok, 1 crash", "reward_ema": 2.0, "reason": "1 crash"}
    (alone,) = core_verdicts([*outcomes, outcome("mamba2", 2, 0.0)])
    assert alone["reward"] is None and checklist([alone])[0]["throughput ratio"] == "–"
    json.dumps(alone, allow_nan=False)
