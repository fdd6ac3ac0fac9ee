// The training page: what runs and how far it is, its curves, where its time goes, and the reward of a decision.

import { Chart, numberText, redrawn } from "./charts.js";
import { hue } from "./colour.js";

const $ = (id) => document.getElementById(id);
// The six charts that say how a training fares; of alternatives the first that the learner has.
const FIRST = [
  ["Reward", [["reward_ema"], ["nll"]]],
  ["Coverage", [["view_gain"], ["success_rate"], ["goal_progress"]]],
  ["Collisions", [["collision_rate"], ["collision"]]],
  ["Entropy and KL", [["entropy", "approx_kl"], ["entropy"], ["epsilon", "loss"]]],
  ["Value fit", [["explained_variance"], ["td_mean"], ["validation_nll"]]],
  ["Speed", [["sps"]]],
];
const OTHER = { colour: "--other", dashes: [6, 4] };

/** Whole seconds in words. */
export function durationText(seconds) {
  if (seconds < 90) return `${Math.round(seconds)} s`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min`;
  return seconds < 172800 ? `${(seconds / 3600).toFixed(1)} h` : `${(seconds / 86400).toFixed(1)} days`;
}

/** Head of the page: preset, scenes, parent, progress and time left. */
export function showRun(run) {
  const known = Boolean(run.run);
  $("run-card").hidden = !known;
  if (!known) return;
  const some = run.scenes.length > 3 ? `${run.scenes.length} scenes (${run.scenes[0]} … ${run.scenes.at(-1)})` : run.scenes.join(", ");
  const count = (number) => number.toLocaleString("en");
  const rounded = run.total !== run.asked ? `, ${count(run.asked)} asked for: rollouts of ${count(run.rollout)} are whole` : "";
  const facts = {
    learner: run.algorithm, preset: run.preset, seed: run.seed, "flies in": some || "–",
    length: run.total === null ? "until it is stopped" : `${count(run.total)} decisions${rounded}`,
    "weights from": run.parent ? run.parent.split("/").at(-1).replace(/\.pt$/, "") : "none (new)",
  };
  $("run-facts").replaceChildren(...Object.entries(facts).map(([name, value]) => {
    const item = document.createElement("div");
    item.append(Object.assign(document.createElement("dt"), { textContent: name }), Object.assign(document.createElement("dd"), { textContent: value ?? "–" }));
    return item;
  }));
  const total = run.total === null ? "" : `of ${count(run.total)} · ${run.percent.toFixed(run.percent < 10 ? 1 : 0)} %`;
  const left = run.state === "running" && run.seconds_left ? ` · about ${durationText(run.seconds_left)} left` : "";
  $("progress-text").textContent = `decision ${count(run.step)} ${total}${left}`;
  $("progress").hidden = run.percent === null;
  $("progress").value = run.percent ?? 0;
  const options = [["", "no other run"], ["champion", "the champion's training"], ...run.choices.map((name) => [name, name])];
  const key = JSON.stringify([options, run.other]);
  if (key !== showRun.shown) {
    showRun.shown = key;
    $("other").replaceChildren(...options.map(([value, text]) => new Option(text, value, false, value === (run.other ?? ""))));
  }
}

export class Metrics {
  constructor() {
    this.charts = new Map();
    this.other = { name: null, steps: [], series: {} };
    redrawn($("metrics"), () => this.charts.values());
    $("more").addEventListener("toggle", () => { if (this.last) this.show(this.last); });
  }

  compare(other) {
    this.other = other;
    $("other-name").textContent = other.name ? `dashed: ${other.name}` : "";
    if (this.last) this.show(this.last);
  }

  show(message) {
    const { steps, series, meanings } = message;
    const names = Object.keys(series).filter((name) => series[name].some((value) => value !== null));
    if (!names.length) return;
    this.last = message;
    const key = names.join();
    if (key !== this.names) this.build(names, meanings);
    for (const [name, chart] of this.charts) {
      if (!$("more").open && !this.first.has(name)) {
        chart.value.dataset.value = String(series[name].findLast((v) => v !== null));
        continue;
      }
      const lines = [{ name: this.other.name ? "this run" : name, steps, values: series[name] }];
      if (this.other.series[name]) lines.push({ name: this.other.name, steps: this.other.steps, values: this.other.series[name], ...OTHER });
      chart.show(lines);
    }
  }

  build(names, meanings) {
    this.names = names.join();
    this.charts.clear();
    this.first = new Set();
    const boxes = [];
    for (const [title, choices] of FIRST) {
      const found = choices.find((all) => all.every((name) => names.includes(name)));
      if (!found) continue;
      const box = Object.assign(document.createElement("section"), { className: `panel n${found.length}` });
      box.append(Object.assign(document.createElement("h3"), { textContent: title }));
      for (const name of found) { this.first.add(name); box.append(this.chart(name, meanings)); }
      boxes.push(box);
    }
    const rest = names.filter((name) => !this.first.has(name));
    $("metrics").replaceChildren(...boxes);
    $("more").hidden = !rest.length;
    $("more-count").textContent = String(rest.length);
    $("more-charts").replaceChildren(...rest.map((name) => this.chart(name, meanings)));
  }

  chart(name, meanings) {
    const chart = new Chart({ title: name, meaning: meanings?.[name] ?? "", metric: name });
    this.charts.set(name, chart);
    return chart.root;
  }

  clear() {
    this.charts.clear();
    this.last = this.names = null;
    this.other = { name: null, steps: [], series: {} };
    $("more").hidden = true;
    $("more-charts").replaceChildren();
    const none = Object.assign(document.createElement("p"), { className: "empty", textContent: "No update has been made yet." });
    $("metrics").replaceChildren(none);
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
  $("stages-card").hidden = !parts.length;
  $("stages").replaceChildren(...parts);
}

/** Reward terms of the last decision: value × weight is the contribution of a term; contributions add up to the reward. */
export class Terms {
  constructor() { this.body = $("terms").tBodies[0]; }

  clear() { this.body.replaceChildren(); $("reward-facts").textContent = ""; }

  show({ terms, reward, collided, weights, units }) {
    const known = Object.entries(terms).filter(([, value]) => value !== null).map(([name, value]) => {
      const weight = weights?.[name] ?? 1;
      return { name, label: units?.[name] ? `${name} (${units[name]})` : name, value, weight, earned: value * weight };
    });
    const rest = reward === null ? 0 : reward - known.reduce((sum, { earned }) => sum + earned, 0);
    if (Math.abs(rest) > 5e-4) known.push({ name: "others", label: "others", value: rest, weight: 1, earned: rest });
    const text = reward === null ? "no reward" : `${signed(reward)} this decision`;
    $("reward-facts").textContent = `${text}${collided ? " · collision" : ""}`;
    known.sort((a, b) => Boolean(b.weight) - Boolean(a.weight));
    const most = Math.max(0.2, ...known.map(({ earned }) => Math.abs(earned)));
    const lines = known.map((term) => this.line(term, most));
    if (lines.length && reward !== null) {
      const total = row(["reward", "", "", "", signed(reward)]);
      total.className = "total";
      lines.splice(known.findLastIndex(({ weight }) => weight) + 1, 0, total);
    }
    this.body.replaceChildren(...lines);
    $("terms").hidden = !lines.length;
  }

  line({ name, label, value, weight, earned }, most) {
    const bar = Object.assign(document.createElement("div"), { className: "bar" }), fill = document.createElement("i");
    const share = (50 * Math.abs(earned)) / most;
    fill.style.width = `${share}%`;
    fill.style.left = earned < 0 ? `${50 - share}%` : "50%";
    fill.className = earned < 0 ? "minus" : "";
    bar.append(fill);
    const line = row(weight
      ? [label, value.toFixed(3), `× ${+weight.toPrecision(3)}`, bar, signed(earned)]
      : [label, value.toFixed(3), "weight 0", "", ""]);
    line.cells[1].dataset.term = name;
    if (!weight) { line.className = "quiet"; line.title = "recorded, not part of the reward"; }
    return line;
  }
}

function signed(value) { return `${value < 0 ? "" : "+"}${value.toFixed(3)}`; }

function row(contents) {
  const line = document.createElement("tr");
  for (const content of contents) line.insertCell().append(content);
  return line;
}
