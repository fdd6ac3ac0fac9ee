"""The site: the reference holds everything public, and the style checker finds each fault."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SNAPSHOTS = ROOT / "tests" / "snapshots"


@pytest.fixture(scope="module")
def pages() -> dict[str, str]:
    """Return the generated pages: path in the site → Markdown."""
    sys.path.insert(0, str(ROOT / "docs" / "site"))
    try:
        names = ("reference", "warehouse_reference", "python_reference")
        return {path: text for name in names for path, text in importlib.import_module(name).pages().items()}
    finally:
        sys.path.remove(str(ROOT / "docs" / "site"))


def _snapshot(name: str) -> dict:
    return json.loads((SNAPSHOTS / f"{name}.json").read_text())


def test_every_public_name_is_in_the_reference(pages: dict[str, str]) -> None:
    public, missing = 0, []
    for file in sorted(file for room in ("navi_core", "navi_pipeline") for file in (ROOT / room).rglob("*.py")):
        name = ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        if "__all__" not in file.read_text():
            continue
        lines = pages[f"reference/python/{name}.md"].splitlines()
        exported = importlib.import_module(name).__all__
        public += len(exported)
        missing += [f"{name}.{each}" for each in exported if f"::: {name}.{each}" not in lines]
    assert missing == [] and public > 300


def test_every_visible_command_and_its_options_are_in_the_reference(pages: dict[str, str]) -> None:
    text = "\n".join(body for path, body in pages.items() if path.startswith("reference/cli/"))
    commands = {path: options for path, options in _snapshot("commands").items() if path.startswith("navi ")}
    shown = {path: options for path, options in commands.items() if "hidden" not in options and f" {path}\n" in text}
    assert len(shown) > 60
    for path, options in shown.items():
        section = text.partition(f"# {path}\n")[2].partition("\n#")[0]
        for option in options:
            names = [word for word in option.partition(" = ")[0].split() if word.startswith("--")]
            assert "hidden" in option or "--help" in names or all(name in section for name in names), (path, option)


def test_every_setting_table_column_query_and_exit_code_is_in_the_reference(pages: dict[str, str]) -> None:
    for root, settings in _snapshot("settings").items():
        page = pages[f"reference/settings/{root}.md"]
        assert [name for name in settings if f"`{name}`" not in page] == []
    sql, page = _snapshot("sql"), pages["reference/sql.md"]
    for name, columns in (sql["tables"] | sql["views"]).items():
        section = page.partition(f"### {name}\n")[2].partition("\n##")[0]
        assert section and all(f"| `{column.split()[0]}` |" in section for column in columns), name
    assert all(f"| `{name}` |" in page for name in sql["queries"])
    for name, exit_code in _snapshot("names")["exit_codes"].items():
        assert f"| `{exit_code}` | `{name}` |" in pages["reference/errors.md"]


def test_every_asset_and_job_is_in_the_reference(pages: dict[str, str]) -> None:
    from navi_pipeline.definitions import defs

    found, page = defs(), pages["reference/assets.md"]
    keys = [key.to_user_string() for key in found.resolve_asset_graph().get_all_asset_keys()]
    jobs = [job.name for job in found.get_repository_def().get_all_jobs() if not job.name.startswith("__")]
    assert len(keys) > 20 and len(jobs) > 5
    assert [name for name in (*keys, *jobs) if f"| `{name}` |" not in page] == []


def test_site_names_its_version_and_revision(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mkdocs")
    monkeypatch.syspath_prepend(str(ROOT / "docs" / "site"))
    assert importlib.import_module("hooks").site_version().startswith("Navi ")


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("word " * 36 + "ends.", "sentence of 37 words"),
        ("- " + "word " * 36 + "ends.", "sentence of 37 words"),
        ("Four words stand here.\nA" + " word" * 20 + "\nword" * 9 + ".", ""),
        (("Word" + " word" * 19 + ". ") * 2, "20.0 words a sentence on average"),
        ("x" * 121, "line 1: 121 characters"),
        ("short.\n" * 251, "251 lines"),
        ("## Who is better", "heading 'Who is better'"),
        ("## Better?", "heading 'Better?'"),
        ("| a | b | c | d | e | f | g |", "table of 7 columns"),
        ("| " + "word " * 31 + "| b |", "cell of 31 words"),
        ("```\n" + "word " * 20 + "\n```\n\nA short [sentence](that-links.md).", ""),
    ],
)
def test_style_checker_finds_the_fault(text: str, fault: str) -> None:
    sys.path.insert(0, str(ROOT / "docs" / "site"))
    try:
        found = importlib.import_module("style").faults(text)
    finally:
        sys.path.remove(str(ROOT / "docs" / "site"))
    assert any(each.startswith(fault) for each in found) if fault else found == []
