"""The warehouse as pandas: saved questions and SQL over one home or a published history, with stable dtypes and units.

from navi_pipeline.warehouse import query
board = query("ranking", course="test-16x3x200")
board.attrs["units"]["c_vis_auc_percent"]  # "%"
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from navi_pipeline.lib.warehouse.database import meanings, sql_folder
from navi_pipeline.lib.warehouse.history import History
from navi_pipeline.lib.warehouse.reader import Reader, saved_queries, saved_query
from navi_pipeline.lib.warehouse.warehouse import Warehouse

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pandas

__all__ = ["History", "Warehouse", "query", "questions"]

_DTYPES = {
    "BOOLEAN": "boolean",
    "DOUBLE": "Float64",
    "FLOAT": "Float64",
    "DECIMAL": "Float64",
    "VARCHAR": "string",
    "JSON": "string",
    **dict.fromkeys(("TINYINT", "SMALLINT", "INTEGER", "BIGINT", "HUGEINT", "UBIGINT", "UINTEGER"), "Int64"),
    **dict.fromkeys(("TIMESTAMP", "DATE", "TIMESTAMP_S", "TIMESTAMP_MS"), "datetime64[us]"),
}
"""DuckDB type → pandas dtype; the same for every answer, empty or with missing values."""


def query(
    sql: str,
    parameters: Sequence[object] | None = None,
    *,
    home: Path | str | None = None,
    history: Path | str | None = None,
    **values: str,
) -> pandas.DataFrame:
    """Ingest new rows and answer SQL or a saved question.

    Args:
        sql: DuckDB SQL, or the name of a saved question (see `questions`).
        parameters: Values of `?` placeholders.
        home: Navi home; by default `navi_home()`.
        history: Folder of a published history, which is read in place of a home.
        values: Parameters of the question by name.

    Returns:
        A data frame with nullable dtypes. `attrs["units"]` holds the unit and `attrs["meanings"]` the description of
        each column that has one.

    Raises:
        RecordError: The query fails, or the question has no such parameter.
    """
    source = read(home, history)
    frame = source.query(sql, None if parameters is None else list(parameters), values=values)
    kinds = frame.attrs.pop("types")
    (_, every), saved = meanings(sql_folder()), saved_query(sql)
    tables = [sql.strip(), *re.findall(r"\b(?:from|join)\s+(\w+)", sql if saved is None else saved.sql)]
    known = {
        name: next((every[key] for table in tables if (key := f"{table}.{name}") in every), every.get(name))
        for name in map(str, frame.columns)
    }
    units = {
        name: unit[1] if (unit := re.search(r"\[([^\]]+)\]", meaning or "")) else "%" if "_percent" in name else None
        for name, meaning in known.items()
    }
    frame = frame.astype({n: _DTYPES[base] for n, kind in kinds.items() if (base := kind.partition("(")[0]) in _DTYPES})
    frame.attrs = {
        "units": {name: unit for name, unit in units.items() if unit},
        "meanings": {name: meaning for name, meaning in known.items() if meaning},
    }
    return frame


def read(home: Path | str | None = None, history: Path | str | None = None) -> Reader:
    """Return the reader of a home, whose new rows are ingested, or of a published history.

    Args:
        home: Navi home; by default `navi_home()`.
        history: Folder of a published history.
    """
    if history is not None:
        return History(history)
    warehouse = Warehouse(home)
    warehouse.refresh()
    return warehouse


def questions() -> dict[str, str]:
    """Return the saved questions: name → explanation, with the parameters that each takes."""
    return {
        name: " ".join([saved.explanation, *(f"{word}: {meaning}." for word, meaning in saved.parameters.items())])
        for name, saved in saved_queries(sql_folder()).items()
    }
