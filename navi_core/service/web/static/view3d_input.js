// Input of the 3-D view: mouse, touch and keys; the explorer's keys and gamepad are in flight.js.

import { Scene3d } from "./scene3d.js";
import { MODES } from "./view3d_camera.js";
import { between } from "./view3d_overlay.js";

const TURN = 0.08; // radians to a press of a key

export function listen(view) {
  const { canvas } = view;
  canvas.addEventListener("pointerdown", (event) => { canvas.setPointerCapture(event.pointerId); view.pointers.set(event.pointerId, [event.clientX, event.clientY]); canvas.focus({ preventScroll: true }); });
  for (const name of ["pointerup", "pointercancel", "lostpointercapture"]) canvas.addEventListener(name, (event) => view.pointers.delete(event.pointerId));
  canvas.addEventListener("pointermove", (event) => drag(view, event));
  canvas.addEventListener("wheel", (event) => { if (view.mode === "first" || (event.ctrlKey || document.activeElement === canvas) === false) return; event.preventDefault(); zoom(view, Math.exp(event.deltaY * 0.0015)); }, { passive: false });
  canvas.addEventListener("contextmenu", (event) => event.preventDefault());
  canvas.addEventListener("dblclick", () => reset(view));
  canvas.addEventListener("keydown", (event) => key(view, event));
  addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.repeat || event.target.matches?.("input[type=number], select, textarea")) return;
    const at = ["Digit1", "Digit2", "Digit3", "Digit4"].indexOf(event.code);
    if (at >= 0) view.choose(Object.keys(MODES)[at]);
    else if (event.code === "KeyV") view.cycle();
  });
  canvas.addEventListener("webglcontextlost", (event) => event.preventDefault());
  canvas.addEventListener("webglcontextrestored", () => { view.scene = new Scene3d(canvas); const { shown } = view; view.shown = undefined; if (view.bounds) view.take_scene({ ...view.bounds, mesh: shown }); });
}

function drag(view, event) {
  const before = view.pointers.get(event.pointerId);
  if (!before) return;
  const dx = event.clientX - before[0], dy = event.clientY - before[1];
  if (view.pointers.size > 1) {
    const [other] = [...view.pointers].filter(([id]) => id !== event.pointerId).map(([, at]) => at);
    const was = Math.hypot(before[0] - other[0], before[1] - other[1]), is = Math.hypot(event.clientX - other[0], event.clientY - other[1]);
    zoom(view, was / Math.max(1, is));
    shift(view, dx / 2, dy / 2);
  } else if (event.buttons & 2 || event.shiftKey) shift(view, dx, dy);
  else rotate(view, -0.006 * dx, 0.006 * dy);
  view.pointers.set(event.pointerId, [event.clientX, event.clientY]);
}

function rotate(view, right, down) {
  const camera = view.cameras[view.mode];
  // By mouse a person flies where they look: the drone turns, the camera pitches.
  if (view.mode === "first" && view.turn) view.turn(right); else camera[0] += right;
  camera[1] = view.mode === "first" ? between(-1.4, camera[1] - down, 1.4) : between(0.05, camera[1] + down, 1.5607);
  view.request();
}

function zoom(view, factor) { const camera = view.cameras[view.mode]; camera[2] = between(0.5, camera[2] * factor, 400); view.request(); }

function shift(view, dx, dy) {
  if (view.mode === "first") return;
  const [azimuth, , metres] = view.cameras[view.mode], a = azimuth + (view.mode === "chase" ? view.pose?.[3] ?? 0 : 0), k = metres / 700;
  view.pan[0] -= k * (dx * Math.cos(a) + dy * Math.sin(a));
  view.pan[2] -= k * (-dx * Math.sin(a) + dy * Math.cos(a));
  view.request();
}

function reset(view) { view.cameras[view.mode] = [...view.home[view.mode]]; view.pan = [0, 0, 0]; view.request(); }

function key(view, event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const first = view.mode === "first", turns = { ArrowLeft: [-TURN, 0], ArrowRight: [TURN, 0], ArrowUp: [0, TURN], ArrowDown: [0, -TURN] };
  if (event.code in turns && !(first && view.turn)) { const [right, up] = turns[event.code]; rotate(view, first ? -right : right, first ? -up : up); }
  else if (first && (event.code === "PageUp" || event.code === "PageDown")) rotate(view, 0, event.code === "PageUp" ? -TURN : TURN);
  else if (["+", "=", "-"].includes(event.key)) zoom(view, event.key === "-" ? 1.14 : 0.88);
  else if (event.code === "Home") reset(view);
  else return;
  event.preventDefault();
  event.stopPropagation();
}
