"""Tables of rows and their natural keys.

A resumed run emits the rows after its last checkpoint a second time. Ingest replaces a row whose
natural key it has already, so that nothing is lost and nothing is doubled. The warehouse's
migrations declare the same keys as primary keys, but for the largest tables; a test compares the two.
"""

SEGMENT_VERSION = 1
"""Version of the segment files' layout."""

NATURAL_KEYS: dict[str, tuple[str, ...]] = {
    "metrics": ("run_id", "step", "name"),
    "runs": ("run_id",),
    "scenes": ("name", "source_hash", "compile_hash"),
    "checkpoints": ("run_id", "step"),
    "models": ("version",),
    "promotions": ("alias", "version", "decided_at"),
    "alias_moves": ("alias", "version", "moved_at"),
    "evaluations": ("evaluation_id",),
    "episodes": ("evaluation_id", "scene", "start"),
    "comparisons": ("comparison_id", "metric"),
    "stage_timings": ("run_id", "step", "stage"),
    "benchmarks": ("run_id", "benchmark", "cell", "repeat", "name"),
    "studies": ("study",),
    "trials": ("study", "trial"),
    "service_experiences": ("run_id", "number"),
    "service_versions": ("run_id", "model_version", "fate"),
    "events": ("run_id", "step", "event", "recorded_at"),
}
"""Table name → natural key."""

UNINDEXED_TABLES: tuple[str, ...] = ("metrics", "stage_timings", "service_experiences")
"""Tables of millions of rows, kept unique by the writer alone: an index would be most of the database."""

RUN_TABLES: tuple[str, ...] = ("metrics", "runs", "checkpoints", "stage_timings")
"""Tables whose rows a fresh start of their run drops; models, evaluations and decisions are history and stay."""
