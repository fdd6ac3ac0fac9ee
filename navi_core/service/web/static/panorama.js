// The panorama in metres: forward in the middle, left on the left, up at the top.

import { NEAREST, TABLE, fitted, place, shade, themed } from "./colour.js";
import { nameOf } from "./view3d_overlay.js";

const FAR = 20; // metres at the dark end of the scale, in every frame, so that a colour keeps its meaning

export function metresText(d) { return d < 10 ? `${d.toFixed(2)} m` : `${d.toFixed(1)} m`; }

function degrees(angle, positive, negative) {
  const whole = Math.round(Math.abs(angle));
  if (whole === 0) return `0°`;
  return `${whole}° ${angle > 0 ? positive : negative}`;
}

export class Panorama {
  constructor() {
    this.canvas = document.getElementById("panorama");
    this.over = document.getElementById("panorama-over");
    this.reading = document.getElementById("reading");
    this.facts = document.getElementById("panorama-facts");
    this.scale = document.getElementById("scale");
    this.ticks = document.getElementById("scale-ticks");
    this.names = {};
    this.cursor = null;
    this.over.addEventListener("pointermove", (event) => this.point(event));
    this.over.addEventListener("pointerdown", (event) => this.point(event));
    this.over.addEventListener("pointerleave", (event) => { if (event.pointerType === "mouse") { this.cursor = null; this.read(); } });
    this.over.addEventListener("keydown", (event) => this.key(event));
    new ResizeObserver(() => this.overlay()).observe(this.over);
  }

  show(frame) {
    const { depth, semantic, valid } = frame.arrays;
    const [az, el] = depth.shape;
    this.frame = { az, el, depth: depth.data, semantic: semantic.data, valid: valid.data };
    this.facts.textContent = `${az} × ${el} rays, range ${frame.max_distance} m`;
    if (!this.drawn) this.legend();
    if (this.canvas.width !== az || this.canvas.height !== el) { this.canvas.width = az; this.canvas.height = el; }
    const context = this.canvas.getContext("2d");
    const image = context.createImageData(az, el);
    const half = az >> 1, out = image.data;
    for (let c = 0; c < az; c++) {
      const i = (c - half + az) % az;
      for (let j = 0; j < el; j++) {
        const at = i * el + j, to = 4 * (j * az + c);
        if (valid.data[at]) {
          const s = shade(place(depth.data[at], FAR));
          out[to] = TABLE[s]; out[to + 1] = TABLE[s + 1]; out[to + 2] = TABLE[s + 2];
        }
        out[to + 3] = 255;
      }
    }
    context.putImageData(image, 0, 0);
    this.overlay();
    this.read();
  }

  forget() {
    this.frame = this.cursor = null;
    this.canvas.getContext("2d").clearRect(0, 0, this.canvas.width, this.canvas.height);
    this.facts.textContent = "";
    this.reading.textContent = "No observation has come yet.";
    this.overlay();
  }

  legend() {
    this.drawn = true;
    const { context, width, height } = fitted(this.scale);
    for (let x = 0; x < width; x++) {
      const s = shade(x / Math.max(1, width - 1));
      context.fillStyle = `rgb(${TABLE[s]},${TABLE[s + 1]},${TABLE[s + 2]})`;
      context.fillRect(x, 0, 1, height);
    }
    const marks = [NEAREST, 0.5, 1, 2, 5, FAR];
    this.ticks.replaceChildren(...marks.map((m) => {
      const tick = document.createElement("span");
      tick.textContent = `${m}${m === FAR ? " m and more" : ""}`;
      tick.style.left = `${100 * place(m, FAR)}%`;
      return tick;
    }));
  }

  overlay() {
    const { context, width, height } = fitted(this.over);
    context.strokeStyle = "rgba(255,255,255,.28)";
    context.font = "600 12px system-ui, sans-serif";
    context.textAlign = "center";
    for (const [share, label] of [[0.25, "left"], [0.5, "ahead"], [0.75, "right"]]) {
      context.beginPath();
      context.moveTo(share * width, 0);
      context.lineTo(share * width, height);
      context.stroke();
      const half = context.measureText(label).width / 2 + 6;
      context.fillStyle = "#000c"; // the dark casing: labels are read over near, pale surfaces too
      context.fillRect(share * width - half, 2, 2 * half, 17);
      context.fillStyle = "#fff";
      context.fillText(label, share * width, 15);
    }
    context.setLineDash([4, 5]);
    context.beginPath();
    context.moveTo(0, height / 2);
    context.lineTo(width, height / 2);
    context.stroke();
    context.setLineDash([]);
    if (this.cursor && this.frame) {
      const { az, el } = this.frame;
      context.strokeStyle = themed("--accent");
      context.lineWidth = 2;
      const w = width / az, h = height / el;
      context.strokeRect(this.cursor.c * w - 1, this.cursor.j * h - 1, w + 2, h + 2);
    }
  }

  point(event) {
    if (!this.frame) return;
    const box = this.over.getBoundingClientRect(), { az, el } = this.frame;
    const c = Math.min(az - 1, Math.max(0, Math.floor(((event.clientX - box.left) / box.width) * az)));
    const j = Math.min(el - 1, Math.max(0, Math.floor(((event.clientY - box.top) / box.height) * el)));
    this.cursor = { c, j };
    this.overlay();
    this.read();
  }

  /** Arrow keys move the ray that is read, Escape reads the whole again. */
  key(event) {
    const moves = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }, move = moves[event.code];
    if (!this.frame || event.ctrlKey || event.metaKey || event.altKey || !(move || event.code === "Escape")) return;
    event.preventDefault();
    event.stopPropagation();
    const { az, el } = this.frame, { c, j } = this.cursor ?? { c: az >> 1, j: el >> 1 };
    this.cursor = move ? { c: (c + move[0] + az) % az, j: Math.min(el - 1, Math.max(0, j + move[1])) } : null;
    this.overlay();
    this.read();
  }

  read() {
    if (!this.frame) return;
    const { az, el, depth, semantic, valid } = this.frame;
    if (this.cursor) {
      const i = (this.cursor.c - (az >> 1) + az) % az, j = this.cursor.j, at = i * el + j;
      let angle = (360 * i) / az;
      if (angle > 180) angle -= 360;
      const where = `${degrees(angle, "right", "left")}, ${degrees(90 - (180 * j) / (el - 1), "up", "down")}`;
      const name = nameOf(this.names, semantic[at]);
      this.setReadout(valid[at] ? metresText(depth[at]) : "nothing within range", valid[at] ? `${where} · ${name}` : where);
      return;
    }
    let nearest = Infinity;
    for (let k = 0; k < depth.length; k++) if (valid[k] && depth[k] < nearest) nearest = depth[k];
    const ahead = el >> 1;
    this.setReadout(valid[ahead] ? metresText(depth[ahead]) : "nothing within range", `straight ahead${Number.isFinite(nearest) ? ` · nearest ${metresText(nearest)}` : ""} · point at the picture to read a ray`);
  }

  setReadout(value, rest) {
    const strong = document.createElement("b");
    strong.id = "reading-value";
    strong.textContent = value;
    this.reading.replaceChildren(strong, ` · ${rest}`);
  }
}
