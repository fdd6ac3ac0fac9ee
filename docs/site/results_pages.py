"""Pages of the results: a table and a chart for each declaration of docs/results/figures.yaml, from figures.csv."""

from __future__ import annotations

from navi_pipeline.lib.reports.pages import interval_chart
from navi_pipeline.lib.reports.published import Measured, Table, declared_tables, published_figures


def _text(value: Measured | None, unit: str) -> str:
    if value is None:
        return "–"
    number = f"{value.value:,.4g}" if abs(value.value) < 1e4 else f"{value.value:,.0f}"
    ends = f" [{value.low:.4g}, {value.high:.4g}]" if value.low is not None and value.high is not None else ""
    n = f", n = {value.n:,}" if value.n is not None else ""
    return f"{number}{ends} {unit}{n}".replace(" ,", ",")


def _section(table: Table, figures: dict[str, tuple[Measured, dict[str, str]]]) -> list[str]:
    found = {name: one for name, one in figures.items() if name.startswith(f"{table.id}/")}
    lines = [f"## {table.title}", "", table.text.strip(), ""]
    if not found:
        return [*lines, f"Not measured yet: `navi results measure {table.id}`.", ""]
    labels = list(dict.fromkeys(name.split("/", 1)[1].rpartition("/")[0] for name in found))
    for column in table.columns:
        if column.key == table.chart:
            points = [
                (label, one.value, one.low, one.high)
                for label in labels
                if (one := found.get(f"{table.id}/{label}/{column.key}", (None,))[0])
            ]
            chart = interval_chart(points, label=f"{column.title} ({column.unit})")
            lines += [f'<figure markdown="0">{chart}</figure>', ""]
    titles = [column.title for column in table.columns]
    lines += ["| " + " | ".join(["", *titles]) + " |", "|" + "---|" * (len(titles) + 1)]
    for label in labels:
        cells = [
            _text(found[key][0] if (key := f"{table.id}/{label}/{column.key}") in found else None, column.unit)
            for column in table.columns
        ]
        lines.append("| " + " | ".join([label, *cells]) + " |")
    rows = [row for _, row in found.values()]
    dates = sorted({row["date"] for row in rows})
    lines += [
        "",
        f"`{rows[0]['command']}` · about {table.minutes:g} min · {' to '.join(dict.fromkeys((dates[0], dates[-1])))} · "
        f"revision {', '.join(sorted({row['revision'][:12] for row in rows}))} · {rows[0]['machine']}",
        "",
    ]
    return lines


def pages() -> dict[str, str]:
    """Return the generated page of measured figures: path in the site → Markdown."""
    figures = published_figures()
    lines = [
        "# Measured figures",
        "",
        "This page is for readers who want to check a figure. Each table comes from one command, which prints JSON.",
        "`navi verify results --sample 10` measures ten figures again, drawn by the hash of the commit. It fails if",
        "one no longer holds within its interval.",
        "",
    ]
    for table in declared_tables().values():
        lines += _section(table, figures)
    return {"results/figures.md": "\n".join(lines)}
