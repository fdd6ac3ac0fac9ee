// The service page: sessions, latency, what the gate did, versions, and further numbers of the servers.

import { Chart, numberText, redrawn } from "./charts.js";

const $ = (id) => document.getElementById(id);
const GATE = { "sent unchanged": "var(--good)", sent: "var(--good)", slowed: "var(--warn)", "held back": "var(--bad)" };
const charts = new Map();
redrawn($("latency"), () => charts.values());

function table(headings, rows) {
  const root = document.createElement("table"), head = root.createTHead().insertRow();
  headings.forEach((text, n) => {
    const cell = Object.assign(document.createElement("th"), { textContent: text });
    if (n) cell.className = "n";
    head.append(cell);
  });
  const body = root.createTBody();
  for (const row of rows) {
    const line = body.insertRow();
    row.forEach((content, n) => { const cell = line.insertCell(); cell.append(content); if (n) cell.className = "n"; });
  }
  const scroll = Object.assign(document.createElement("div"), { className: "scroll" });
  scroll.append(root);
  return scroll;
}

function facts(values) {
  const list = Object.assign(document.createElement("ul"), { className: "keylist" });
  for (const [name, value] of Object.entries(values)) {
    const line = document.createElement("li"), strong = document.createElement("b");
    strong.textContent = typeof value === "number" ? numberText(value) : String(value);
    strong.dataset.fact = name;
    line.append(name.replaceAll("_", " "), strong);
    list.append(line);
  }
  return list;
}

/** What the gate did, as one bar with its shares in words. */
function gateBar(counts) {
  const total = Object.values(counts).reduce((sum, n) => sum + n, 0), parts = [];
  if (!total) return [Object.assign(document.createElement("p"), { className: "empty", textContent: "No motion was judged yet." })];
  const bar = Object.assign(document.createElement("div"), { className: "shares" });
  const list = Object.assign(document.createElement("ul"), { className: "keylist" });
  for (const [name, count] of Object.entries(counts)) {
    const share = `${((100 * count) / total).toFixed(1)} %`, part = document.createElement("i");
    part.style.width = `${(100 * count) / total}%`;
    part.style.background = GATE[name];
    bar.append(part);
    const line = document.createElement("li"), swatch = Object.assign(document.createElement("span"), { className: "swatch" });
    swatch.style.background = GATE[name];
    const text = Object.assign(document.createElement("b"), { textContent: share });
    text.dataset.gate = name;
    line.append(swatch, name, text);
    list.append(line);
    parts.push(`${share} ${name}`);
  }
  bar.setAttribute("role", "img");
  bar.setAttribute("aria-label", `Of ${numberText(total)} motions: ${parts.join(", ")}.`);
  return [bar, list];
}

function latency(parts) {
  for (const { title, steps, series } of parts) {
    if (!charts.has(title)) {
      charts.set(title, new Chart({ title, meaning: "half of the batches take less than p50, 99 % less than p99 [ms]", x: "time" }));
      $("latency").append(charts.get(title).root);
    }
    charts.get(title).show([
      { name: "p50", steps, values: series.p50_ms },
      { name: "p99", steps, values: series.p99_ms, colour: "--other", dashes: [6, 4] },
    ]);
  }
}

export function showService({ sessions, latency: parts = [], gate = null, versions = {}, groups = {}, summary = "" }) {
  if (!parts.length) { charts.clear(); $("latency").replaceChildren(); }
  latency(parts);
  $("gate").replaceChildren(...(gate ? gateBar(gate) : []));
  $("versions").replaceChildren(facts(versions));
  $("sessions").replaceChildren(table(["session", "decision", "return", "reward", "expects", "gate"], sessions.map((s) => {
    const verdict = Object.assign(document.createElement("span"), { className: "gate", textContent: s.gate ?? "–" });
    if (s.gate) verdict.classList.add(s.gate.toLowerCase());
    return [String(s.session), numberText(s.steps), numberText(s.episode_return), numberText(s.reward), numberText(s.expected), verdict];
  })));
  const filled = Object.entries(groups).filter(([, values]) => Object.keys(values).length);
  $("numbers").replaceChildren(...filled.flatMap(([title, values]) => [Object.assign(document.createElement("div"), { textContent: title }), facts(values)]));
  $("service-facts").textContent = summary;
  // A card without content is not shown.
  const shown = { "latency-card": parts.length, "gate-card": gate, "versions-card": Object.keys(versions).length, "sessions-card": sessions.length, "numbers-card": filled.length };
  for (const [id, content] of Object.entries(shown)) $(id).hidden = !content;
}
