// What lies over the 3-D picture: crosshair, the nearest surface, the minimap.

import { fitted } from "./colour.js";

const SIDES = ["ahead", "ahead right", "to the right", "behind right", "behind", "behind left", "to the left", "ahead left"];
export const eighth = (angle) => ((Math.round(angle / (Math.PI / 4)) % 8) + 8) % 8;
export const between = (low, value, high) => Math.min(high, Math.max(low, value));

/** Name of what a ray hit; numbers that a modelling program gave (object_037) name nothing. */
export function nameOf(names, id, unnamed = "surface") {
  const name = names[id] ?? "";
  return /^(object|mesh|node|geometry|group|shape|part|primitive|default|unnamed)?[\s_.:-]*\d*$/i.test(name) ? unnamed : name;
}

/** The nearest ray that hit: metres, angle to the right of the heading [rad], semantic id, and the direction in words. */
export function nearestOf({ arrays: { depth, semantic, valid } }) {
  const [az, el] = depth.shape;
  let at = -1;
  for (let k = 0; k < depth.data.length; k++) if (valid.data[k] && (at < 0 || depth.data[k] < depth.data[at])) at = k;
  if (at < 0) return null;
  const angle = (2 * Math.PI * Math.floor(at / el)) / az, height = 0.5 - (at % el) / (el - 1);
  return { metres: depth.data[at], angle, id: semantic.data[at], side: height > 0.3 ? "above" : height < -0.3 ? "below" : SIDES[eighth(angle)] };
}

/** Crosshair, where the nearest surface is, and the map. */
export function drawOverlay(view, pose) {
  const { context, width, height } = fitted(view.over);
  if (!pose) return;
  if (view.mode === "first") {
    const cx = width / 2, cy = height / 2;
    for (const [style, line] of [["rgba(0,0,0,.75)", 4], ["#fff", 1.5]]) {
      context.strokeStyle = style;
      context.lineWidth = line;
      context.beginPath();
      for (const [dx, dy] of [[1, 0], [-1, 0], [0, 1], [0, -1]]) { context.moveTo(cx + 5 * dx, cy + 5 * dy); context.lineTo(cx + 12 * dx, cy + 12 * dy); }
      context.stroke();
    }
    const near = view.nearest;
    if (near && near.metres < 1) {
      const angle = near.angle - Math.PI / 2, colour = near.metres < 0.35 ? "#ff5a3c" : "#ffc233";
      for (const [style, line] of [["rgba(0,0,0,.75)", 9], [colour, 5]]) {
        context.strokeStyle = style;
        context.lineWidth = line;
        context.beginPath();
        context.arc(cx, cy, 46, angle - 0.35, angle + 0.35);
        context.stroke();
      }
      label(context, `${nameOf(view.names, near.id)} ${near.metres.toFixed(2)} m ${near.side}`, cx, cy + 74);
    }
    if (view.frame?.slowed < 1) label(context, view.frame.slowed > 0 ? `assist: slowed to ${Math.round(100 * view.frame.slowed)} %` : "assist: the way is blocked, turn or go back", cx, cy + 96);
  }
  if (view.place && view.mode !== "top") minimap(view, context, width, height, pose);
}

function label(context, text, x, y) {
  context.font = "600 13px system-ui, sans-serif";
  context.textAlign = "center";
  context.lineWidth = 4;
  context.lineJoin = "round";
  context.strokeStyle = "rgba(8,10,16,.9)";
  context.strokeText(text, x, y);
  context.fillStyle = "#fff";
  context.fillText(text, x, y);
}

function minimap(view, context, width, height, [x, , z, yaw]) {
  const size = Math.round(between(84, 0.3 * Math.min(width, height * 1.4), 190)), left = width - size - 10, top = 10, { corner, size: metres } = view.place;
  const to = (px, pz) => [left + ((px - corner[0]) / metres) * size, top + ((pz - corner[1]) / metres) * size];
  context.globalAlpha = 0.92;
  context.imageSmoothingEnabled = true;
  context.drawImage(view.picture, left, top, size, size);
  context.globalAlpha = 1;
  context.strokeStyle = "#10141b";
  context.lineWidth = 2;
  context.strokeRect(left, top, size, size);
  for (const [points, colour] of [[view.ghost ?? [], "#a8467f"], [view.path, "#d55e00"]]) {
    context.strokeStyle = colour;
    context.beginPath();
    points.forEach(([px, , pz], n) => context[n && Number.isFinite(points[n - 1][0]) ? "lineTo" : "moveTo"](...to(px, pz)));
    context.stroke();
  }
  context.save();
  context.translate(...to(x, z));
  context.rotate(-yaw);
  context.beginPath();
  for (const [px, py] of [[0, -9], [6, 6], [0, 3], [-6, 6]]) context.lineTo(px, py);
  context.closePath();
  context.fillStyle = "#d13a12";
  context.strokeStyle = "#fff";
  context.lineWidth = 1.5;
  context.fill();
  context.stroke();
  context.restore();
}
