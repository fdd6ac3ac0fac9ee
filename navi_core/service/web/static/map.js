// The place from above with the path flown, or the points seen so far in 3-D.

import { fitted, hue, themed } from "./colour.js";

const LEVEL = 0.4; // metres above and below the drone that a map without a picture shows
const VOXEL = 0.15, MOST_POINTS = 60000, MAX_TRAJECTORY = 20000;
const PATH = "#d55e00", CASING = "#fff";

export class FlightMap {
  constructor() {
    this.canvas = document.getElementById("map");
    this.facts = document.getElementById("map-facts");
    this.reading = document.getElementById("map-reading");
    this.picture = document.createElement("canvas");
    this.trajectory = [];
    this.points = new Map();
    this.solid = false;
    this.angle = -0.6;
    this.tilt = 0.9;
    const flat = document.getElementById("show-flat"), solid = document.getElementById("show-solid");
    const choose = (is) => {
      this.solid = is;
      flat.setAttribute("aria-pressed", String(!is));
      solid.setAttribute("aria-pressed", String(is));
      this.draw();
    };
    flat.onclick = () => choose(false);
    solid.onclick = () => choose(true);
    this.canvas.addEventListener("pointermove", (event) => this.point(event));
    this.canvas.addEventListener("pointerleave", () => { this.reading.innerHTML = "&nbsp;"; });
    new ResizeObserver(() => this.draw()).observe(this.canvas);
  }

  setMap({ corner, metres_per_pixel: step, height, arrays }) {
    const [rows, columns] = arrays.image.shape;
    this.picture.width = columns;
    this.picture.height = rows;
    const context = this.picture.getContext("2d"), image = context.createImageData(columns, rows);
    for (let k = 0, n = rows * columns; k < n; k++) {
      for (let c = 0; c < 3; c++) image.data[4 * k + c] = arrays.image.data[3 * k + c];
      image.data[4 * k + 3] = 255;
    }
    context.putImageData(image, 0, 0);
    this.place = { corner, step, size: columns * step };
    this.facts.textContent = `${this.place.size.toFixed(1)} m across, cut at ${height.toFixed(1)} m`;
    this.draw();
  }

  setTrajectory({ arrays }) {
    const { data } = arrays.points;
    this.trajectory = [];
    for (let k = 0; k < data.length; k += 3) this.trajectory.push([data[k], data[k + 1], data[k + 2]]);
    this.points.clear();
  }

  forget() {
    this.trajectory = [];
    this.points.clear();
    this.place = this.goal = this.pose = null;
    this.facts.textContent = "";
    this.draw();
  }

  add(frame) {
    const [x, y, z, yaw] = frame.pose, last = this.trajectory.at(-1);
    if (!last || last[0] !== x || last[1] !== y || last[2] !== z) this.trajectory.push([x, y, z]);
    if (this.trajectory.length > MAX_TRAJECTORY) this.trajectory.splice(0, MAX_TRAJECTORY / 2);
    this.pose = { x, y, z, yaw };
    this.goal = frame.goal ?? null;
    this.collect(frame);
    this.draw();
  }

  /** Keep one point to a voxel, so that a long flight does not grow without bound. */
  collect({ pose: [x, y, z, yaw], arrays: { depth, semantic, valid }, max_distance: far }) {
    if (this.points.size >= MOST_POINTS) return;
    const [az, el] = depth.shape, stride = Math.max(1, Math.round(el / 48));
    for (let i = 0; i < az; i += stride) {
      const a = (2 * Math.PI * i) / az - yaw;
      const sa = Math.sin(a), ca = Math.cos(a);
      for (let j = 0; j < el; j += stride) {
        const at = i * el + j, d = depth.data[at];
        if (!valid.data[at] || d >= far) continue;
        const e = Math.PI / 2 - (Math.PI * j) / (el - 1), level = d * Math.cos(e);
        const px = x + level * sa, py = y + d * Math.sin(e), pz = z - level * ca;
        const key = `${Math.round(px / VOXEL)},${Math.round(py / VOXEL)},${Math.round(pz / VOXEL)}`;
        if (!this.points.has(key)) this.points.set(key, [px, py, pz, semantic.data[at]]);
      }
    }
  }

  draw() {
    const { context, width, height } = fitted(this.canvas);
    if (this.solid) this.drawSolid(context, width, height);
    else this.drawFlat(context, width, height);
  }

  /** Where the map lies; without a picture, around what was flown and seen at the drone's height. */
  extent() {
    if (this.place) return this.place;
    if (!this.pose) return null;
    const low = [this.pose.x - 3, this.pose.z - 3], high = [this.pose.x + 3, this.pose.z + 3];
    const take = (x, z) => {
      if (Number.isNaN(x)) return;
      low[0] = Math.min(low[0], x); high[0] = Math.max(high[0], x);
      low[1] = Math.min(low[1], z); high[1] = Math.max(high[1], z);
    };
    for (const [x, , z] of this.trajectory) take(x, z);
    if (this.goal) take(this.goal[0], this.goal[2]);
    for (const [x, y, z] of this.points.values()) if (Math.abs(y - this.pose.y) < LEVEL) take(x, z);
    const size = 1.06 * Math.max(high[0] - low[0], high[1] - low[1]);
    return { corner: [(low[0] + high[0] - size) / 2, (low[1] + high[1] - size) / 2], size };
  }

