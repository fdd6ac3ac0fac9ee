// Hands each message to the part of the page that shows it.

import { numberText } from "./charts.js";
import { Flight, follow } from "./flight.js";
import { FlightMap } from "./map.js";
import { Connection, token } from "./net.js";
import { Panorama } from "./panorama.js";
import { showService } from "./service.js";
import { Metrics, Terms, showRun, showStages } from "./training.js";
import { createView3d } from "./view3d.js";

const $ = (id) => document.getElementById(id);
const panorama = new Panorama(), map = new FlightMap(), metrics = new Metrics(), terms = new Terms();
let flight = null, view = null, refusalTimer = 0, dragging = false, compares = false, shown = null, version = null;

function phase(name, text = name) {
  document.body.dataset.phase = name;
  $("phase").dataset.phase = name;
  $("phase").textContent = text;
}

/** Numbers of another run must not stand under this one's name. */
function clear() {
  panorama.forget();
  map.forget();
  terms.clear();
  metrics.clear();
  showStages({});
  showService({ sessions: [] });
  showRun({});
  document.body.dataset.frame = "none";
  for (const id of ["pose", "speed", "step", "episode-return", "seen-share"]) $(id).textContent = "–";
  for (const id of ["training-facts", "stages-facts"]) $(id).textContent = "";
  $("goal-fact").hidden = true;
}

const show = {
  /** A server that was upgraded sends what this script may not know: it is fetched anew. */
  page(message) {
    if (version !== null && version !== message.version) location.reload();
    version = message.version;
  },
  hello(message) {
    view ??= createView3d($("view3d"), message.mode === "explorer" ? { mode: "first", turn: (angle) => flight.turn(angle) } : {});
    if (shown !== message.title) clear();
    shown = message.title;
    document.body.dataset.mode = message.mode;
    $("title").textContent = message.title;
    document.title = `${message.title} – Navi`;
    panorama.names = message.names ?? {};
    compares = Boolean(message.comparison);
    if (message.mode === "explorer") {
      flight.start();
      $("folder").textContent = message.folder ? `flights go to ${message.folder}` : "not recording: start with --record DIR";
      $("do-export").disabled = !message.folder;
    }
  },
  frame(message) {
    document.body.dataset.frame = "some";
    panorama.show(message);
    if (message.sharp !== undefined) follow($("sharp"), message.sharp);
    map.add(message);
    terms.show(message);
    const [x, y, z, yaw] = message.pose;
    $("pose").textContent = `${x.toFixed(2)}, ${y.toFixed(2)}, ${z.toFixed(2)} m, yaw ${Math.round((yaw * 180) / Math.PI)}°`;
    $("speed").textContent = message.speed === null ? "–" : `${message.speed.toFixed(2)} m/s`;
    $("step").textContent = message.step.toLocaleString("en");
    $("step").dataset.value = message.step;
    if (message.episode_return !== undefined) $("episode-return").textContent = numberText(message.episode_return);
    if (message.seen_share !== undefined) $("seen-share").textContent = `${(100 * message.seen_share).toFixed(1)} %`;
    $("goal-fact").hidden = !message.goal;
    if (message.goal) {
      const [gx, gy, gz] = message.goal, away = Math.hypot(gx - x, gy - y, gz - z);
      $("goal").textContent = `${gx.toFixed(2)}, ${gy.toFixed(2)}, ${gz.toFixed(2)} m, ${away.toFixed(2)} m away`;
    }
  },
  map(message) { map.setMap(message); },
  trajectory(message) { map.setTrajectory(message); },
  flight(message) { flight.show(message); },
  training(message) {
    // A recording of a service has no training.
    $("training-card").hidden = document.body.dataset.mode === "replay" && !message.steps.length;
    if (message.steps.length) metrics.show(message); else metrics.clear();
    showStages(message.stages);
    $("training-facts").textContent = message.facts;
    $("stages-facts").textContent = message.throughput;
  },
  service(message) { showService(message); },
  run(message) {
    showRun(message);
    const names = [message.run, message.other].filter(Boolean);
    $("comparison").hidden = !compares || names.length < 2;
    $("comparison").href = `compare?${[...names.map((name) => ["run", name]), ["token", token()]].map(([key, value]) => `${key}=${encodeURIComponent(value)}`).join("&")}`;
  },
  other(message) { metrics.compare(message); },
  status(message) { phase(message.phase, message.text); },
  sources(message) {
    $("source-pick").hidden = message.sources.length < 1;
    $("source").replaceChildren(...message.sources.map(({ key, name }) => new Option(name, key, false, key === message.chosen)));
    const [first, last] = message.drones ?? [0, 0];
    $("drone-pick").hidden = first === last;
    $("drone").min = first;
    $("drone").max = last;
    $("drone-range").textContent = `${first} to ${last}`;
    if (document.activeElement !== $("drone")) $("drone").value = message.row ?? "";
  },
  replay(message) {
    $("replay-facts").textContent = message.facts;
    $("replay-play").textContent = message.playing ? "Pause" : "Play";
    $("replay-time").textContent = `${message.at.toFixed(1)} of ${message.length.toFixed(1)} s`;
    if (!dragging) $("replay-at").value = message.length ? (1000 * message.at) / message.length : 0;
    $("replay-at").dataset.length = message.length;
  },
  refused({ reason }) {
    const box = $("refusal");
    box.textContent = reason;
    box.hidden = false;
    clearTimeout(refusalTimer);
    refusalTimer = setTimeout(() => { box.hidden = true; }, 6000);
  },
};

const connection = new Connection(
  (message) => { show[message.kind]?.(message); view?.take(message); },
  (state) => {
    $("token-card").hidden = state !== "token";
    phase(...{ open: ["waiting", "no data yet"], lost: ["lost", "server gone, trying again"], token: ["lost", "token needed"] }[state]);
  },
);
flight = new Flight((order) => connection.send(order));
$("token-form").onsubmit = (event) => {
  event.preventDefault();
  location.hash = `token=${encodeURIComponent($("token").value.trim().split("token=").at(-1))}`;
};
$("source").onchange = (event) => connection.send({ do: "source", key: event.target.value });
$("other").onchange = (event) => connection.send({ do: "other", key: event.target.value || null });
$("drone").onchange = (event) => connection.send({ do: "drone", row: Number(event.target.value) });
$("replay-play").onclick = () => connection.send({ do: "toggle" });
$("replay-at").oninput = () => { dragging = true; };
$("replay-at").onchange = (event) => {
  dragging = false;
  connection.send({ do: "seek", at: (event.target.value / 1000) * Number(event.target.dataset.length) });
};
