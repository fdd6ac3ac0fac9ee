"""Reader of SQL: saved queries by name, parameters as DuckDB variables, results as pandas data frames."""

from __future__ import annotations

import itertools
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from navi_core.errors import RecordError, did_you_mean
from navi_core.record.metric_log import NATURAL_KEYS
from navi_pipeline.lib.warehouse.database import sql_folder

if TYPE_CHECKING:
    import duckdb
    import pandas


@dataclass(frozen=True)
class SavedQuery:
    """Saved SQL query of `sql/queries`: name, one-line explanation, text, meaning of each parameter by name.

    Parameters are DuckDB variables, which are null where none is set.
    """

    name: str
    explanation: str
    sql: str
    parameters: dict[str, str]


class Reader(ABC):
    """Read-only access to tables, views and saved queries of a warehouse or of a published history."""

    @abstractmethod
    def _opened(self) -> duckdb.DuckDBPyConnection:
        """Open a connection for reading."""

    def query(
        self, sql: str, parameters: list[Any] | None = None, *, values: Mapping[str, str] = MappingProxyType({})
    ) -> pandas.DataFrame:
        """Run one query.

        Args:
            sql: DuckDB SQL, or the name of a saved query.
            parameters: Values of `?` placeholders.
            values: Parameters of a saved query by name; in SQL they are `getvariable('name')`.

        Returns:
            The result as a data frame (empty without columns for statements without a result).

        Raises:
            RecordError: The query fails; the message lists tables and views. Or the saved query has no such parameter.
        """
        saved = saved_query(sql)
        if saved is not None and (unknown := sorted(values.keys() - saved.parameters.keys())):
            raise RecordError(f"{saved.name} has no parameter {unknown[0]!r}; {allowed_parameters(saved)}")
        with self.reader(values) as ask:
            return ask(sql, parameters)

    @contextmanager
    def reader(self, values: Mapping[str, str] = MappingProxyType({})) -> Iterator[Callable[..., pandas.DataFrame]]:
        """Context manager that opens one connection for several queries, all of which see the same state.

        Args:
            values: Parameters of all queries by name.

        Yields:
            A function that answers as `query` does: SQL or a name, values of placeholders.

        Raises:
            RecordError: As `query`.
        """
        import duckdb

        def ask(sql: str, parameters: list[Any] | None = None) -> pandas.DataFrame:
            saved = saved_query(sql)
            try:
                answer = connection.execute(sql if saved is None else saved.sql, parameters)
                if answer is None:
                    raise RecordError('the query is empty; ask for example: navi query "select * from leaderboard"')
                types = {str(name): str(kind) for name, kind, *_ in answer.description or ()}
                frame = answer.df()
                frame.attrs["types"] = types
                return frame
            except (duckdb.Error, UnicodeEncodeError, RuntimeError) as error:
                raise RecordError(_failure(str(error).strip(), *self.relations())) from error

        with self._opened() as connection:
            for name, value in values.items():
                connection.execute(f'set variable "{name}" = ?', [value])
            yield ask

    def relations(self) -> tuple[list[str], list[str]]:
        """Return the names of views and tables."""
        with self._opened() as connection:
            rows = connection.execute(
                "select table_name, table_type from information_schema.tables where table_schema = 'main' order by 1"
            ).fetchall()
        tables = [name for name, kind in rows if kind != "VIEW" or name in NATURAL_KEYS]
        return [name for name, _ in rows if name not in tables], tables


def _failure(message: str, views: list[str], tables: list[str]) -> str:
    """Return the message of a failed query; a missing relation is met with the nearest one or saved query."""
    missing = re.search(r"Table with name (\w+) does not exist", message)
    if missing is None:
        return f"{message}\nviews: {', '.join(views)}\ntables: {', '.join(tables)}"
    queries = saved_queries(sql_folder())
    hint = did_you_mean(missing[1], [*queries, *views, *tables])
    if (name := hint.partition("'")[2].partition("'")[0]) in queries and name not in (*views, *tables):
        hint = f"{name} is a saved query; next: navi query {name}"
    return f"no table or view {missing[1]!r}; {hint or 'next: navi warehouse list'}".rstrip()


def saved_query(name: str) -> SavedQuery | None:
    """Return the saved query of that name; None for SQL and for other names."""
    return saved_queries(sql_folder()).get(name.strip()) if name.strip().isidentifier() else None


def allowed_parameters(query: SavedQuery) -> str:
    """Return the end of an error message: the parameters of a saved query and how to give them."""
    if not query.parameters:
        return "it takes none"
    allowed = "; ".join(f"{name} ({meaning})" for name, meaning in query.parameters.items())
    words = " ".join(f"{name}=…" for name in query.parameters)
    return f"allowed: {allowed}\nnext: navi query {query.name} {words}"


def saved_queries(folder: Path) -> dict[str, SavedQuery]:
    """Load the saved queries by name; the first line of each file is its explanation, the next ones its parameters."""
    found = {}
    for file in sorted(folder.glob("queries/*.sql")):
        text = file.read_text("utf-8")
        first, _, rest = text.partition("\n")
        comments = itertools.takewhile(lambda line: line.startswith("--"), rest.splitlines())
        parameters = dict(re.findall(r"^-- (\w+): (.+)$", "\n".join(comments), re.MULTILINE))
        found[file.stem] = SavedQuery(file.stem, first.lstrip("- ").strip(), text, parameters)
    return found


def records(frame: pandas.DataFrame) -> list[dict[str, Any]]:
    """Convert a data frame to JSON rows: missing and non-finite numbers become null, times ISO 8601, others text."""
    return [{str(name): _plain(value) for name, value in row.items()} for row in frame.to_dict("records")]


def _plain(value: Any) -> object:  # noqa: ANN401 - any cell of a data frame
    import pandas

    if isinstance(value, dict):
        return {str(name): _plain(item) for name, item in value.items()}
    if getattr(value, "ndim", False):
        # As timestamps: numpy gives times in nanoseconds as integers.
        value = list(pandas.Series(value)) if value.dtype.kind == "M" else value.tolist()
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if pandas.isna(value) or value in (math.inf, -math.inf):
        return None
    if hasattr(value, "isoformat"):
        return value.isoformat()
    if hasattr(value, "item"):
        return value.item()
    return value if isinstance(value, (bool, int, float, str)) else str(value)
