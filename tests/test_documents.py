"""Documents name only existing commands, options, settings, queries, links, rooms and code names.

Messages of the code name commands, too.
"""

from __future__ import annotations

import ast
import importlib
import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from navi_core.cli.main import build_app
from navi_core.config import TrainConfig, parse_config
from navi_core.config.base import settings_of
from navi_core.config.service import ServeConfig
from navi_pipeline.settings import NightlyConfig, StudyConfig

ROOT = Path(__file__).resolve().parent.parent
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
DOCUMENTS = {str(path.relative_to(ROOT)): path.read_text() for path in PAGES}
SOURCE_SYSTEMS = "docs/reference/source-systems.md"
# The first column of this page has the names of other systems.
DOCUMENTS[SOURCE_SYSTEMS] = re.sub(r"^\|[^|]*\|", "|", DOCUMENTS[SOURCE_SYSTEMS], flags=re.M)
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.S | re.M)


def _prose(text: str) -> str:
    return _FENCE.sub("", text)


def _in_code_type(text: str) -> list[str]:
    """Return what a text has between backticks, blocks left out."""
    return [re.sub(r"\s+", " ", each) for each in re.findall(r"`([^`]+)`", _prose(text))]


def _sources(folder: str) -> list[Path]:
    return [path for path in sorted((ROOT / folder).rglob("*")) if path.is_file() and "__pycache__" not in path.parts]


# Commands.


def _commands(text: str) -> Iterator[str]:
    """Yield the `navi` commands of a document, as one would type them."""
    blocks = [body for language, body in _FENCE.findall(text) if language in ("", "sh")]
    blocks.append("\n".join(line for line in _prose(text).splitlines() if line.startswith("    ")))
    lines = [line for block in blocks for line in re.sub(r"\\\n\s*", " ", block).splitlines()]
    for line in [*lines, *_in_code_type(text)]:
        for part in re.split(r"\s&(?:\s|$)|;", re.sub(r"\s#.*$", "", line)):
            command = re.sub(r"^torchrun .* -m navi_core\.cli\.main", "navi", part.strip())
            command = re.sub(r"^((\w+=\S+|flock \S+)\s+)+", "", command).replace(".venv/bin/navi", "navi")
            if re.match(r"navi\s+[a-z]", command):
                yield command


def _fault(command: str) -> str | None:
    """Return what the command line has against a command; gaps that a reader is to fill are filled first."""
    filled = re.sub(r"\[(--[^\]]*)\]", r"\1", command)  # [--option VALUE] may be left out
    filled = re.sub(r"(?<=\w)(\|\w+)+", "", filled)  # one of a|b|c
    filled = re.sub(r"(?<= )[SN](?= |$)", "1000", filled)
    filled = re.sub(r"^navi train (mine|hesitant|LEARNER|…|1)(?= |$)", "navi train ppo", filled)
    filled = re.sub(r" …", "", filled)
    words = shlex.split(filled)[1:]
    command_, context = _app(), None
    while hasattr(command_, "get_command"):
        context = command_.context_class(command_, parent=context, info_name="navi")
        if not words or words[0].startswith("-"):
            return None
        found = command_.get_command(context, words[0])
        if found is None:
            return f"no command {words[0]}"
        command_, words = found, words[1:]
    try:
        command_.make_context("navi", words, parent=context)
    except Exception as error:
        # A mention of a command need not be whole: `navi bc`, `navi serve --set`.
        whole = type(error).__name__ not in ("Exit", "MissingParameter", "BadOptionUsage")
        return f"{type(error).__name__}: {error}" if whole else None
    return None


@cache
def _app():
    from typer.main import get_command

    return get_command(build_app())


@pytest.mark.parametrize("name", sorted(DOCUMENTS))
def test_every_command_of_a_document_is_understood(name: str) -> None:
    faults = {command: fault for command in _commands(DOCUMENTS[name]) if (fault := _fault(command))}
    assert not faults


def test_commands_with_a_mistake_are_found() -> None:
    assert "No such option" in (_fault("navi train ppo --nosuch 1") or "") and _fault("navi nosuch") is not None
    assert sum(len(list(_commands(text))) for text in DOCUMENTS.values()) > 300


def _strings(tree: ast.AST) -> Iterator[str]:
    """Yield the texts of a module, with 1 where a text has a value put in."""
    parts = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else "1" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in parts:
            yield node.value


