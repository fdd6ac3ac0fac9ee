// The 3-D view: cameras, input by mouse, keys, touch and gamepad, crosshair, minimap, and a sentence for who cannot see.
// One call makes it: `const view = createView3d(host, { mode })`; then `view.take(message)` for each page message.

import { fitted } from "./colour.js";
import { token, unpack } from "./net.js";
import { PointCloud, direction, drawPoints } from "./points.js";
import { Scene3d } from "./scene3d.js";
import { HOME, MODES, lookAt, multiply, perspective, planesOf } from "./view3d_camera.js";
import { listen } from "./view3d_input.js";
import { between, drawOverlay, eighth, nameOf, nearestOf } from "./view3d_overlay.js";

const PATH = [0.84, 0.37, 0, 1], DRONE = [0.04, 0.05, 0.08, 1], GHOST = [0.8, 0.47, 0.65, 0.9], GOAL = [0.1, 0.56, 0.3, 1];
const WHITE = [1, 1, 1], BLACK = [0.02, 0.03, 0.06], SEEN = [106, 140, 175]; // SEEN: as the engine draws seen floor on maps
export const COLOURS = [PATH, [0, 0.45, 0.7, 1], [0, 0.62, 0.45, 1], [0.8, 0.47, 0.65, 1], [0.94, 0.89, 0.26, 1]]; // Okabe and Ito's
const RAYS = [0.2, 0.75, 1, 0.45], HAZE = [0.7, 0.78, 0.86], MOST_PATH = 20000, MOST_RAYS = 700;
const FIRST_FOV = 1.25, FOV = 0.9; // vertical [rad]
const COMPASS = ["north", "north-west", "west", "south-west", "south", "south-east", "east", "north-east"];

/** White around dark lines, black around light ones: a mark stands out from any surface by its own two colours. */
export const casingOf = ([r, g, b]) => (0.3 * r + 0.6 * g + 0.1 * b > 0.55 ? BLACK : WHITE);
const element = (tag, facts = {}, ...inside) => { const made = Object.assign(document.createElement(tag), facts); made.append(...inside); return made; };

class View3d {
  constructor(host, { mode = "chase", rays = mode !== "first", turn = null } = {}) {
    this.host = host;
    this.turn = turn;
    this.mode = mode;
    this.home = structuredClone(HOME);
    this.cameras = structuredClone(HOME);
    this.pan = [0, 0, 0];
    this.path = [];
    this.cloud = new PointCloud();
    this.names = {};
    this.pointers = new Map();
    this.sharpness = 1;
    this.build(rays);
    try { this.scene = new Scene3d(this.canvas); } catch { this.lacking(); }
    listen(this);
    this.choose(mode);
  }

  build(rays) {
    this.canvas = element("canvas", { tabIndex: 0, className: "view3d-canvas" });
    this.canvas.setAttribute("role", "img");
    this.over = element("canvas", { className: "view3d-over" });
    this.over.setAttribute("aria-hidden", "true");
    this.status = element("p", { className: "view3d-hit" });
    this.status.setAttribute("role", "status");
    this.stage = element("div", { className: "view3d-stage" }, this.canvas, this.over, this.status);
    this.buttons = Object.entries(MODES).map(([name, label], n) => {
      const button = element("button", { type: "button", textContent: label, title: `key ${n + 1}`, onclick: () => this.choose(name) });
      button.dataset.camera = name;
      return button;
    });
    const tick = (label, checked, layers) => {
      const box = element("input", { type: "checkbox", checked, onchange: () => this.request() });
      return [box, element("label", { className: "tick" }, box, ` ${label}`), layers];
    };
    this.ticks = [tick("rays", rays, ["rays", "hits"]), tick("seen floor", true, ["seen"])];
    this.bar = element("div", { className: "view3d-bar" }, element("span", { className: "tabs" }, ...this.buttons), ...this.ticks.map(([, label]) => label));
    this.note = element("small", { className: "view3d-note" });
    this.sentence = element("p", { className: "reading view3d-sentence", textContent: "Nothing has been seen yet." });
    this.host.append(this.bar, this.stage, this.sentence, this.note);
    this.host.view = this;
    new ResizeObserver(() => this.request()).observe(this.stage);
  }

  lacking() {
    this.scene = null;
    this.stage.classList.add("view3d-plain");
    this.note.textContent = "This browser has no WebGL2, so the points that the drone has seen are shown instead of the scene. Turn on hardware acceleration, or use a current Firefox, Chromium or Safari.";
    for (const button of this.buttons) button.hidden = button.dataset.camera !== "orbit";
    this.ticks.forEach(([, label]) => { label.hidden = true; });
    this.mode = "orbit";
  }

