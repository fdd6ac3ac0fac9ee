"""Names in pictures: in letters that the fonts of this machine have, else as code numbers, never as empty boxes."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from navi_core.errors import printable

if TYPE_CHECKING:
    from matplotlib.text import Text

__all__ = ["draw_name"]

_DEFAULT = "DejaVu Sans"
_BOXES, _REGULAR = "Last Resort", 400
_LONGEST = 90
"""Characters of a name that are drawn."""


def draw_name(text: Text) -> None:
    """Let a text of a figure say what it says: names are other people's, no formulas, and of every script.

    Args:
        text: A title, or a label of a legend, that holds such a name.
    """
    said = text.get_text()
    if len(said) > _LONGEST:
        said = f"{said[: _LONGEST // 2]}…{said[-_LONGEST // 2 :]}"
    said = printable(said)
    families, lacking = _families(frozenset(said))
    codes = {ord(letter): f"\\u{ord(letter):04x}" for letter in lacking}
    text.set_parse_math(False)
    text.set_fontfamily(list(families))
    text.set_text(said.translate(codes))


@lru_cache(maxsize=256)
def _families(letters: frozenset[str]) -> tuple[tuple[str, ...], frozenset[str]]:
    """Return font families that together draw the letters, and those that none of them has."""
    from matplotlib.font_manager import findfont, fontManager, get_font

    def lacks(file: str, wanted: frozenset[str]) -> frozenset[str]:
        try:
            font = get_font(file)
        except (OSError, RuntimeError):
            # matplotlib keeps its list of fonts: one may have been removed since, or is broken.
            return wanted
        return frozenset(letter for letter in wanted if not font.get_char_index(ord(letter)))

    families, lacking = [_DEFAULT], lacks(findfont(_DEFAULT), letters)
    # The fonts of last resort have a box for every letter there is.
    upright = {one.name: one.fname for one in fontManager.ttflist if one.style == "normal" and one.weight == _REGULAR}
    for family, file in sorted(upright.items()):
        if not lacking:
            break
        left = lacks(file, lacking) if not family.startswith(_BOXES) else lacking
        if left != lacking:
            families.append(family)
            lacking = left
    return tuple(families), lacking
