"""Hooks of mkdocs: add the generated pages and the root's documents to the site, and check that it needs no network."""

from __future__ import annotations

import posixpath
import re
import subprocess
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import python_reference
import reference
import warehouse_reference
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[2]
ROOT_PAGES = {
    "README.md": "start/install-and-demo.md",
    "CONTRIBUTING.md": "about/contributing.md",
    "CHANGELOG.md": "about/changelog.md",
    "SECURITY.md": "about/security.md",
}
"""Documents of the checkout's root → page of the site."""
_LINK = re.compile(r"(!?)\[([^\]\[]*)\]\(([^)\s#]+)(#[^)\s]*)?\)")
_FENCED = re.compile(r"^```.*?^```", re.S | re.M)
_LIST = re.compile(r"^(?=\S)(?![-*|#>]|\d+\.)(.*)\n(?=- |\d+\. )", re.M)
_OUTSIDE = re.compile(
    r'<(?:script|img|iframe|source)[^>]+src="(?:https?:)?//|'
    r'<link rel="(?:stylesheet|preconnect|icon)" href="(?:https?:)?//'
)


def generated_pages() -> dict[str, str]:
    """Return the generated pages of the reference: path in the site → Markdown."""
    return reference.pages() | warehouse_reference.pages() | python_reference.pages()


def site_version() -> str:
    """Return the version of the checkout, and its revision where git knows it."""
    version = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["version"]
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty"]
    revision = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    return f"Navi {version}" + (f", revision {revision}" if revision else "")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Generate the reference, and put the pages of its folders where the navigation names the folders."""
    config.copyright = f"{site_version()} · {config.copyright}"
    pages = config.extra["generated"] = generated_pages()

    def expanded(entry: Any) -> Any:  # noqa: ANN401 - navigation is nested lists, dictionaries and texts
        if isinstance(entry, list):
            return [expanded(one) for one in entry]
        if isinstance(entry, dict):
            return {title: expanded(one) for title, one in entry.items()}
        inside = [path for path in pages if path.startswith(f"{entry}/")]
        named = [{Path(path).stem: path} if Path(path).stem != "index" else path for path in inside]
        written = sorted(path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs" / entry).glob("*.md"))
        return [*named, *written] or entry

    config.nav = expanded(config.nav)
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages and the root's documents."""
    roots = {page: (ROOT / name).read_text("utf-8") for name, page in ROOT_PAGES.items()}
    for path, text in (config.extra.pop("generated") | roots).items():
        files.append(File.generated(config, path, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:  # noqa: ARG001
    """Point links at pages of the site; GitHub begins a list without an empty line before it, mkdocs does not."""
    site = page.file.src_uri
    source = next((name for name, each in ROOT_PAGES.items() if each == site), f"docs/{site}")

    def link(match: re.Match[str]) -> str:
        mark, text, target, anchor = match[1], match[2], match[3], match[4] or ""
        if "://" in target:
            return match[0]
        place = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
        there = ROOT_PAGES.get(place, place.removeprefix("docs/"))
        if place not in ROOT_PAGES and not place.startswith("docs/"):
            return text  # a file of the checkout, such as LICENSE
        return f"{mark}[{text}]({posixpath.relpath(there, posixpath.dirname(site) or '.')}{anchor})"

    parts, end = [], 0
    for fence in [*_FENCED.finditer(markdown), None]:
        plain = markdown[end : fence.start() if fence else None]
        parts.append(_LIST.sub(r"\1\n\n", _LINK.sub(link, plain)))
        if fence:
            parts.append(fence[0])
            end = fence.end()
    return "".join(parts)


def on_post_build(config: MkDocsConfig) -> None:
    """Refuse a site that loads anything from outside, or lacks a public name of Python.

    Raises:
        PluginError: A page loads a script, a style or a picture by http, or a public name has no entry.
    """
    site = Path(config.site_dir)
    outside = [str(file) for file in sorted(site.rglob("*.html")) if _OUTSIDE.search(file.read_text("utf-8"))]
    if outside:
        raise PluginError(f"loads from outside: {', '.join(outside)}")
    for package, names in python_reference.public_names().items():
        text = (site / f"{python_reference.FOLDER}/{package}.html").read_text("utf-8")
        if missing := [name for name in names if f'id="{package}.{name}"' not in text]:
            raise PluginError(f"the page of {package} lacks {', '.join(missing)}")
