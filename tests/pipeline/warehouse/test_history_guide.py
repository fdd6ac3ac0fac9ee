"""The code blocks of docs/how-to/histories.md run one after another, as in a notebook."""

from __future__ import annotations

import re
from pathlib import Path

import pandas as pd

from navi_core.record import MetricLog, outbox_path

GUIDE = Path(__file__).resolve().parents[3] / "docs/how-to/histories.md"


def test_guide_reads_plots_and_finds_the_regression(tmp_path, monkeypatch, capsys):
    with MetricLog(outbox_path(), "night", {"host": "alpha", "revision": "abc"}) as log:
        for day, speed in enumerate((1000.0, 1010.0, 600.0, 990.0), start=1):
            log.row("nights", {"night": f"night-{day}", "kind": "training", "started_at": f"2026-01-0{day}T00:00:00Z",
                               "settings": {"minutes": 60, "profile": "slow" if day == 3 else "quick"},
                               "figures": {"steps_per_second": speed}})  # fmt: skip
        for number, auc in enumerate((0.5, 0.6), start=1):
            log.row("models", {"version": f"v00{number}", "weights_hash": f"w{number}"})
            log.row("alias_moves", {"alias": "champion", "version": f"v00{number}", "action": "promote",
                                    "moved_at": f"2026-01-0{number}T00:00:00Z"})  # fmt: skip
            log.row("evaluations", {
                "evaluation_id": f"e{number}", "subject": f"p{number}", "subject_kind": "version", "split": "test",
                "weights_hash": f"w{number}", "eval_config_hash": "p", "c_vis_auc": auc, "episodes": 6,
                "c_vis_auc_low_percent": 100 * auc - 5, "c_vis_auc_high_percent": 100 * auc + 5,
                "collisions_per_minute": 0.1,
            })  # fmt: skip
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "agg")
    space: dict[str, object] = {"folder": tmp_path / "history"}
    blocks = re.findall(r"^```python\n(.*?)^```", GUIDE.read_text(), re.S | re.M)
    for block in blocks:
        exec(compile(block, str(GUIDE), "exec"), space)
    assert (tmp_path / "champions.png").stat().st_size > 1000 and len(space["champions"]) == 2
    assert "night-3: -41 %" in capsys.readouterr().out
    difference = space["difference"]
    assert isinstance(difference, pd.DataFrame)
    assert difference.loc[difference["name"] == "profile", ["a", "b"]].values.tolist() == [['"quick"', '"slow"']]
