// Colours of distance and of names.

const STOPS = [
  [0, [255, 250, 220]], [0.15, [255, 196, 92]], [0.3, [226, 92, 76]],
  [0.5, [142, 46, 120]], [0.75, [56, 34, 112]], [1, [14, 14, 44]],
];
export const NEAREST = 0.2; // metres at the warm end of the scale

/** Where a distance lies on the scale, 0 near to 1 far; the scale is logarithmic. */
export function place(metres, far) {
  return Math.min(1, Math.max(0, Math.log(metres / NEAREST) / Math.log(far / NEAREST)));
}

const TABLE = new Uint8Array(256 * 3);
for (let i = 0; i < 256; i++) {
  const t = i / 255;
  let k = 1;
  while (STOPS[k][0] < t) k++;
  const [a, from] = STOPS[k - 1], [b, to] = STOPS[k];
  for (let c = 0; c < 3; c++) TABLE[3 * i + c] = from[c] + ((to[c] - from[c]) * (t - a)) / (b - a);
}

/** Index into the colour table, three bytes to an entry. */
export function shade(t) { return 3 * Math.round(255 * t); }
export { TABLE };

/** A colour for the n-th of many things. */
export function hue(n, light = 55) { return `hsl(${Math.round(((n * 0.61803398875) % 1) * 360)} 55% ${light}%)`; }

/** The colour that the style sheet gives a name. */
export function themed(name) { return getComputedStyle(document.documentElement).getPropertyValue(name).trim(); }

/** A canvas as large as it is shown, and its context in CSS pixels. */
export function fitted(canvas) {
  const ratio = Math.min(2, window.devicePixelRatio || 1);
  const { width, height } = canvas.getBoundingClientRect();
  const w = Math.max(1, Math.round(width * ratio)), h = Math.max(1, Math.round(height * ratio));
  if (canvas.width !== w || canvas.height !== h) { canvas.width = w; canvas.height = h; }
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  return { context, width, height };
}