  choose(name) {
    this.mode = this.scene ? name : "orbit";
    this.pan = [0, 0, 0];
    for (const button of this.buttons) button.setAttribute("aria-pressed", String(button.dataset.camera === this.mode));
    this.host.dataset.camera = this.mode;
    this.describe();
    this.request();
  }

  cycle() { const names = Object.keys(MODES); this.choose(names[(names.indexOf(this.mode) + 1) % names.length]); }

  // Messages of the page.

  take(message) { this[`take_${message.kind}`]?.(message); }

  take_hello({ title, names }) {
    if (this.title !== title) this.forget();
    this.title = title;
    Object.assign(this.names, names);
  }

  /** Bounds and mesh of the scene; a scene without bounds is unknown. */
  take_scene({ low, high, mesh }) {
    this.bounds = low ? { low, high } : null;
    this.grid();
    if (mesh !== this.shown) {
      this.shown = mesh;
      this.scene?.dropMesh();
      if (mesh) this.load(mesh);
    }
    if (!mesh && this.scene) this.note.textContent = "The publisher's scene is not on this machine, so the points seen so far are shown.";
    this.request();
  }

  async load(key) {
    if (!this.scene) return;
    const answer = await fetch(`scene/${key}.mesh`, { headers: { Authorization: `Bearer ${token()}` } });
    if (!answer.ok) { this.note.textContent = "The mesh of this scene is not stored here, so the points seen so far are shown."; return; }
    const message = unpack(await answer.arrayBuffer());
    if (key === this.shown) this.mesh(message);
  }

  /** Show a mesh message; also called directly by pages without a server. */
  mesh(message) {
    Object.assign(this.names, { ...message.names, ...this.names });
    this.scene?.setMesh(message);
    const count = message.triangles.toLocaleString("en");
    const less = 100 * message.step > 1;
    this.note.textContent = less ? `simplified for display: ${count} of ${message.before.toLocaleString("en")} triangles, corners within ${(50 * message.step).toFixed(1)} cm` : `${count} triangles`;
    this.scene?.setLines("points", null);
    this.request();
  }

  take_frame(frame) {
    const [x, y, z, yaw] = frame.pose, last = this.path.at(-1);
    if (!last || last[0] !== x || last[1] !== y || last[2] !== z) {
      this.path.push([x, y, z]);
      if (this.path.length > MOST_PATH) this.path.splice(0, MOST_PATH / 2);
      this.upload("path", this.path);
    }
    const here = this.shownPose(), jumps = !here || Math.hypot(x - here[0], y - here[1], z - here[2]) > 2;
    this.from = jumps ? frame.pose : here;
    this.pose = frame.pose;
    this.movedAt = performance.now();
    this.frame = frame;
    this.nearest = nearestOf(frame);
    if (!this.scene?.mesh) this.cloud.collect(frame);
    if (frame.goal) this.ring("goal", frame.goal, 0.3, GOAL, frame.goal[1]); else this.scene?.setLines("goal", null);
    this.rays(frame);
    if (frame.collided && !this.touching) this.flash();
    this.touching = frame.collided;
    this.describe();
    this.request();
  }

  take_trajectory({ arrays }) {
    const { data } = arrays.points;
    this.path = [];
    for (let k = 0; k < data.length; k += 3) this.path.push([data[k], data[k + 1], data[k + 2]]);
    this.from = null;
    this.upload("path", this.path);
    this.cloud.clear();
  }

  /** What an undo took back: a pale path that stays until the next flight of three seconds. */
  take_ghost({ arrays }) {
    const { data } = arrays.points, points = [];
    for (let k = 0; k < data.length; k += 3) points.push([data[k], data[k + 1], data[k + 2]]);
    this.ghost = points;
    this.host.dataset.ghost = points.length;
    this.scene?.setLines("ghost", points.length > 1 ? new Float32Array(points.flat()) : null, { chain: true, colour: GHOST, width: 2, casing: BLACK, through: true });
    if (points.length) this.ring("ghost-drone", points.at(-1), 0.15, GHOST, points.at(-1)[1]); else this.scene?.setLines("ghost-drone", null);
    clearTimeout(this.ghostTimer);
    if (points.length) this.ghostTimer = setTimeout(() => this.take_ghost({ arrays: { points: { data: [] } } }), 6000);
    this.request();
  }

