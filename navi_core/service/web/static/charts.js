// Line charts with axes, whose values are read by pointer, by keys and by a screen reader.

import { fitted, themed } from "./colour.js";

const RIGHT = 8, TOP = 10, BOTTOM = 30, TURN = 6; // margins, and space between labels [px]

export function numberText(value) {
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value);
  if (Number.isInteger(value) && size < 1e12) return value.toLocaleString("en");
  if (size !== 0 && (size < 0.001 || size >= 1e6)) return value.toExponential(2);
  if (size >= 1000) return Math.round(value).toLocaleString("en");
  return value.toFixed(size >= 100 ? 1 : size >= 10 ? 2 : 4);
}

function shortText(value) {
  const size = Math.abs(value);
  for (const [limit, unit] of [[1e9, "G"], [1e6, "M"], [1e4, "k"]]) {
    if (size >= limit) return `${+(value / (unit === "k" ? 1e3 : limit)).toPrecision(3)}${unit}`;
  }
  return size !== 0 && size < 0.001 ? value.toExponential(0) : String(+value.toPrecision(3));
}

/** Three to six round numbers between two ends. */
function ticks(low, high) {
  const raw = (high - low) / 4, power = 10 ** Math.floor(Math.log10(raw));
  const step = power * [1, 2, 5, 10].find((factor) => factor * power >= raw);
  const found = [];
  for (let n = Math.ceil(low / step - 1e-9); n * step <= high + 1e-9 * step; n++) found.push(n * step);
  return found;
}

/** One chart of one or more lines over a common axis. A line is { name, steps, values, colour, dashes, unit }. */
export class Chart {
  constructor({ title, meaning = "", x = "decisions", metric = null }) {
    this.x = x;
    this.title = title;
    this.meaning = meaning;
    this.lines = [];
    this.cursor = null;
    this.root = Object.assign(document.createElement("figure"), { className: "chart" });
    const head = document.createElement("figcaption");
    this.name = Object.assign(document.createElement("span"), { className: "name", textContent: title });
    this.value = Object.assign(document.createElement("b"), { className: "value" });
    if (metric !== null) this.value.dataset.metric = metric;
    this.about = Object.assign(document.createElement("small"), { textContent: meaning });
    head.append(this.name, this.value, this.about);
    this.canvas = document.createElement("canvas");
    this.canvas.tabIndex = 0;
    this.canvas.setAttribute("role", "img");
    this.reading = Object.assign(document.createElement("output"), { className: "reading" });
    this.root.append(head, this.canvas, this.reading);
    this.canvas.addEventListener("pointermove", (event) => this.point(event.offsetX));
    this.canvas.addEventListener("pointerleave", () => this.place(null));
    this.canvas.addEventListener("blur", () => this.place(null));
    this.canvas.addEventListener("keydown", (event) => this.press(event));
  }

  show(lines) {
    this.lines = lines.map((line) => ({
      ...line, points: line.steps.map((step, n) => [step, line.values[n]]).filter(([, value]) => value !== null && value !== undefined),
    })).filter((line) => line.points.length);
    const first = this.lines[0], last = first?.points.at(-1)[1] ?? null;
    this.value.textContent = numberText(last);
    this.value.dataset.value = String(last);
    this.canvas.setAttribute("aria-label", this.sentence());
    this.draw();
  }

  /** The chart in words, for people who do not see it. */
  sentence() {
    const parts = this.lines.map(({ name, points }) => {
      const values = points.map(([, value]) => value);
      let low = Infinity, high = -Infinity;
      for (const value of values) { low = Math.min(low, value); high = Math.max(high, value); }
      return `${name}: ${points.length} points from ${this.at(points[0][0])} to ${this.at(points.at(-1)[0])}; first ${numberText(values[0])}, last ${numberText(values.at(-1))}, lowest ${numberText(low)}, highest ${numberText(high)}`;
    });
    return `${this.title}${this.meaning ? ` (${this.meaning})` : ""}. ${parts.join(". ") || "No value yet"}. Arrow keys read values.`;
  }

  at(step) { return this.x === "decisions" ? `decision ${numberText(Math.round(step))}` : `${numberText(+step.toFixed(0))} s`; }

  scale() {
    let low = Infinity, high = -Infinity, first = Infinity, last = -Infinity;
    for (const { points } of this.lines) {
      for (const [step, value] of points) {
        low = Math.min(low, value); high = Math.max(high, value);
        first = Math.min(first, step); last = Math.max(last, step);
      }
    }
    if (high - low < 1e-12) { const pad = Math.abs(high) * 0.1 || 1; low -= pad; high += pad; }
    if (last <= first) last = first + 1;
    return { low, high, first, last };
  }

