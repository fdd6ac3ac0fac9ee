"""Pages of the Python API: one a package, with every name of its `__all__`, rendered by mkdocstrings."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDER = "reference/python"


def public_names() -> dict[str, list[str]]:
    """Return the names of `__all__` of each public package or module, without importing any."""
    found = {}
    for file in sorted(file for room in ("navi_core", "navi_pipeline") for file in (ROOT / room).rglob("*.py")):
        for node in ast.parse(file.read_text("utf-8")).body:
            targets = node.targets if isinstance(node, ast.Assign) else ()
            if any(isinstance(target, ast.Name) and target.id == "__all__" for target in targets):
                names: list[str] = ast.literal_eval(node.value)  # type: ignore[attr-defined]
                found[".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")] = sorted(names)
    return found


def pages() -> dict[str, str]:
    """Return a page for each public package."""
    found = {}
    for package, names in public_names().items():
        file = ROOT / package.replace(".", "/")
        source = file / "__init__.py" if file.is_dir() else file.with_suffix(".py")
        meaning = ast.get_docstring(ast.parse(source.read_text("utf-8"))) or ""
        text = [f"# {package}", meaning, *(f"::: {package}.{name}" for name in names)]
        found[f"{FOLDER}/{package}.md"] = "\n\n".join(text) + "\n"
    return found