  take_map({ corner, metres_per_pixel: step, arrays, floor }) {
    const [rows, columns] = arrays.image.shape, picture = this.picture ??= document.createElement("canvas");
    picture.width = columns;
    picture.height = rows;
    const context = picture.getContext("2d"), image = context.createImageData(columns, rows), { data } = arrays.image;
    for (let k = 0, n = rows * columns; k < n; k++) {
      for (let c = 0; c < 3; c++) image.data[4 * k + c] = data[3 * k + c];
      image.data[4 * k + 3] = 255;
    }
    context.putImageData(image, 0, 0);
    this.place = { corner, size: columns * step };
    if (floor !== this.floor) { this.floor = floor; this.grid(); }
    // The seen floor has one colour of its own in every picture.
    const seen = new Uint8Array(rows * columns);
    for (let k = 0; k < seen.length; k++) seen[k] = SEEN.every((value, c) => data[3 * k + c] === value) ? 255 : 0;
    this.scene?.setSeen(seen, columns, corner, columns * step, floor);
  }

  /** Paths by name, each a list of points, in one colour each with a legend: for pages without a server. */
  flights(paths) {
    const names = Object.keys(paths), all = Object.values(paths).flat(), boxes = this.scene?.mesh?.boxes;
    if (boxes) this.bounds = { low: [0, 1, 2].map((c) => Math.min(...boxes.map(({ low }) => low[c]))), high: [0, 1, 2].map((c) => Math.max(...boxes.map(({ top }) => top[c]))) };
    names.forEach((name, n) => this.upload(`path ${name}`, paths[name], COLOURS[n % COLOURS.length]));
    this.middle = all.map(([, y]) => y).sort((a, b) => a - b)[all.length >> 1];
    this.home.orbit[2] = this.home.top[2] = 2 + 0.85 * Math.hypot(...[0, 2].map((c) => (this.bounds?.high[c] ?? 5) - (this.bounds?.low[c] ?? 0)));
    this.cameras = structuredClone(this.home);
    for (const button of this.buttons) button.hidden ||= !["orbit", "top"].includes(button.dataset.camera);
    for (const [, label] of this.ticks) label.hidden = true;
    this.path = paths[names[0]];
    this.legend = element("ul", { className: "view3d-legend" }, ...names.map((name, n) => {
      const mark = element("i");
      mark.style.background = `rgb(${COLOURS[n % COLOURS.length].slice(0, 3).map((v) => Math.round(255 * v))})`;
      return element("li", {}, mark, name);
    }));
    this.sentence.replaceChildren(this.legend);
    this.canvas.setAttribute("aria-label", `The scene in 3-D with the paths of ${names.join(", ")}. Drag or arrow keys turn, plus and minus zoom, Home resets.`);
    this.grid();
    this.request();
  }

  forget() {
    this.path = [];
    this.cloud.clear();
    this.names = {};
    this.pose = this.from = this.frame = this.place = this.nearest = this.floor = null;
    this.scene?.forget();
    this.grid();
    this.request();
  }

  flash() {
    const near = this.nearest, what = near ? `${nameOf(this.names, near.id, "a surface")} ${near.side}` : "a surface";
    this.status.textContent = `Touched ${what}`;
    this.host.dataset.hits = Number(this.host.dataset.hits ?? 0) + 1;
    this.stage.classList.remove("hit");
    void this.stage.offsetWidth; // starts the animation anew
    this.stage.classList.add("hit");
    clearTimeout(this.hitTimer);
    this.hitTimer = setTimeout(() => { this.stage.classList.remove("hit"); this.status.textContent = ""; }, 1500);
  }

  /** The picture in words, for screen readers and for all who read. */
  describe() {
    if (!this.pose) return;
    const [x, y, z, yaw] = this.pose, parts = [`At ${x.toFixed(1)}, ${z.toFixed(1)} m, height ${y.toFixed(1)} m, facing ${COMPASS[eighth(yaw)]}`];
    if (this.nearest) parts.push(`nearest: ${nameOf(this.names, this.nearest.id)} ${this.nearest.metres.toFixed(1)} m ${this.nearest.side}`);
    if (Number.isFinite(this.frame?.seen_share)) parts.push(`${(100 * this.frame.seen_share).toFixed(0)} % of the floor seen`);
    if (this.frame?.slowed < 1) parts.push(this.frame.slowed > 0 ? `slowed to ${Math.round(100 * this.frame.slowed)} % before an obstacle` : "the way is blocked");
    this.sentence.textContent = `${parts.join("; ")}.`;
    // A screen reader would stumble over a label that changes with every picture.
    const now = Date.now();
    if (now - (this.labelledAt ?? 0) < 1000 && this.labelled === this.mode) return;
    Object.assign(this, { labelledAt: now, labelled: this.mode });
    const keys = this.mode === "first" ? "drag or Page Up and Page Down look up and down" : "drag or arrow keys turn, plus and minus zoom";
    this.canvas.setAttribute("aria-label", `${this.title ?? "The scene"} in 3-D, ${MODES[this.mode]} camera. ${this.sentence.textContent} Keys 1 to 4 choose the camera, ${keys}, Home resets.`);
  }

