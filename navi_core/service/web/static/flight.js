// Flying by hand: keyboard, mouse, gamepad or two touch sticks become four axes, sent ten times a second.

const STEP = 100; // milliseconds between commands
const KEYS = {
  KeyW: [0, 1], KeyS: [0, -1], ArrowUp: [1, 1], ArrowDown: [1, -1], KeyR: [1, 1], KeyF: [1, -1],
  KeyD: [2, 1], KeyA: [2, -1], ArrowLeft: [3, 1], ArrowRight: [3, -1], KeyQ: [3, 1], KeyE: [3, -1],
};
const PRESSES = {
  Enter: "toggle", Space: "pause", KeyZ: "undo", Backspace: "undo", KeyX: "discard", KeyN: "respawn",
  BracketLeft: "previous", BracketRight: "next", KeyG: "assist",
};
const PAD_BUTTONS = { 0: "toggle", 1: "undo", 2: "respawn", 3: "pause", 5: "camera" };
const DEAD = 0.12; // of a stick's travel
const YAW_STEP = 0.3; // radians that a full command turns in one step

const $ = (id) => document.getElementById(id);

/** Does a control that has the focus take this key itself? */
function needs(control, code) {
  if (control.matches?.("input[type=number], select")) return true;
  if (control.matches?.("input[type=range]")) return code.startsWith("Arrow");
  return Boolean(control.matches?.("button, input")) && (code === "Enter" || code === "Space");
}

/** Show what the server has, once it changes: a box that was just clicked keeps its state until the answer. */
export function follow(box, on) {
  if (box.dataset.server !== String(on)) box.checked = on;
  box.dataset.server = on;
}

export class Flight {
  constructor(send) {
    this.send = send;
    this.held = new Set();
    this.sticks = { "stick-left": [0, 0], "stick-right": [0, 0] };
    this.pressed = [];
    this.toTurn = 0;
    this.state = { recording: false, paused: false };
    for (const name of ["finish", "pause", "undo", "discard", "respawn", "previous", "next", "export"]) {
      $(`do-${name}`).onclick = () => this.order(name);
    }
    $("do-record").onclick = () => this.order("toggle");
    $("do-keys").onclick = () => this.toggleKeys();
    $("assist").onchange = () => this.order("assist");
    $("sharp").onchange = (event) => send({ do: "view", sharp: event.target.checked });
    $("throttle").oninput = (event) => { $("throttle-value").textContent = `${event.target.value}\u00a0%`; };
    // After a click the keys keep flying the drone; after Tab the focus stays on the control.
    addEventListener("click", ({ detail }) => {
      const control = document.activeElement;
      if (detail && control?.matches("button, input[type=range], input[type=checkbox]")) control.blur();
    });
    for (const id of Object.keys(this.sticks)) this.stick($(id), id);
  }

  start() {
    if (this.timer) return;
    addEventListener("keydown", (event) => this.key(event, true));
    addEventListener("keyup", (event) => this.key(event, false));
    addEventListener("blur", () => this.held.clear());
    this.still = false;
    this.timer = setInterval(() => this.command(), STEP);
  }

  key(event, down) {
    if (!down) {
      // Always: else a key released while Ctrl is down would stay pressed. macOS reports no key release under Meta.
      if (event.key === "Meta") this.held.clear();
      this.held.delete(event.key === "Shift" ? "Shift" : event.code);
    }
    if (event.ctrlKey || event.metaKey || event.altKey || needs(event.target, event.code)) return;
    if (down && (event.key === "?" || (event.key === "Escape" && !$("keys").hidden))) this.toggleKeys();
    if (event.code in KEYS || event.key === "Shift") {
      const code = event.key === "Shift" ? "Shift" : event.code;
      if (down) this.held.add(code);
      if (event.code in KEYS) event.preventDefault();
      if (!event.repeat) { $("input-kind").textContent = "keyboard"; this.command(); }
    } else if (down && event.code in PRESSES) {
      event.preventDefault();
      if (!event.repeat) this.order(PRESSES[event.code]);
    }
  }

  /** The list lies over the picture, so that the drone can be flown by it. */
  toggleKeys() {
    $("keys").hidden = !$("keys").hidden;
    $("do-keys").setAttribute("aria-expanded", String(!$("keys").hidden));
  }

  order(name) {
    if (name === "toggle") name = this.state.recording ? "finish" : "record";
    if (name === "camera") $("view3d").view?.cycle();
    else this.send(name === "assist" ? { do: name, on: !this.state.assist } : { do: name });
  }

  /** Turn by an angle [rad], counter-clockwise, as fast as the drone can. */
  turn(angle) {
    this.toTurn += angle;
    $("input-kind").textContent = "mouse";
  }