def test_every_command_that_a_message_names_is_understood() -> None:
    faults, seen = {}, 0
    for path in [*_sources("navi_core"), *_sources("navi_pipeline")]:
        if path.suffix != ".py" or "`navi " not in (source := path.read_text()):
            continue
        for text in _strings(ast.parse(source)):
            for command in re.findall(r"`(navi [a-z][^`]*)`", re.sub(r"\s+", " ", text)):
                seen += 1
                if fault := _fault(command):
                    faults[path.name, command] = fault
    assert not faults and seen > 60


# Settings and other names.


@cache
def _settings() -> frozenset[str]:
    classes = (TrainConfig, ServeConfig, NightlyConfig)
    known = {setting.name for one in classes for setting in settings_of(parse_config(one, {}))}
    return frozenset(known | {*StudyConfig.model_fields})


OPEN = ("task_options.", "learner_options.", "env.reward.weights.")
"""Sections that take names of a user's or a task's own."""


@pytest.mark.parametrize("name", sorted(DOCUMENTS))
def test_every_setting_of_a_document_exists(name: str) -> None:
    text, known = DOCUMENTS[name], _settings()
    sections = {setting.rsplit(".", depth)[0] for setting in known for depth in range(1, setting.count(".") + 1)}
    named = re.findall(r"--set\s+'?([\w.]+)=", text)
    heads = {section.partition(".")[0] for section in sections}
    for word in _in_code_type(text):
        if (match := re.fullmatch(r"([a-z_]+\.[a-z_.0-9]+?)(\.\*|=.*)?", word)) and word.partition(".")[0] in heads:
            named.append(match[1])
    named = [each for each in named if not each.endswith((".py", ".json")) and not each.startswith("environment.")]
    named = [each.removeprefix("settings.") for each in named]  # of a study: those of its trainings
    assert [each for each in named if each not in known | sections and not each.startswith(OPEN)] == []


MADE = {
    "dropped_short", "dropped_cut", "dropped_truncated", "objective_max",  # put together in the code
    "grpo_policy", "dqn_policy", "dpo_policy", "apex_policy",
    "node_count", "matterport_mesh", "my_box",  # of formats and examples, not of the code
}  # fmt: skip


@cache
def _words_of_the_code() -> frozenset[str]:
    kept = (".py", ".h", ".cpp", ".cu", ".sql", ".yaml", ".js", ".toml")
    files = [
        path for folder in ("navi_core", "navi_pipeline", "sql", "dagster_home", "deploy") for path in _sources(folder)
    ]
    texts = [f"{path.stem} {path.read_text()}" for path in files if path.suffix in kept]
    return frozenset(word for text in texts for word in re.findall(r"\w+", text))


@pytest.mark.parametrize("name", sorted(DOCUMENTS))
def test_every_name_in_code_type_is_a_name_of_the_code(name: str) -> None:
    """Metrics, columns, terms, options of dictionaries: what has an underscore, and environment variables."""
    words = re.findall(r"NAVI_[A-Z]+(?:_[A-Z]+)*(?![A-Z_])", DOCUMENTS[name])
    words += [word for word in _in_code_type(DOCUMENTS[name]) if re.fullmatch(r"[a-z][a-z0-9]*(_[a-z0-9]+)+", word)]
    assert {word for word in words if not word.startswith("test_")} - _words_of_the_code() - MADE == set()


def test_every_environment_variable_that_is_read_is_documented() -> None:
    sources = [path for folder in ("navi_core", "navi_pipeline") for path in (ROOT / folder).rglob("*.py")]
    read = {name for path in sources for name in re.findall(r'"(NAVI_[A-Z_]+)"', path.read_text())}
    assert len(read) > 10 and {name for name in read if name not in " ".join(DOCUMENTS.values())} == set()


def test_every_message_of_troubleshooting_is_in_the_code() -> None:
    files = [*_sources("navi_core"), *_sources("navi_pipeline")]
    source = " ".join(path.read_text() for path in files if path.suffix == ".py")
    source = re.sub(r"\s+", " ", re.sub(r'"\s*\n\s*f?"', "", source))
    rows = re.findall(r"^\| (`.*?) \|", DOCUMENTS["docs/operate/troubleshooting.md"], re.M)
    quoted = [text for row in rows for text in re.findall(r"`([^`]+)`", row)]
    assert [text for text in quoted if text not in source] == [] and len(quoted) > 25


# Questions, links, tests, rooms.


