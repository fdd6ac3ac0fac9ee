"""The best of many trials is reported as one selected seed."""

import json

from typer.testing import CliRunner

from navi_core.cli.main import build_app
from navi_core.record import navi_home
from navi_pipeline.cli.study import group
from navi_pipeline.lib.studies.results import selection_note, trials_compared
from navi_pipeline.lib.studies.trial_queue import TrialQueue
from tests.pipeline.studies.small_studies import complete_by, small_study


def test_best_value_is_reported_as_one_seed_of_many_trials():
    app = build_app(groups=(), plugins=False)
    app.add_typer(group)
    config = small_study(trials=6, pruning={"min_steps": 30, "reduction_factor": 3}, seed=1)
    with TrialQueue(config) as queue:
        complete_by(queue)
        assert {trial.state.name for trial in queue.trials()} == {"COMPLETE", "PRUNED"}
    # Pruned trials count as candidates.
    printed = "one seed, chosen from 6 trials: expect less of it"
    for command in (["study", "best", "small"], ["study", "show", "small"]):
        shown = CliRunner().invoke(app, command)
        assert shown.exit_code == 0 and printed in " ".join(shown.output.split()), shown.output
    assert json.loads(CliRunner().invoke(app, ["study", "best", "small", "--json"]).stdout)["chosen_from"] == 6
    preset = navi_home() / "best.yaml"
    assert CliRunner().invoke(app, ["study", "best", "small", "--preset", str(preset)]).exit_code == 0
    assert preset.read_text().splitlines()[1] == f"# Of {printed}."
    assert printed in (navi_home() / "reports" / "study-small.html").read_text()


def test_single_trial_has_no_selection_note():
    with TrialQueue(small_study(trials=1)) as queue:
        complete_by(queue)
        assert trials_compared(queue) == 1 and selection_note(1) == "one seed"


def test_home_without_studies_names_the_command_that_begins_one():
    app = build_app(groups=(), plugins=False)
    app.add_typer(group)
    assert "`navi study run quick` begins one" in CliRunner().invoke(app, ["study", "show"]).output