  /** Forward, vertical, lateral, yaw in [−1, 1]. */
  axes() {
    const axes = [0, 0, 0, 0];
    for (const code of this.held) if (code in KEYS) axes[KEYS[code][0]] += KEYS[code][1];
    this.gamepad(axes);
    const [turn, rise] = this.sticks["stick-left"], [side, ahead] = this.sticks["stick-right"];
    axes[0] += ahead; axes[1] += rise; axes[2] += side; axes[3] -= turn;
    const limit = ($("throttle").value / 100) * (this.held.has("Shift") ? 0.35 : 1);
    const shares = axes.map((a) => limit * Math.min(1, Math.max(-1, a)));
    const yaw = Math.min(1, Math.max(-1, shares[3] + this.toTurn / YAW_STEP));
    this.toTurn = Math.abs(this.toTurn) < 0.01 ? 0 : this.toTurn - (yaw - shares[3]) * YAW_STEP;
    return [...shares.slice(0, 3), yaw];
  }

  gamepad(axes) {
    const pad = [...(navigator.getGamepads?.() ?? [])].find((p) => p?.connected);
    if (!pad) return;
    const value = (n) => (Math.abs(pad.axes[n] ?? 0) > DEAD ? pad.axes[n] : 0);
    const add = [-value(3), -value(1), value(2), -value(0)];
    if (add.some((a) => a)) $("input-kind").textContent = "gamepad";
    add.forEach((a, n) => { axes[n] += a; });
    pad.buttons.forEach(({ pressed }, n) => {
      if (pressed && !this.pressed[n] && n in PAD_BUTTONS) this.order(PAD_BUTTONS[n]);
      this.pressed[n] = pressed;
    });
  }

  stick(element, id) {
    const knob = element.querySelector("i");
    const move = (event) => {
      const box = element.getBoundingClientRect(), reach = box.width / 2 - 20;
      let x = event.clientX - box.left - box.width / 2, y = event.clientY - box.top - box.height / 2;
      const far = Math.hypot(x, y);
      if (far > reach) { x *= reach / far; y *= reach / far; }
      knob.style.transform = `translate(${x}px, ${y}px)`;
      this.sticks[id] = [x / reach, -y / reach];
      $("input-kind").textContent = "touch";
    };
    const end = () => { knob.style.transform = ""; this.sticks[id] = [0, 0]; };
    element.addEventListener("pointerdown", (event) => { element.setPointerCapture(event.pointerId); move(event); });
    element.addEventListener("pointermove", (event) => { if (event.pressure || event.buttons) move(event); });
    for (const name of ["pointerup", "pointercancel", "lostpointercapture"]) element.addEventListener(name, end);
  }

  /** An idle page sends one hover command and is silent then: a second page may fly the drone. */
  command() {
    const axes = this.axes(), still = axes.every((a) => a === 0);
    if (!still || !this.still) this.send({ do: "command", axes });
    this.still = still;
  }

  show(flight) {
    this.state = flight;
    document.body.classList.toggle("recording", flight.recording);
    $("do-record").textContent = flight.recording ? "Recording" : "Record";
    $("do-record").disabled = flight.recording || !flight.clone;
    $("do-record").title = flight.clone ? "" : "This explorer records no flights: end it and start navi explore SCENE --record.";
    $("do-finish").disabled = $("do-discard").disabled = !flight.recording;
    $("do-pause").textContent = flight.paused ? "Go on" : "Pause";
    $("recorded").textContent = flight.recording ? `${flight.recorded.toLocaleString("en")} of at most ${flight.limit.toLocaleString("en")} decisions, ${(flight.recorded * flight.decision_seconds).toFixed(1)} s, ${flight.contacts} contacts` : flight.clone ? "off" : "start navi explore SCENE --record to record";
    $("recorded").classList.toggle("soon", flight.recorded >= 0.9 * flight.limit);
    follow($("assist"), flight.assist);
    $("notice").textContent = flight.notice || "\u00a0";
    const rows = flight.scenes, [total, flights] = ["decisions", "flights"].map((name) => rows.reduce((sum, row) => sum + row[name], 0));
    $("flight-scene").textContent = `${flight.number + 1} of ${rows.length}: ${rows[flight.number].scene}`;
    $("scenes-facts").textContent = `${rows.filter((row) => row.flights).length} of ${rows.length} recorded, ${total} decisions, ${((total * flight.decision_seconds) / 60).toFixed(1)} min`;
    $("clone").hidden = !flight.clone || !total;
    $("clone-when").textContent = flights < 2 ? "Record one more flight, which is held out; then clone:" : "Clone what is recorded:";
    $("clone-command").textContent = flight.clone;
    const key = JSON.stringify([flight.number, rows]);
    if (key === this.shown) return;
    this.shown = key;
    $("scenes").tBodies[0].replaceChildren(...rows.map((row, number) => {
      const line = document.createElement("tr"), go = document.createElement("button");
      line.className = number === flight.number ? "here" : "";
      if (line.className) go.setAttribute("aria-current", "true");
      go.textContent = row.scene;
      go.onclick = () => this.send({ do: "scene", number });
      const bar = document.createElement("progress");
      Object.assign(bar, { max: Math.max(1, ...rows.map(({ decisions }) => decisions)), value: row.decisions });
      bar.setAttribute("aria-label", `recorded in ${row.scene}`);
      line.append(...[go, row.flights, row.decisions, ((row.decisions * flight.decision_seconds) / 60).toFixed(1), bar].map((content) => {
        const cell = document.createElement("td");
        cell.append(content);
        return cell;
      }));
      return line;
    }));
  }
}