def test_every_documented_query_runs() -> None:
    from navi_pipeline.lib.warehouse.warehouse import Warehouse

    warehouse, asked = Warehouse(), 0
    for text in DOCUMENTS.values():
        found = re.findall(r'navi query "([^"…]+)"', text) + re.findall(r"`(select [^`…]+)`", text)
        for statement in found + re.findall(r"^```sql\n(.*?)```", text, re.S | re.M):
            warehouse.query(statement)
            asked += 1
        for name in re.findall(r"navi query(?: --rebuild)? ([a-z]\w+)", text):
            places = [ROOT / "sql" / folder / f"{name}.sql" for folder in ("queries", "views")]
            assert any(place.exists() for place in places), name
    assert asked > 10


@pytest.mark.parametrize("name", sorted(DOCUMENTS))
def test_every_documented_import_exists(name: str) -> None:
    for program in re.findall(r"^```python\n(.*?)^```", DOCUMENTS[name], re.S | re.M):
        for node in ast.walk(ast.parse(program)):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("navi_"):
                module = importlib.import_module(node.module or "")
                assert all(hasattr(module, each.name) for each in node.names), ast.unparse(node)


GENERATED = {ROOT / "docs" / "reference" / f"{name}.md" for name in ("assets", "errors", "index", "sql")}
"""Pages that the site makes; its strict build checks links to them."""


def _anchor(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_link_target_exists(path: Path) -> None:
    for target in re.findall(r"\[[^\]\[]+\]\(([^)\s]+)\)", _prose(path.read_text())):
        if "://" in target:
            continue
        file, _, anchor = target.partition("#")
        there = path.parent / file if file else path
        if there.resolve() in GENERATED:
            continue
        assert there.exists(), target
        if anchor:
            headings = re.findall(r"^#+ (.*)$", _prose(there.read_text()), re.M)
            assert anchor in [_anchor(heading) for heading in headings], target


@pytest.mark.parametrize("name", sorted(DOCUMENTS))
def test_every_file_and_test_of_a_document_exists(name: str) -> None:
    text = re.sub(r"\s+", " ", DOCUMENTS[name])
    for place in re.findall(r"(?:navi_core|navi_pipeline|tests|sql|dagster_home|docs)/[\w/.-]*\w", text):
        assert (ROOT / place).exists() or (ROOT / f"{place}.py").exists() or "mine" in place or "NNN" in place, place
    files = [*(ROOT / "tests").rglob("*.py")]
    tests = {path.stem for path in files} | {
        test for path in files for test in re.findall(r"^def (test_\w+)", path.read_text(), re.M)
    }
    assert set(re.findall(r"\b(?<!/)test_[a-z0-9_]+", text)) - tests == set()
    for file, chosen in re.findall(r"(tests/[\w/.]+) -k \"?([\w ]+)", text):
        sources = [ROOT / file] if file.endswith(".py") else list((ROOT / file).rglob("*.py"))
        names = " ".join(source.read_text() for source in sources)
        assert any(word in names for word in chosen.split(" or ")), (file, chosen)


def test_rooms_import_only_rooms_allowed_by_the_table() -> None:
    direct: dict[str, set[str]] = {}
    for line in DOCUMENTS["docs/about/architecture.md"].splitlines():
        if match := re.match(r"\| `(\w+)/`.*\| ([^|]+) \|$", line):
            direct[match[1]] = set(re.findall(r"\w+", match[2])) - {"config", "machine"}

    def allowed(room: str) -> set[str]:
        below = direct.get(room, set())
        return {"config", "errors", "machine"} | below.union(*map(allowed, below))

    rooms = {path.name for path in (ROOT / "navi_core").iterdir() if (path / "__init__.py").exists()}
    assert rooms <= set(direct)
    beyond = {}
    for room in rooms - {"bench", "cli"}:  # all of the engine
        text = "\n".join(path.read_text() for path in (ROOT / "navi_core" / room).rglob("*.py"))
        used = set(re.findall(r"^\s*from navi_core\.(\w+)", text, re.M))
        if used - allowed(room) - {room}:
            beyond[room] = used - allowed(room) - {room}
    assert not beyond


def test_every_path_of_the_architecture_exists() -> None:
    text = DOCUMENTS["docs/about/architecture.md"] + DOCUMENTS["docs/about/change.md"]
    paths = set(re.findall(r"`([\w/.]+/[\w/.]*)`", text))
    roots = (ROOT, ROOT / "navi_core", ROOT / "navi_core" / "kernels")
    assert [path for path in sorted(paths) if not any((root / path).exists() for root in roots)] == []
