"""Promotion gate with real checkpoints: refusals, reused decisions, the current champion as opponent."""

from dataclasses import replace

import dagster as dg
import pytest
from typer.testing import CliRunner

import navi_core.evaluate
from navi_core.cli.main import build_app
from navi_core.config import EvalConfig
from navi_core.errors import EvaluationError, RegistryError
from navi_core.evaluate.promotion import decide
from navi_core.models import Checkpoint, Registry, load_checkpoint, record_registry, save_checkpoint
from navi_core.policy import build_policy
from navi_core.presets import load_preset
from navi_pipeline.defs.evaluation import EvaluationSettings, promoted_model
from navi_pipeline.defs.resources import resources_of
from navi_pipeline.lib.corpus.scenes import (
    as_rows,
    compile_source,
    corpus_path,
    corpus_rows,
    plan_path,
    plan_scenes,
    write_corpus,
)
from navi_pipeline.lib.evaluation.promotions import challenge, open_registry
from navi_pipeline.lib.evaluation.scoring import SplitScenes, flown
from navi_pipeline.lib.records import pipeline_folder, write_document
from navi_pipeline.lib.warehouse.warehouse import Warehouse

CONFIG = EvalConfig(starts=2, max_steps=20)


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A Navi home with two validation scenes and two registered policies that have learned nothing."""
    root = tmp_path_factory.mktemp("navi")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NAVI_HOME", str(root))
        patch.delenv("NAVI_SCENES", raising=False)
        sources = plan_scenes("apartment", {"validation": 2})
        write_document(plan_path(), {"sources": as_rows(sources)})
        config = load_preset("quick")
        for source in sources:
            compile_source(source, config.compile)
        write_corpus(corpus_rows())
        for seed in (0, 1, 2):
            save_checkpoint(
                root / f"{seed}.pt",
                Checkpoint.of(
                    policy=build_policy(config.policy, seed=seed),
                    optimizer=None,
                    config=config,
                    step_id=0,
                    episode_count=0,
                    reward_ema=float(seed),
                    run_id=f"run{seed}",
                    wall_time_hours=0.0,
                ),
            )
            if seed < 2:
                open_registry().register(root / f"{seed}.pt", parents=() if seed == 0 else ("v001",))
    return root


@pytest.fixture(autouse=True)
def at_home(home, monkeypatch):
    monkeypatch.setenv("NAVI_HOME", str(home))


def policy(home, seed):
    return {
        "algorithm": "ppo",
        "profile": "quick",
        "seed": seed,
        "checkpoint": str(home / f"{seed}.pt"),
        "weights_hash": load_checkpoint(home / f"{seed}.pt").weights_hash,
        "run_id": f"run{seed}",
        "steps": 0,
        "version": f"v00{seed + 1}",
    }


def promotions():
    warehouse = Warehouse()
    warehouse.ingest()
    return warehouse.query("select * from promotions order by decided_at")


def test_untrained_policy_is_not_promoted(home):
    first = challenge(policy(home, 0), CONFIG)
    assert not first["promoted"] and first["champion"] is None and first["opponent"] == "random"
    assert "champion" not in open_registry().aliases()
    again = challenge(policy(home, 0), CONFIG)
    assert again["reused"] and again["decided_at"] == first["decided_at"]
    assert len(promotions()) == 1


def test_challenger_is_compared_with_the_champion(home):
    open_registry().promote("v001", "champion")
    decision = challenge(policy(home, 1), CONFIG)
    assert decision["previous_version"] == "v001" and decision["opponent"] == "v001"
    assert decision["coverage"]["episodes"] == 4
    assert decision["champion"] == ("v002" if decision["promoted"] else "v001")
    assert challenge(policy(home, 0), CONFIG)["champion"] == decision["champion"]


def test_interrupted_promotion_completes_and_respects_rollback(home, monkeypatch):
    """The process dies after it wrote the decision; the next call moves the alias. A rollback stays."""
    real = Registry.promote
    monkeypatch.setattr(Registry, "promote", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))
    rows = len(promotions())
    before = open_registry().aliases()["champion"]
    challenger = "v002" if before == "v001" else "v001"
    seed = int(challenger[-1]) - 1

    def generous(*arguments, **kw):
        return replace(decide(*arguments, **kw), promoted=True)

    monkeypatch.setattr("navi_core.evaluate.promotion.decide", generous)
    protocol = EvalConfig(starts=2, max_steps=21)
    with pytest.raises(KeyboardInterrupt):
        challenge(policy(home, seed), protocol)
    monkeypatch.setattr(Registry, "promote", real)
    assert challenge(policy(home, seed), protocol)["champion"] == challenger
    assert open_registry().aliases()["champion"] == challenger and len(promotions()) == rows + 1
    reported = Warehouse().query("select evaluation_id, confirms, rank from evaluations left join leaderboard using "
                             "(evaluation_id) where evaluations.max_steps = 21")  # fmt: skip
    assert (
        len(reported) == 4
        and (reported["confirms"].eq(True) == reported["rank"].isna()).all()
        and reported["rank"].count() == 2
    )
    open_registry().rollback("champion")
    assert challenge(policy(home, seed), protocol)["champion"] == before
    assert open_registry().aliases()["champion"] == before


def test_champion_promoted_meanwhile_is_challenged_too(home, monkeypatch):
    before = open_registry().aliases()["champion"]
    challenger = "v002" if before == "v001" else "v001"
    other = open_registry().register(home / "2.pt", parents=("v001",))
    met = []

    def meanwhile(version, ours, theirs, **kw):
        met.append(theirs.subject)
        open_registry().promote(other, "champion")
        return decide(version, ours, theirs, **kw)

    monkeypatch.setattr("navi_core.evaluate.promotion.decide", meanwhile)
    decision = challenge(policy(home, int(challenger[-1]) - 1), EvalConfig(starts=2, max_steps=22))
    assert met == [before, other] and decision["previous_version"] == other
    open_registry().rollback("champion")


def test_record_registry_writes_models_and_lineage(home):
    record_registry(open_registry())
    record_registry(open_registry())
    warehouse = Warehouse()
    assert warehouse.ingest().quarantined == {}
    lines = warehouse.query("select ancestor, depth from model_lineage where version = 'v002' order by depth")
    assert lines.values.tolist() == [["v002", 0], ["v001", 1]]
    board = warehouse.query("select subject, model from leaderboard")
    assert dict(zip(board["subject"], board["model"], strict=True))["quick-seed0"] == "v001"


def test_challenge_without_validation_scenes_is_refused(home):
    text = corpus_path().read_text()
    corpus_path().write_text('{"scenes": []}')
    try:
        with pytest.raises(EvaluationError, match="validation"):
            challenge(policy(home, 1) | {"version": "v009"}, CONFIG)
    finally:
        corpus_path().write_text(text)


def test_warehouse_aliases_equal_registry_aliases(home):
    registry = open_registry()
    record_registry(registry)
    registry.promote("v002", "champion")
    registry.promote("v001", "champion")
    Warehouse().ingest()

    def reported():
        warehouse = Warehouse()
        assert warehouse.ingest().quarantined == {}
        return dict(warehouse.query("select alias, version from aliases").values.tolist())

    done = CliRunner().invoke(build_app(groups=("models",), plugins=False), ["models", "rollback", "champion"])
    assert done.exit_code == 0, done.output
    assert reported() == registry.aliases() and reported()["champion"] == "v002" and "latest" in reported()


def test_flights_are_repeated_after_a_code_change(home, monkeypatch):
    protocol, scenes = EvalConfig(starts=2, max_steps=23), SplitScenes("validation")
    assert flown("random", scenes, protocol).trajectories and not flown("random", scenes, protocol).trajectories
    monkeypatch.setattr(navi_core.evaluate, "flight_code", lambda: "another")
    assert flown("random", scenes, protocol).trajectories and not flown("random", scenes, protocol).trajectories
    monkeypatch.setattr("navi_pipeline.lib.evaluation.scoring.own_networks_of", lambda _: ["core mine 0123456789ab"])
    assert flown("random", scenes, protocol).trajectories and not flown("random", scenes, protocol).trajectories


@pytest.mark.slow
def test_promotion_is_revoked_if_the_champion_changed_meanwhile(home, monkeypatch):
    """The alias moves to another version between the row and the move."""
    before = open_registry().aliases()["champion"]
    challenger = "v002" if before == "v001" else "v001"
    real = Registry.promote

    def too_late(registry, version, alias="champion", **kw):
        real(registry, "v003", alias)
        return real(registry, version, alias, **kw)

    def generous(*arguments, **kw):
        return replace(decide(*arguments, **kw), promoted=True)

    monkeypatch.setattr("navi_core.evaluate.promotion.decide", generous)
    monkeypatch.setattr(Registry, "promote", too_late)
    protocol, seed = EvalConfig(starts=2, max_steps=24), int(challenger[-1]) - 1
    with pytest.raises(RegistryError, match=f"was to follow {before} as champion, but v003 holds it by now"):
        challenge(policy(home, seed), protocol)
    reported = promotions().iloc[-1]
    assert (reported["version"], bool(reported["promoted"])) == (challenger, False) and "v003 holds it" in reported[
        "reason"
    ]
    monkeypatch.setattr(Registry, "promote", real)
    assert challenge(policy(home, seed), protocol)["previous_version"] == "v003"
    for _ in range(2):
        open_registry().rollback("champion")


def test_promoted_model_reports_its_lead_in_points(home, monkeypatch):
    """Decisions hold fractions of 1."""
    decision = {"champion": None, "promoted": False, "reason": "", "reused": False}
    shares = {"mean_difference": 0.125, "low": -0.05, "high": None}
    monkeypatch.setattr("navi_pipeline.defs.evaluation.challenge", lambda *_: decision | shares)
    monkeypatch.setattr("navi_pipeline.defs.evaluation.read_policy", lambda *_, **__: policy(home, 0))
    context = dg.build_asset_context(partition_key="quick|0")
    given = {name: resources_of(str(home))[name] for name in ("registry", "warehouse")}
    reported = promoted_model(context, EvaluationSettings(), **given).metadata
    assert (reported["lead_points"], reported["lead_points_low"]) == (12.5, -5.0) and "lead_points_high" not in reported
    assert (reported["champion"], reported["challenger"], reported["promoted"]) == ("none", "v001", False)


def test_smaller_protocol_gives_way_to_that_of_the_champions_promotion(home, monkeypatch):
    open_registry().promote("v001", "champion")
    file = pipeline_folder() / "decisions" / "v001.json"
    write_document(file, {"protocol": EvalConfig(starts=2, max_steps=22).model_dump(mode="json")})

    def strict(*arguments, **kw):
        return replace(decide(*arguments, **kw), promoted=False)

    monkeypatch.setattr("navi_core.evaluate.promotion.decide", strict)
    small, large = EvalConfig(starts=1, max_steps=10), EvalConfig(starts=2, max_steps=23)
    assert challenge(policy(home, 1), small)["protocol"]["max_steps"] == 22
    assert challenge(policy(home, 1), large)["protocol"]["max_steps"] == 23
    Warehouse().ingest()
    steps = Warehouse().query("select distinct max_steps from evaluations where max_steps in (10, 22, 23) order by 1")
    assert steps["max_steps"].tolist() == [22, 23]
    file.write_text("{}")
    assert challenge(policy(home, 1), small)["protocol"]["max_steps"] == 10
