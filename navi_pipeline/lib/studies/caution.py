"""What a study's best value is worth: it is one seed's, and the best of many."""

from __future__ import annotations

from navi_pipeline.lib.studies.book import StudyBook, number_of

__all__ = ["caution", "tried"]


def tried(book: StudyBook) -> int:
    """Return how many trials the best was chosen from; those that were pruned had their chance, too."""
    trials = list(book.latest().values())
    return number_of(trials, "COMPLETE") + number_of(trials, "PRUNED")


def caution(trials: int) -> str:
    """Return what to think of the best value, in words.

    The best of many values owes some of its lead to its seed: the same settings earn less with another.

    Args:
        trials: How many it was chosen from (see `tried`).
    """
    return f"one seed, chosen from {trials} trials: expect less of it" if trials > 1 else "one seed"