  // Layers.

  upload(name, points, colour = PATH) {
    const ends = points.flatMap((point, n) => (n && Number.isFinite(point[0]) && Number.isFinite(points[n - 1][0]) ? [...points[n - 1], ...point] : []));
    this.scene?.setLines(name, new Float32Array(ends), { colour, width: 3, casing: casingOf(colour) });
  }

  ring(name, [x, , z], radius, colour, y) {
    const line = [];
    for (let k = 0; k < 16; k++) for (const n of [k, k + 1]) line.push(x + radius * Math.sin((n * Math.PI) / 8), y, z + radius * Math.cos((n * Math.PI) / 8));
    this.scene?.setLines(name, new Float32Array(line), { colour, width: 2, casing: casingOf(colour), through: true });
  }

  drone([x, y, z, yaw]) {
    const s = Math.sin(yaw), c = Math.cos(yaw), at = (ahead, side, up = 0) => [x - ahead * s + side * c, y + up, z - ahead * c - side * s];
    const line = [at(0.32, 0), at(-0.12, 0.16), at(-0.12, 0.16), at(-0.04, 0), at(-0.04, 0), at(-0.12, -0.16), at(-0.12, -0.16), at(0.32, 0)];
    for (let k = 0; k < 12; k++) for (const n of [k, k + 1]) line.push(at(0.15 * Math.cos((n * Math.PI) / 6), 0.15 * Math.sin((n * Math.PI) / 6)));
    line.push([x, y, z], [x, this.floor ?? this.bounds?.low[1] ?? y - 1, z]);
    this.scene.setLines("drone", new Float32Array(line.flat()), { colour: DRONE, width: 2, casing: WHITE });
  }

  rays({ pose: [x, y, z, yaw], arrays: { depth, valid } }) {
    if (!this.scene || !this.ticks[0][0].checked) return;
    const [az, el] = depth.shape, stride = Math.max(1, Math.ceil(Math.sqrt((az * el) / MOST_RAYS))), lines = [], dots = [];
    for (let i = 0; i < az; i += stride) {
      for (let j = 0; j < el; j += stride) {
        if (!valid.data[i * el + j]) continue;
        const d = depth.data[i * el + j], [dx, dy, dz] = direction(i, j, az, el, yaw), hit = [x + d * dx, y + d * dy, z + d * dz];
        lines.push(x + 0.2 * dx, y + 0.2 * dy, z + 0.2 * dz, ...hit);
        dots.push(...hit);
      }
    }
    this.scene.setLines("rays", new Float32Array(lines), { colour: RAYS, width: 0.5 });
    this.scene.setLines("hits", new Float32Array(dots), { dots: true, colour: [1, 1, 1, 0.95], width: 1.2, casing: BLACK });
  }

  grid() {
    if (!this.scene || !this.bounds) return;
    const { low, high } = this.bounds, size = Math.max(high[0] - low[0], high[2] - low[2]), y = (this.floor ?? low[1]) + 0.01, line = [];
    const step = [1, 5, 10, 50, 100].find((metres) => size / metres < 60) ?? 500, [x0, x1, z0, z1] = [low[0], high[0], low[2], high[2]].map((v, n) => step * Math[n % 2 ? "ceil" : "floor"](v / step));
    for (let x = x0; x <= x1; x += step) line.push(x, y, z0, x, y, z1);
    for (let z = z0; z <= z1; z += step) line.push(x0, y, z, x1, y, z);
    this.scene.setLines("grid", new Float32Array(line), { colour: [0.1, 0.13, 0.2, 0.35], width: 0.5 });
  }

  // Cameras.

  shownPose() {
    if (!this.pose || !this.from) return this.pose;
    const t = between(0, (performance.now() - this.movedAt) / 110, 1), turn = Math.atan2(Math.sin(this.pose[3] - this.from[3]), Math.cos(this.pose[3] - this.from[3]));
    return [0, 1, 2].map((n) => this.from[n] + t * (this.pose[n] - this.from[n])).concat(this.from[3] + t * turn);
  }

