"""Pages of the results: a table and a chart for each declaration of docs/results/figures.yaml, from figures.csv."""

from __future__ import annotations

from html import escape

from navi_pipeline.lib.reports.published import Measured, Table, declared_tables, published_figures

BAR, LINE, LABEL, WIDTH = 18, 26, 250, 760
"""Height of a bar, distance of bars, width of the labels and of a chart [px]."""


def _text(value: Measured | None, unit: str) -> str:
    if value is None:
        return "–"
    number = f"{value.value:,.4g}" if abs(value.value) < 1e4 else f"{value.value:,.0f}"
    ends = f" [{value.low:.4g}, {value.high:.4g}]" if value.low is not None and value.high is not None else ""
    n = f", n = {value.n:,}" if value.n is not None else ""
    return f"{number}{ends} {unit}{n}".replace(" ,", ",")


def chart(title: str, unit: str, bars: dict[str, Measured]) -> str:
    """Return an SVG of horizontal bars with their intervals."""
    most = max(max(one.high or one.value for one in bars.values()), 1e-12)
    scale, height = (WIDTH - LABEL - 90) / most, 40 + LINE * len(bars)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" role="img">'
        f"<title>{escape(title)}</title><style>text {{ font: 13px system-ui, sans-serif; fill: currentColor }}</style>"
    ]
    for place, (name, one) in enumerate(bars.items()):
        y, width = 12 + LINE * place, max(one.value, 0) * scale
        parts += [
            f'<text x="{LABEL - 8}" y="{y + 14}" text-anchor="end">{escape(name)}</text>',
            f'<rect x="{LABEL}" y="{y}" width="{width:.1f}" height="{BAR}" fill="#3b6ea5"/>',
            f'<text x="{LABEL + (one.high or one.value) * scale + 8:.1f}" y="{y + 14}">{one.value:,.4g}</text>',
        ]
        if one.low is not None and one.high is not None:
            parts.append(
                f'<path d="M{LABEL + one.low * scale:.1f} {y + 9}H{LABEL + one.high * scale:.1f}" stroke="#b07a1e" '
                'stroke-width="2"/>'
            )
    parts.append(f'<text x="{LABEL}" y="{height - 8}">{escape(unit)}</text></svg>')
    return "".join(parts)


def _section(table: Table, figures: dict[str, tuple[Measured, dict[str, str]]]) -> list[str]:
    found = {name: one for name, one in figures.items() if name.startswith(f"{table.id}/")}
    lines = [f"## {table.title}", "", table.text.strip(), ""]
    if not found:
        return [*lines, f"Not measured yet: `navi results measure {table.id}`.", ""]
    labels = list(dict.fromkeys(name.split("/", 1)[1].rpartition("/")[0] for name in found))
    for column in table.columns:
        if column.key == table.chart:
            bars = {label: found[key][0] for label in labels if (key := f"{table.id}/{label}/{column.key}") in found}
            lines += [f'<figure markdown="0">{chart(column.title, column.unit, bars)}</figure>', ""]
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
