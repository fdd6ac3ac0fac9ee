"""Pages and charts of the results, from figures.yaml and figures.csv: run `python docs/site/results_pages.py`."""

from __future__ import annotations

import textwrap
from pathlib import Path

from navi_pipeline.bench.curves import Curve
from navi_pipeline.lib.reports.pages import interval_chart, standalone_chart
from navi_pipeline.lib.reports.published import Measured, Table, declared_tables, published_figures

FOLDER = Path(__file__).resolve().parents[1] / "results"
Figures = dict[str, tuple[Measured, dict[str, str]]]
PAGES = {
    "flight": ("Exploration", "readers who want to know how well policies explore, beside scripted pilots"),
    "generalist": ("One policy for three sensors", "readers who ask what one set of weights flies with, and how well"),
    "sensors": ("Sensors and real places", "readers who ask what real sensors and real buildings cost"),
    "engine": ("Speed of the engine", "readers who ask how fast rays, steps, networks and learning are"),
    "scale": ("Cost curves", "people who plan how much one machine can carry"),
    "learners": ("Learners on reference tasks", "readers who compare the learners with known tasks and libraries"),
    "sweeps": (
        "Sweeps",
        "readers who choose a resolution, an encoder, a rollout, a number of drones or a temporal core",
    ),
    "service": ("Service and gate", "people who fly policies through the service"),
    "statistics": ("Statistics", "readers who ask how far the intervals can be trusted"),
}
"""Page of the results → its title and its readers."""
_VERIFY = """
Each table gives its command, date, revision and machine. Brackets are 95 % intervals, and n is the number of samples.
`navi results measure` measures a table again. `navi verify results --sample 10` draws ten measured figures by the
hash of the commit, and fails if one no longer holds. It took 2.7 CPU-minutes on 2026-11-28. *Noted* tables were
copied from the notes of their runs, which took CPU-hours or another machine.
"""
_INDEX = """# Results

This page is for readers who want to see what Navi reaches, beside its peers. Each chart links to its table.
`python docs/site/results_pages.py` draws all of them from `docs/results/figures.csv`. Figures that no command repeats
are in the [history](history.md).

**No GPU has run Navi yet.** Its CUDA kernels compile for sm_90, and the tests run them on emulated devices. So nothing
here is about rays, environment steps, PPO or served decisions on a GPU, several GPUs, or the full network at full
length. `python -m navi_core.bench.engine.device` measures the first four.
"""


def _number(value: float) -> str:
    return f"{value:,.4g}" if abs(value) < 1e4 else f"{value:,.0f}"


def _text(value: Measured | None) -> str:
    if value is None:
        return "–"
    ends = ""
    if value.low is not None and value.high is not None:
        ends = f" [{_number(value.low)}, {_number(value.high)}]"
    return f"{_number(value.value)}{ends}" + (f", n = {value.n:,}" if value.n is not None else "")


def _titled(title: str, unit: str) -> str:
    return f"{title} ({unit})" if unit else title


def _paragraph(text: str) -> str:
    return textwrap.fill(" ".join(text.split()), 118, break_on_hyphens=False, break_long_words=False)


def _labels(table: Table, figures: Figures) -> list[str]:
    names = (name for name in figures if name.startswith(f"{table.id}/"))
    found = dict.fromkeys(name.split("/", 1)[1].rpartition("/")[0] for name in names)
    return sorted(found, key=lambda label: table.order.index(label) if label in table.order else len(table.order))


def _cells(table: Table, figures: Figures, key: str | None) -> list[tuple[str, Measured | None]]:
    return [(label, figures.get(f"{table.id}/{label}/{key}", (None,))[0]) for label in _labels(table, figures)]


def _source(table: Table, figures: Figures) -> list[str]:
    rows = [row for name, (_, row) in figures.items() if name.startswith(f"{table.id}/")]

    def each(key: str) -> str:
        return ", ".join(sorted({row[key] for row in rows}))

    commands = [
        " \\\n    ".join(textwrap.wrap(f"navi {one}", 112, break_on_hyphens=False, break_long_words=False))
        for one in (*table.before, table.command)
    ]
    time = f"{table.minutes:g} min" if table.minutes < 90 else f"{table.minutes / 60:.2g} h"
    revisions = ", ".join(sorted({row["revision"][:8] for row in rows}))
    line = f"About {time}. Date {each('date')}, revision {revisions}. Machine: {each('machine')}."
    noted = " *Noted*: copied from the notes of the run." if "noted" in each("origin") else ""
    return ["```sh", *commands, "```", "", _paragraph(line + noted), ""]


