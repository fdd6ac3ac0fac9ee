// The points that a drone has seen so far, and their drawing on a plain canvas where WebGL2 is missing.

import { hue, themed } from "./colour.js";

export const VOXEL = 0.15;
const MOST_POINTS = 60000;

/** Direction of a ray by its bins, in the drone's frame turned by `yaw`: +Y up, yaw 0 faces −Z. */
export function direction(i, j, az, el, yaw) {
  const a = (2 * Math.PI * i) / az - yaw, e = Math.PI / 2 - (Math.PI * j) / (el - 1), level = Math.cos(e);
  return [level * Math.sin(a), Math.sin(e), -level * Math.cos(a)];
}

export class PointCloud {
  constructor() { this.points = new Map(); }

  clear() { this.points.clear(); }

  values() { return this.points.values(); }

  get size() { return this.points.size; }

  /** Keep one point to a voxel, so that a long flight does not grow without bound. */
  collect({ pose: [x, y, z, yaw], arrays: { depth, semantic, valid }, max_distance: far }) {
    if (this.points.size >= MOST_POINTS) return;
    const [az, el] = depth.shape, stride = Math.max(1, Math.round(el / 48));
    for (let i = 0; i < az; i += stride) {
      for (let j = 0; j < el; j += stride) {
        const at = i * el + j, d = depth.data[at];
        if (!valid.data[at] || d >= far) continue;
        const [dx, dy, dz] = direction(i, j, az, el, yaw), px = x + d * dx, py = y + d * dy, pz = z + d * dz;
        const key = `${Math.round(px / VOXEL)},${Math.round(py / VOXEL)},${Math.round(pz / VOXEL)}`;
        if (!this.points.has(key)) this.points.set(key, [px, py, pz, semantic.data[at]]);
      }
    }
  }
}

/** Draw points and path around a pose, seen from an azimuth and a tilt [rad]. */
export function drawPoints(context, width, height, { cloud, pose, path, azimuth, tilt }) {
  context.fillStyle = themed("--ground");
  context.fillRect(0, 0, width, height);
  if (!pose || !cloud.size) return;
  const [x, y, z, yaw] = pose;
  const sa = Math.sin(azimuth), ca = Math.cos(azimuth), st = Math.sin(tilt), ct = Math.cos(tilt);
  let reach = 3;
  for (const [px, , pz] of cloud.values()) reach = Math.max(reach, Math.min(25, Math.hypot(px - x, pz - z)));
  const scale = (0.48 * Math.min(width, 1.6 * height)) / reach;
  const project = (px, py, pz) => {
    const u = (px - x) * ca + (pz - z) * sa, w = -(px - x) * sa + (pz - z) * ca, v = py - y;
    return [width / 2 + u * scale, height / 2 + (w * st - v * ct) * scale];
  };
  // What lies above the drone would hide the rooms.
  const size = Math.max(1.2, VOXEL * scale * 0.7);
  for (const [px, py, pz, id] of cloud.values()) {
    if (py > y + 0.6) continue;
    const [u, v] = project(px, py, pz);
    context.fillStyle = hue(id, 38 + 26 * Math.min(1, Math.max(0, (py - y + 1.8) / 2.4)));
    context.fillRect(u, v, size, size);
  }
  context.strokeStyle = themed("--accent");
  context.lineWidth = 2;
  context.beginPath();
  path.forEach((point, n) => context[n ? "lineTo" : "moveTo"](...project(...point)));
  context.stroke();
  const [hx, hy] = project(x, y, z), [fx, fy] = project(x - 0.5 * Math.sin(yaw), y, z - 0.5 * Math.cos(yaw));
  context.fillStyle = context.strokeStyle = themed("--bad");
  context.beginPath();
  context.arc(hx, hy, 5, 0, 7);
  context.fill();
  context.beginPath();
  context.moveTo(hx, hy);
  context.lineTo(fx, fy);
  context.stroke();
}