  drawFlat(context, width, height) {
    const place = this.extent();
    if (!place) return;
    const { corner, size } = place, scale = width / size;
    const to = (x, z) => [(x - corner[0]) * scale, (z - corner[1]) * scale];
    if (this.place) {
      context.imageSmoothingEnabled = false;
      context.drawImage(this.picture, 0, 0, width, height);
    } else {
      context.fillStyle = "#fff";
      context.fillRect(0, 0, width, height);
      const dot = Math.max(1.5, VOXEL * scale);
      for (const [x, y, z, id] of this.points.values()) {
        if (Math.abs(y - this.pose.y) >= LEVEL) continue;
        const [u, v] = to(x, z);
        context.fillStyle = hue(id, 45);
        context.fillRect(u - dot / 2, v - dot / 2, dot, dot);
      }
    }
    this.path(context, ([x, , z]) => to(x, z));
    if (this.goal) this.target(context, ...to(this.goal[0], this.goal[2]));
    if (this.pose) this.drone(context, ...to(this.pose.x, this.pose.z), this.pose.yaw);
    this.bar(context, width, height, scale);
  }

  /** The path with a white casing; points that are not numbers are gaps, where the drone was set elsewhere. */
  path(context, to) {
    context.beginPath();
    let gap = true;
    for (const point of this.trajectory) {
      if (Number.isNaN(point[0])) { gap = true; continue; }
      context[gap ? "moveTo" : "lineTo"](...to(point));
      gap = false;
    }
    context.lineJoin = "round";
    for (const [colour, wide] of [[CASING, 5], [PATH, 2.5]]) {
      context.strokeStyle = colour;
      context.lineWidth = wide;
      context.stroke();
    }
    const start = this.trajectory.find(([x]) => !Number.isNaN(x));
    if (start) this.dot(context, ...to(start), [[6, CASING], [4.5, PATH]]);
  }

  dot(context, x, y, rings) {
    for (const [radius, colour] of rings) {
      context.fillStyle = colour;
      context.beginPath();
      context.arc(x, y, radius, 0, 7);
      context.fill();
    }
  }

  drone(context, x, y, yaw) {
    context.save();
    context.translate(x, y);
    context.rotate(-yaw);
    context.beginPath();
    context.moveTo(0, -11);
    context.lineTo(7, 8);
    context.lineTo(0, 4);
    context.lineTo(-7, 8);
    context.closePath();
    context.fillStyle = "#000";
    context.strokeStyle = CASING;
    context.lineWidth = 2.5;
    context.stroke();
    context.fill();
    context.restore();
  }

  /** Where the drone is to fly. */
  target(context, x, y) {
    this.dot(context, x, y, [[9, CASING], [8, "#009e73"], [5, CASING], [3, "#009e73"]]);
  }

  bar(context, width, height, scale) {
    const metres = [0.5, 1, 2, 5, 10, 20, 50].findLast((m) => m * scale < width / 3) ?? 0.5;
    const x = 12, y = height - 14, w = metres * scale;
    context.fillStyle = "rgba(255,255,255,.85)";
    context.fillRect(x - 5, y - 16, w + 10, 24);
    context.strokeStyle = context.fillStyle = "#222";
    context.lineWidth = 2;
    context.beginPath();
    context.moveTo(x, y - 3); context.lineTo(x, y + 2); context.lineTo(x + w, y + 2); context.lineTo(x + w, y - 3);
    context.stroke();
    context.font = "11px system-ui, sans-serif";
    context.textAlign = "center";
    context.fillText(`${metres} m`, x + w / 2, y - 3);
  }

  drawSolid(context, width, height) {
    if (!this.pose || !this.points.size) return;
    const { x, y, z, yaw } = this.pose;
    const sa = Math.sin(this.angle), ca = Math.cos(this.angle), st = Math.sin(this.tilt), ct = Math.cos(this.tilt);
    let reach = 3;
    for (const [px, , pz] of this.points.values()) reach = Math.max(reach, Math.min(25, Math.hypot(px - x, pz - z)));
    const scale = (0.48 * width) / reach;
    const project = (px, py, pz) => {
      const u = (px - x) * ca + (pz - z) * sa, w = -(px - x) * sa + (pz - z) * ca, v = py - y;
      return [width / 2 + u * scale, height / 2 + (w * st - v * ct) * scale];
    };
    context.fillStyle = themed("--ground");
    context.fillRect(0, 0, width, height);
    // What lies above the drone would hide the rooms.
    const size = Math.max(1.2, VOXEL * scale * 0.7);
    for (const [px, py, pz, id] of this.points.values()) {
      if (py > y + 0.6) continue;
      const [u, v] = project(px, py, pz);
      context.fillStyle = hue(id, 38 + 26 * Math.min(1, Math.max(0, (py - y + 1.8) / 2.4)));
      context.fillRect(u, v, size, size);
    }
    this.path(context, ([px, py, pz]) => project(px, py, pz));
    if (this.goal) this.target(context, ...project(...this.goal));
    const [hx, hy] = project(x, y, z), [fx, fy] = project(x - Math.sin(yaw), y, z - Math.cos(yaw));
    this.drone(context, hx, hy, Math.atan2(-(fx - hx), -(fy - hy)));
  }

  point(event) {
    const box = this.canvas.getBoundingClientRect();
    if (this.solid) {
      if (event.buttons) {
        this.angle -= event.movementX * 0.01;
        this.tilt = Math.min(1.5, Math.max(0.15, this.tilt + event.movementY * 0.01));
        this.draw();
      }
      this.reading.textContent = "drag to turn";
      return;
    }
    const place = this.extent();
    if (!place) return;
    const scale = place.size / box.width;
    const x = place.corner[0] + (event.clientX - box.left) * scale;
    const z = place.corner[1] + (event.clientY - box.top) * scale;
    this.reading.textContent = `x ${x.toFixed(1)} m, z ${z.toFixed(1)} m`;
  }
}
