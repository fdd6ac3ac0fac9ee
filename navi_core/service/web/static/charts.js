// Curves and shares of a run.

import { fitted, hue, themed } from "./colour.js";

const $ = (id) => document.getElementById(id);

export function numberText(value) {
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value);
  if (Number.isInteger(value) && size < 1e12) return value.toLocaleString("en");
  if (size !== 0 && (size < 0.001 || size >= 1e6)) return value.toExponential(2);
  if (size >= 1000) return Math.round(value).toLocaleString("en");
  return value.toFixed(size >= 100 ? 1 : size >= 10 ? 2 : 4);
}

/** One small chart to a metric; `history` holds steps and, by name, as many values (null: none). */
export class Metrics {
  constructor() {
    this.charts = new Map();
    // A phone that is turned, or another colour scheme: what is drawn is drawn again.
    const again = () => { if (this.last) this.show(this.last); };
    new ResizeObserver(again).observe($("metrics"));
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", again);
  }

  show({ steps, series }) {
    const box = $("metrics");
    const names = Object.keys(series).filter((name) => series[name].some((value) => value !== null));
    if (!names.length) return;
    this.last = { steps, series };
    if (!this.charts.size || names.some((name) => !this.charts.has(name))) {
      this.charts.clear();
      box.replaceChildren(...names.map((name) => this.chart(name)));
    }
    for (const name of names) this.draw(name, steps, series[name]);
  }

  clear() {
    this.charts.clear();
    this.last = null;
    const none = Object.assign(document.createElement("p"), { className: "empty", textContent: "No update has been published yet." });
    $("metrics").replaceChildren(none);
  }

  chart(name) {
    const root = document.createElement("div"), title = document.createElement("div");
    const value = document.createElement("div"), canvas = document.createElement("canvas");
    root.className = "chart";
    title.className = "name";
    title.textContent = title.title = name;
    value.className = "value";
    value.dataset.metric = name;
    root.append(title, value, canvas);
    this.charts.set(name, { value, canvas });
    return root;
  }

  draw(name, steps, values) {
    const { value, canvas } = this.charts.get(name);
    const last = values.findLast((v) => v !== null);
    value.textContent = numberText(last);
    value.dataset.value = String(last);
    const { context, width, height } = fitted(canvas);
    const known = values.map((v, n) => [steps[n], v]).filter(([, v]) => v !== null);
    if (known.length < 2) return;
    let low = Infinity, high = -Infinity;
    for (const [, v] of known) { low = Math.min(low, v); high = Math.max(high, v); }
    if (high - low < 1e-12) { low -= 1; high += 1; }
    const first = known[0][0], span = known.at(-1)[0] - first || 1;
    context.strokeStyle = themed("--accent");
    context.lineWidth = 1.5;
    context.beginPath();
    known.forEach(([s, v], n) => {
      const x = 1 + ((s - first) / span) * (width - 2), y = 3 + (1 - (v - low) / (high - low)) * (height - 6);
      context[n ? "lineTo" : "moveTo"](x, y);
    });
    context.stroke();
  }
}

/** Where the time of an update goes, one bar to a phase. */
export function showStages(phases) {
  const parts = [];
  for (const [phase, stages] of Object.entries(phases)) {
    const total = stages.reduce((sum, [, ms]) => sum + ms, 0);
    if (!(total > 0)) continue;
    const bar = Object.assign(document.createElement("div"), { className: "shares" });
    const list = Object.assign(document.createElement("ul"), { className: "keylist" });
    const head = Object.assign(document.createElement("div"), { textContent: `${phase}: ${numberText(total)} ms` });
    [...stages].sort((a, b) => b[1] - a[1]).forEach(([name, ms], n) => {
      const part = document.createElement("i");
      part.style.width = `${(100 * ms) / total}%`;
      part.style.background = hue(n + 1, 50);
      bar.append(part);
      const line = document.createElement("li"), swatch = Object.assign(document.createElement("span"), { className: "swatch" });
      swatch.style.background = hue(n + 1, 50);
      const share = Object.assign(document.createElement("b"), { textContent: `${((100 * ms) / total).toFixed(1)} %` });
      share.dataset.stage = `${phase}/${name}`;
      share.dataset.value = String(ms);
      line.append(swatch, name, share);
      list.append(line);
    });
    parts.push(head, bar, list);
  }
  if (!parts.length) parts.push(Object.assign(document.createElement("p"), { className: "empty", textContent: "Stage times come with the first update." }));
  $("stages").replaceChildren(...parts);
}

/** Reward terms of the last decision and their sums since the page saw the episode begin. */
export class Terms {
  constructor() { this.reset(); this.body = $("terms").tBodies[0]; }

  reset() { this.sums = {}; this.last = null; }

  clear() { this.reset(); this.body.replaceChildren(); $("reward-facts").textContent = ""; }

  show({ terms, reward, step, collided, weights }) {
    if (step !== this.last) {
      for (const [name, value] of Object.entries(terms)) this.sums[name] = (this.sums[name] ?? 0) + (value ?? 0);
      this.last = step;
    }
    const text = reward === null ? "no reward" : `${reward >= 0 ? "+" : ""}${reward.toFixed(3)} this decision`;
    $("reward-facts").textContent = `${text}${collided ? " · collision" : ""}`;
    const known = Object.entries(terms).filter(([, value]) => value !== null);
    const most = Math.max(0.2, ...known.map(([, value]) => Math.abs(value)));
    const lines = known.map(([name, value]) => {
      const line = document.createElement("tr");
      if (weights && !weights[name]) { line.className = "quiet"; line.title = "recorded, not part of the reward"; }
      const bar = Object.assign(document.createElement("div"), { className: "bar" }), fill = document.createElement("i");
      const share = (50 * Math.abs(value)) / most;
      fill.style.width = `${share}%`;
      fill.style.left = value < 0 ? `${50 - share}%` : "50%";
      fill.className = value < 0 ? "minus" : "";
      bar.append(fill);
      const cells = [name, value.toFixed(3), bar, this.sums[name].toFixed(1)].map((content) => {
        const cell = document.createElement("td");
        cell.append(content);
        return cell;
      });
      cells[1].dataset.term = name;
      line.append(...cells);
      return line;
    });
    this.body.replaceChildren(...lines);
  }
}