def _curves(table: Table, figures: Figures) -> list[Curve]:
    """Return the curves of a table, whose labels are `name: cost, size`."""
    points: dict[str, list[tuple[float, float]]] = {}
    for label, one in _cells(table, figures, table.columns[0].key):
        curve, _, size = label.rpartition(", ")
        if one is not None:
            points.setdefault(curve, []).append((float(size), one.value))
    names = ((curve.rpartition(": "), tuple(sorted(found))) for curve, found in points.items())
    return [Curve(name, table.curves or "", cost, found) for (name, _, cost), found in names]


def _curve_lines(table: Table, figures: Figures) -> list[str]:
    lines = [f"| | {table.curves} | cost at first | at last | exponent | of the last half |", "|" + "---|" * 6]
    curves = _curves(table, figures)
    for curve in curves:
        (first, start), (last, end) = curve.points[0], curve.points[-1]
        lines.append(
            f"| {_short(curve)}: {curve.cost} | {first:,.0f} to {last:,.0f} | {_number(start)} | {_number(end)} | "
            f"{curve.exponent():.2f} | {curve.exponent(end=True):.2f} |"
        )
    return [*lines, "", *(f"![{_short(curve)}](charts/curve-{curve.file})" for curve in curves)]


def _short(curve: Curve) -> str:
    """Return the name of a curve without its group, which is the section's title."""
    return curve.name.partition(": ")[2]


def _section(table: Table, figures: Figures) -> list[str]:
    lines = [f"## {table.title}", "", _paragraph(table.text), ""]
    if not _labels(table, figures):
        return [*lines, f"Not measured yet: `navi results measure {table.id}`.", ""]
    if table.curves:
        return [*lines, *_curve_lines(table, figures), "", *_source(table, figures)]
    lines += [f"![{table.title}](charts/{table.id}.svg)", ""] if table.chart else []
    lines.append("| " + " | ".join(["", *(_titled(column.title, column.unit) for column in table.columns)]) + " |")
    lines.append("|" + "---|" * (len(table.columns) + 1))
    columns = [_cells(table, figures, column.key) for column in table.columns]
    lines += ["| " + " | ".join([cells[0][0], *(_text(one) for _, one in cells)]) + " |" for cells in zip(*columns)]
    return [*lines, "", *_source(table, figures)]


def _anchor(table: Table) -> str:
    return "-".join("".join(one for one in table.title.lower() if one.isalnum() or one in " -").split())


def _chart(table: Table, figures: Figures) -> str:
    column = next(column for column in table.columns if column.key == table.chart)
    points = [(label, one.value, one.low, one.high) for label, one in _cells(table, figures, table.chart) if one]
    return standalone_chart(interval_chart(points, label=_titled(column.title, column.unit))) + "\n"


def files() -> dict[str, str]:
    """Return the generated files of docs/results: path in the folder → text."""
    figures, tables = published_figures(), list(declared_tables().values())
    charts = [table for table in tables if table.chart and _labels(table, figures)]
    index = [_INDEX]
    for table in charts:
        index += [f"## {table.title}", "", _paragraph(f"{table.text.strip().split('. ')[0].rstrip('.')}."), ""]
        index += [f"![{table.title}](charts/{table.id}.svg)", ""]
        index += [f"[Table and command]({table.page}.md#{_anchor(table)})", ""]
    pages = {"index": index}
    for name, (title, readers) in PAGES.items():
        sections = (_section(table, figures) for table in tables if table.page == name)
        pages[name] = [
            f"# {title}",
            "",
            f"This page is for {readers}.",
            _VERIFY,
            *(line for s in sections for line in s),
        ]
    found = {f"{name}.md": "\n".join(lines).rstrip() + "\n" for name, lines in pages.items()}
    found |= {f"charts/{table.id}.svg": _chart(table, figures) for table in charts}
    curves = (curve for table in tables if table.curves for curve in _curves(table, figures))
    return found | {f"charts/curve-{curve.file}": curve.chart() + "\n" for curve in curves}


def main() -> None:
    """Write the files, and remove charts that no table has."""
    made = files()
    (FOLDER / "charts").mkdir(exist_ok=True)
    for file in FOLDER.glob("charts/*.svg"):
        if f"charts/{file.name}" not in made:
            file.unlink()
    for name, text in made.items():
        (FOLDER / name).write_text(text, "utf-8")


if __name__ == "__main__":
    main()
