"""Style checker of the documents: `python docs/site/style.py` prints the faults of each page and fails on any."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SENTENCE_WORDS, MEAN_WORDS, CELL_WORDS = 35, 18, 30
LINE_CHARACTERS, PAGE_LINES, COLUMNS = 120, 250, 6
RIDDLES = ("What", "Who", "Whether", "How", "Why", "Which", "Where", "When")
"""First words of headings that name neither a task nor a thing."""
_FENCE = re.compile(r"^( *)```.*?^\1```[^\n]*$", re.S | re.M)
_ITEM = re.compile(r"\s*([-*]|\d+\.)\s+")


def pages() -> list[Path]:
    """Return the pages under the rules: README, CONTRIBUTING, SECURITY and `docs/`. The changelog is a list."""
    roots = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")]
    return [*roots, *sorted(ROOT.glob("docs/**/*.md"))]


def _plain(text: str) -> str:
    """Return a text without link targets; code is one word."""
    return re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", re.sub(r"`[^`]+`", "code", text))


def _words(text: str) -> int:
    text = _plain(text)
    return sum(any(character.isalnum() for character in word) for word in text.split())


def _sentences(paragraph: str) -> list[str]:
    parts = re.split(r"(?<=[.!?])[*_)\"]*\s+(?=[^a-z])", _plain(paragraph).replace("e.g. ", "e.g."))
    return [part for part in parts if _words(part)]


def _blocks(text: str) -> Iterator[tuple[str, str]]:
    """Yield kind (`heading`, `row`, `item`, `paragraph`) and text of each block; code is left out."""
    kind, held = "paragraph", ""
    for line in [*_FENCE.sub("", text).splitlines(), ""]:
        fresh = not line.strip() or line.startswith(("#", "|")) or _ITEM.match(line)
        if fresh and held:
            yield kind, held
            kind, held = "paragraph", ""
        if line.startswith("#"):
            yield "heading", line.lstrip("# ")
        elif line.startswith("|"):
            yield "row", line
        elif line.startswith("    ") and not held:
            continue
        elif line.strip():
            if item := _ITEM.match(line):
                kind, line = "item", line[item.end() :]
            held = f"{held} {line.strip()}".strip()


def faults(text: str) -> list[str]:
    """Return the faults of a page, a line each."""
    lines, found, lengths = text.splitlines(), [], []
    if len(lines) > PAGE_LINES:
        found.append(f"{len(lines)} lines; at most {PAGE_LINES} a page")
    found += [
        f"line {number}: {len(line)} characters; at most {LINE_CHARACTERS}"
        for number, line in enumerate(lines, 1)
        if len(line) > LINE_CHARACTERS
    ]
    for kind, block in _blocks(text):
        if kind == "heading":
            if block.split(" ")[0] in RIDDLES or block.endswith("?"):
                found.append(f"heading {block!r}: name a task or a thing")
        elif kind == "row":
            cells = re.split(r"(?<!\\)\|", block.strip().strip("|"))
            if len(cells) > COLUMNS:
                found.append(f"table of {len(cells)} columns ({block[:40]}…); at most {COLUMNS}")
            found += [
                f"cell of {_words(cell)} words ({cell.strip()[:40]}…); at most {CELL_WORDS}"
                for cell in cells
                if _words(cell) > CELL_WORDS
            ]
        else:
            counts = [_words(sentence) for sentence in _sentences(block)]
            lengths += counts if kind == "paragraph" else []
            found += [
                f"sentence of {count} words ({sentence[:60]}…); at most {SENTENCE_WORDS}"
                for count, sentence in zip(counts, _sentences(block), strict=True)
                if count > SENTENCE_WORDS
            ]
    if lengths and sum(lengths) / len(lengths) > MEAN_WORDS:
        found.append(f"{sum(lengths) / len(lengths):.1f} words a sentence on average; at most {MEAN_WORDS}")
    return found


def main() -> int:
    """Check the pages, and print each fault in a line."""
    found = {str(page.relative_to(ROOT)): faults(page.read_text("utf-8")) for page in pages()}
    for name, each in found.items():
        for fault in each:
            print(f"{name}: {fault}")  # noqa: T201
    passed = sum(not each for each in found.values())
    print(f"style: {passed} of {len(found)} pages pass")  # noqa: T201
    return int(passed < len(found))


if __name__ == "__main__":
    sys.exit(main())