  draw() {
    const { context, width, height } = fitted(this.canvas);
    if (!this.lines.length || width < 2) return;
    const { low, high, first, last } = this.frame = this.scale();
    context.font = "11px system-ui, sans-serif";
    // The ends are labelled always, round numbers between them where there is room.
    const marks = [high, low, ...ticks(low, high)];
    const left = this.left = 10 + Math.max(...marks.map((mark) => context.measureText(shortText(mark)).width));
    const across = (step) => left + ((step - first) / (last - first)) * (width - left - RIGHT);
    const up = (value) => TOP + (1 - (value - low) / (high - low)) * (height - TOP - BOTTOM);
    this.across = across;
    this.axes(context, width, height, across, up, marks);
    this.lines.forEach((line) => {
      context.strokeStyle = themed(line.colour ?? "--accent");
      context.fillStyle = context.strokeStyle;
      context.lineWidth = 2;
      context.setLineDash(line.dashes ?? []);
      context.beginPath();
      line.points.forEach(([step, value], n) => context[n ? "lineTo" : "moveTo"](across(step), up(value)));
      context.stroke();
      context.setLineDash([]);
      if (line.points.length < 12) for (const [step, value] of line.points) { context.beginPath(); context.arc(across(step), up(value), 2.5, 0, 7); context.fill(); }
    });
    if (this.cursor !== null) {
      context.strokeStyle = themed("--text");
      context.lineWidth = 1;
      context.beginPath();
      context.moveTo(across(this.cursor), TOP);
      context.lineTo(across(this.cursor), height - BOTTOM);
      context.stroke();
    }
  }

  axes(context, width, height, across, up, marks) {
    const { first, last } = this.frame, { left } = this;
    context.fillStyle = themed("--soft");
    context.strokeStyle = themed("--line");
    context.lineWidth = 1;
    context.textAlign = "right";
    const drawn = [];
    for (const mark of marks) {
      const y = up(mark);
      if (drawn.some((other) => Math.abs(other - y) < 11 + TURN)) continue;
      drawn.push(y);
      context.fillText(shortText(mark), left - 5, y + 4);
      context.beginPath(); context.moveTo(left, y); context.lineTo(width - RIGHT, y); context.stroke();
    }
    const unit = this.x === "decisions" ? "" : " s";
    const ends = [[first, "left"], [last, "right"]];
    for (const [step, align] of ends) { context.textAlign = align; context.fillText(shortText(step) + unit, across(step), height - BOTTOM + 13); }
    context.textAlign = "center";
    context.fillText(this.x, (left + width - RIGHT) / 2, height - 5);
    for (const step of ticks(first, last)) {
      const x = across(step);
      if (x - across(first) > 46 && across(last) - x > 46) context.fillText(shortText(step) + unit, x, height - BOTTOM + 13);
    }
  }

  point(x) {
    if (!this.across || !this.lines.length) return;
    const steps = this.lines[0].points.map(([step]) => step);
    this.place(steps.reduce((near, step) => (Math.abs(this.across(step) - x) < Math.abs(this.across(near) - x) ? step : near), steps[0]));
  }

  press(event) {
    if (!this.lines.length) return;
    const steps = this.lines[0].points.map(([step]) => step), here = steps.indexOf(this.cursor);
    const page = Math.max(1, Math.round(steps.length / 10));
    const to = { ArrowLeft: here < 0 ? steps.length - 1 : here - 1, ArrowRight: here < 0 ? steps.length - 1 : here + 1, PageUp: here + page, PageDown: here - page, Home: 0, End: steps.length - 1 }[event.key];
    if (event.key === "Escape") this.place(null);
    if (to === undefined) return;
    event.preventDefault();
    event.stopPropagation();
    this.place(steps[Math.min(steps.length - 1, Math.max(0, to))]);
  }

  place(step) {
    this.cursor = step;
    const near = ({ points }) => points.reduce((best, point) => (Math.abs(point[0] - step) < Math.abs(best[0] - step) ? point : best));
    this.reading.textContent = step === null ? "" : `${this.at(step)}: ${this.lines.map((line) => `${this.lines.length > 1 ? `${line.name} ` : ""}${numberText(near(line)[1])}`).join(" · ")}`;
    this.draw();
  }
}

/** Charts are drawn anew where their size or the colour scheme changes. */
export function redrawn(box, charts) {
  const again = () => { for (const chart of charts()) chart.draw(); };
  new ResizeObserver(again).observe(box);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", again);
}
