"""Text of arbitrary scripts in figures: with installed fonts, else as code points, never as empty boxes."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from navi_core.errors import printable

if TYPE_CHECKING:
    from matplotlib.text import Text

_DEFAULT = "DejaVu Sans"
_BOXES, _REGULAR = "Last Resort", 400
_LONGEST = 90
"""Longest name drawn, in characters."""


def draw_name(text: Text) -> None:
    """Draw a user-given name literally: no formulas, any script.

    Args:
        text: A title or legend label that holds such a name.
    """
    name = text.get_text()
    if len(name) > _LONGEST:
        name = f"{name[: _LONGEST // 2]}…{name[-_LONGEST // 2 :]}"
    name = printable(name)
    families, lacking = _families(frozenset(name))
    codes = {ord(letter): f"\\u{ord(letter):04x}" for letter in lacking}
    text.set_parse_math(False)
    text.set_fontfamily(list(families))
    text.set_text(name.translate(codes))


@lru_cache(maxsize=256)
def _families(letters: frozenset[str]) -> tuple[tuple[str, ...], frozenset[str]]:
    """Return font families that together cover the letters, and the letters that none covers."""
    from matplotlib.font_manager import findfont, fontManager, get_font

    def lacks(file: str, wanted: frozenset[str]) -> frozenset[str]:
        try:
            font = get_font(file)
        except (OSError, RuntimeError):
            # matplotlib caches its font list: a font may be gone or broken.
            return wanted
        return frozenset(letter for letter in wanted if not font.get_char_index(ord(letter)))

    families, lacking = [_DEFAULT], lacks(findfont(_DEFAULT), letters)
    # Last-resort fonts draw a box for every letter.
    upright = {one.name: one.fname for one in fontManager.ttflist if one.style == "normal" and one.weight == _REGULAR}
    for family, file in sorted(upright.items()):
        if not lacking:
            break
        left = lacks(file, lacking) if not family.startswith(_BOXES) else lacking
        if left != lacking:
            families.append(family)
            lacking = left
    return tuple(families), lacking
