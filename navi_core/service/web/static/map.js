// The place from above with the path flown.

import { fitted, hue } from "./colour.js";
import { PointCloud, VOXEL } from "./points.js";

const LEVEL = 0.4; // metres above and below the drone that a map without a picture shows
const MAX_TRAJECTORY = 20000;
const PATH = "#d55e00", CASING = "#fff";

const MEANINGS = { floor: [246, 246, 246], "seen floor": [106, 140, 175], furniture: [222, 200, 155], wall: [31, 31, 31], "out of reach": [196, 199, 204], "nothing below": [255, 255, 255] }; // as the engine colours maps

export class FlightMap {
  constructor() {
    this.canvas = document.getElementById("map");
    this.facts = document.getElementById("map-facts");
    this.reading = document.getElementById("map-reading");
    this.picture = document.createElement("canvas");
    this.trajectory = [];
    this.points = new PointCloud();
    this.canvas.addEventListener("pointermove", (event) => this.point(event));
    this.canvas.addEventListener("pointerleave", () => { this.reading.innerHTML = "&nbsp;"; });
    this.canvas.addEventListener("keydown", (event) => this.key(event));
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
    this.place = this.goal = this.pose = this.cursor = null;
    this.facts.textContent = "";
    this.draw();
  }

  add(frame) {
    const [x, y, z, yaw] = frame.pose, last = this.trajectory.at(-1);
    if (!last || last[0] !== x || last[1] !== y || last[2] !== z) this.trajectory.push([x, y, z]);
    if (this.trajectory.length > MAX_TRAJECTORY) this.trajectory.splice(0, MAX_TRAJECTORY / 2);
    this.pose = { x, y, z, yaw };
    this.goal = frame.goal ?? null;
    this.points.collect(frame);
    this.draw();
  }

  draw() {
    const { context, width, height } = fitted(this.canvas);
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
    if (this.cursor) this.dot(context, ...to(...this.cursor), [[8, CASING], [6.5, "#000"], [4, CASING]]);
    this.bar(context, width, height, scale);
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

  point(event) {
    const box = this.canvas.getBoundingClientRect(), place = this.extent();
    if (!place) return;
    const scale = place.size / box.width;
    this.read(place.corner[0] + (event.clientX - box.left) * scale, place.corner[1] + (event.clientY - box.top) * scale);
  }

  /** Arrow keys move the place that is read, beginning at the drone; Escape ends it. */
  key(event) {
    const moves = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }, move = moves[event.code];
    if (!this.pose || event.ctrlKey || event.metaKey || event.altKey || !(move || event.code === "Escape")) return;
    event.preventDefault();
    event.stopPropagation();
    const [x, z] = this.cursor ?? [this.pose.x, this.pose.z], step = Math.max(0.1, this.extent().size / 80);
    this.cursor = move ? [x + step * move[0], z + step * move[1]] : null;
    if (this.cursor) this.read(...this.cursor); else this.reading.innerHTML = "&nbsp;";
    this.draw();
  }

  read(x, z) {
    const what = this.meaning(x, z), away = this.pose ? `, ${Math.hypot(x - this.pose.x, z - this.pose.z).toFixed(1)} m from the drone` : "";
    this.reading.textContent = `x ${x.toFixed(1)} m, z ${z.toFixed(1)} m${what ? `: ${what}` : ""}${away}`;
  }

  /** What the picture shows at a place, by its colour. */
  meaning(x, z) {
    if (!this.place) return "";
    const { corner, step } = this.place, u = Math.floor((x - corner[0]) / step), v = Math.floor((z - corner[1]) / step);
    if (u < 0 || v < 0 || u >= this.picture.width || v >= this.picture.height) return "";
    const { data } = this.picture.getContext("2d").getImageData(u, v, 1, 1);
    const far = ([, colour]) => colour.reduce((sum, value, c) => sum + (value - data[c]) ** 2, 0);
    return Object.entries(MEANINGS).reduce((best, one) => (far(one) < far(best) ? one : best))[0];
  }
}