  camera(pose, width, height) {
    const [x, y, z, yaw] = pose, [azimuth, tilt, metres] = this.cameras[this.mode];
    const first = this.mode === "first", ceiling = this.bounds?.high[1] ?? Infinity, floor = this.bounds?.low[1] ?? 0;
    const size = this.bounds ? Math.hypot(...[0, 1, 2].map((n) => this.bounds.high[n] - this.bounds.low[n])) : 20;
    const a = azimuth + (this.mode === "chase" || first ? yaw : 0), target = [x + this.pan[0], y + this.pan[1], z + this.pan[2]];
    let eye = [x, y, z], at = [x - Math.sin(a) * Math.cos(tilt), y + Math.sin(tilt), z - Math.cos(a) * Math.cos(tilt)];
    if (!first) {
      at = target;
      eye = [target[0] + metres * Math.sin(a) * Math.cos(tilt), target[1] + metres * Math.sin(tilt), target[2] + metres * Math.cos(a) * Math.cos(tilt)];
    }
    const far = Math.max(40, 2 * size + metres), camera = multiply(perspective(first ? FIRST_FOV : FOV, width / height, first ? 0.03 : 0.1, far), lookAt(eye, at));
    // What lies above the drone would hide the rooms.
    const cut = first ? 1e9 : Math.max(floor + 0.6, Math.min(y + 0.4, ceiling - 0.15));
    return { camera, eye, cut, focal: height / (first ? FIRST_FOV : FOV), far: first ? Math.min(size, 30) : size + 2 * metres, planes: planesOf(camera) };
  }

  request() { if (!this.wanted) { this.wanted = true; requestAnimationFrame(() => { this.wanted = false; this.draw(); }); } }

  draw() {
    const box = this.stage.getBoundingClientRect();
    if (!box.width || !box.height) return;
    const pose = this.shownPose();
    if (!this.scene) {
      const { context, width, height } = fitted(this.canvas), [azimuth, tilt] = this.cameras.orbit;
      drawPoints(context, width, height, { cloud: this.cloud, pose: this.pose, path: this.path, azimuth: -azimuth, tilt });
      return;
    }
    const ratio = Math.min(1.5, devicePixelRatio || 1) * this.sharpness, width = Math.max(1, Math.round(box.width * ratio)), height = Math.max(1, Math.round(box.height * ratio));
    if (this.canvas.width !== width || this.canvas.height !== height) Object.assign(this.canvas, { width, height });
    const hidden = new Set(this.ticks.flatMap(([tick, , layers]) => (tick.checked ? [] : layers)));
    if (this.mode === "first") for (const name of ["drone", "rays", "ghost-drone"]) hidden.add(name);
    if (pose) this.drone(pose);
    if (!this.scene.mesh && this.cloud.size) this.scene.setLines("points", new Float32Array([...this.cloud.values()].flatMap(([px, py, pz]) => [px, py, pz])), { dots: true, colour: [0.16, 0.2, 0.3, 1], width: 1.5 });
    this.adapt(() => this.scene.draw({ ...this.camera(pose ?? this.overview(), width, height), haze: HAZE, width, height, ratio, hidden }));
    drawOverlay(this, pose);
    this.host.dataset.drawn = Number(this.host.dataset.drawn ?? 0) + 1;
    // Without a graphics card the processor is left to the flight: one picture between two poses.
    if (this.pose && performance.now() - this.movedAt < 110) setTimeout(() => this.request(), this.scene.software ? 50 : 0);
  }

  overview() {
    if (!this.bounds) return [0, 1, 0, 0];
    const { low, high } = this.bounds;
    return [(low[0] + high[0]) / 2, this.middle ?? low[1] + 0.5 * (high[1] - low[1]), (low[2] + high[2]) / 2, 0];
  }

  /** Fewer pixels where drawing is slow, as without a graphics card: one picture in ten is timed. */
  adapt(draw) {
    const timed = Number(this.host.dataset.drawn ?? 0) % 10 === 5, { gl } = this.scene, begun = performance.now();
    draw();
    if (!timed) return;
    gl.readPixels(0, 0, 1, 1, gl.RGBA, gl.UNSIGNED_BYTE, new Uint8Array(4)); // waits until all is drawn
    const took = performance.now() - begun;
    if (took > 40) this.sharpness = Math.max(0.45, 0.85 * this.sharpness);
    else if (took < 12) this.sharpness = Math.min(1, 1.1 * this.sharpness);
  }
}

export function createView3d(host, options) { return new View3d(host, options); }
