"""`navi doctor --faults`: what pip-audit reports, and what is not known; a stand-in answers as pip-audit does."""

from __future__ import annotations

import importlib.util
import json
import sys

import pytest
from typer.testing import CliRunner

from navi_core.cli.main import build_app
from navi_core.errors import ConfigError, ServiceError

FAULTY = {
    "name": "somelib",
    "version": "1.0",
    "vulns": [{"id": "PYSEC-2026-1", "fix_versions": ["1.1"], "aliases": [], "description": "bad"}],
}
CLEAN = {"name": "otherlib", "version": "2.0", "vulns": []}
UNKNOWN = {"name": "ours", "skip_reason": "Dependency not found on PyPI"}


@pytest.fixture
def audit(tmp_path, monkeypatch):
    """Return the result of the command where pip-audit prints rows, or another text."""

    def run(rows):
        text = rows if isinstance(rows, str) else json.dumps({"dependencies": rows, "fixes": []})
        (tmp_path / "pip_audit.py").write_text(f"print({text!r})")
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))
        return CliRunner().invoke(build_app(groups=("doctor",), plugins=False), ["doctor", "--faults", "--json"])

    return run


def test_known_faults_are_listed_and_the_exit_code_is_three(audit):
    done = audit([FAULTY, CLEAN, UNKNOWN])
    assert done.exit_code == 3
    fault = {"package": "somelib", "version": "1.0", "fault": "PYSEC-2026-1", "fixed_in": "1.1"}
    assert json.loads(done.stdout) == {"audited": 2, "skipped": ["ours"], "faults": [fault]}
    assert audit([CLEAN]).exit_code == 0


@pytest.mark.parametrize(("rows", "reason"), [([UNKNOWN], "none of the packages"), ("no json", "the audit failed")])
def test_audit_without_an_answer_is_no_clean_bill(audit, rows, reason):
    done = audit(rows)
    assert isinstance(done.exception, ServiceError) and reason in str(done.exception)


def test_missing_tool_error_names_the_extra(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.delitem(sys.modules, "pip_audit", raising=False)
    done = CliRunner().invoke(build_app(groups=("doctor",), plugins=False), ["doctor", "--faults"])
    assert isinstance(done.exception, ConfigError) and "[audit]" in str(done.exception)
