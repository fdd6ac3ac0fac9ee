// Sessions, gate decisions and the experience buffer of a running service.

import { numberText } from "./charts.js";

const $ = (id) => document.getElementById(id);

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

export function showService({ sessions, groups, summary }) {
  const parts = [];
  if (sessions.length) {
    parts.push(table(["session", "step", "return", "reward", "expects", "gate"], sessions.map((s) => {
      const gate = Object.assign(document.createElement("span"), { className: "gate", textContent: s.gate ?? "–" });
      if (s.gate) gate.classList.add(s.gate.toLowerCase());
      return [String(s.session), numberText(s.steps), numberText(s.episode_return), numberText(s.reward), numberText(s.expected), gate];
    })));
  }
  for (const [title, values] of Object.entries(groups)) {
    if (!Object.keys(values).length) continue;
    parts.push(Object.assign(document.createElement("div"), { textContent: title }), facts(values));
  }
  $("service-facts").textContent = summary;
  if (!parts.length) {
    const none = Object.assign(document.createElement("p"), { className: "empty" });
    none.append("No service answers. Start one with ", Object.assign(document.createElement("code"), { textContent: "navi serve" }), ".");
    parts.push(none);
  }
  $("service").replaceChildren(...parts);
}
