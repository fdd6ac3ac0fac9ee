// Cameras of the 3-D view, and matrices of 16 numbers, column by column.

export const MODES = { first: "first person", chase: "chase", orbit: "orbit", top: "top-down" };
export const HOME = { first: [0, 0, 0], chase: [0, 0.5, 1.8], orbit: [0.7, 0.75, 7], top: [0, 1.5607, 12] }; // azimuth, tilt, metres

export function perspective(fov, aspect, near, far) {
  const f = 1 / Math.tan(fov / 2), d = 1 / (near - far);
  return [f / aspect, 0, 0, 0, 0, f, 0, 0, 0, 0, (far + near) * d, -1, 0, 0, 2 * far * near * d, 0];
}

export function lookAt(eye, at) {
  const unit = (v) => { const n = Math.hypot(...v) || 1; return v.map((c) => c / n); };
  const cross = (u, v) => [u[1] * v[2] - u[2] * v[1], u[2] * v[0] - u[0] * v[2], u[0] * v[1] - u[1] * v[0]];
  const dot = (u, v) => u[0] * v[0] + u[1] * v[1] + u[2] * v[2];
  const z = unit(eye.map((c, n) => c - at[n])), x = unit(cross([0, 1, 0], z)), y = cross(z, x);
  return [x[0], y[0], z[0], 0, x[1], y[1], z[1], 0, x[2], y[2], z[2], 0, -dot(x, eye), -dot(y, eye), -dot(z, eye), 1];
}

export function multiply(a, b) {
  const out = new Array(16).fill(0);
  for (let c = 0; c < 4; c++) for (let r = 0; r < 4; r++) for (let k = 0; k < 4; k++) out[4 * c + r] += a[4 * k + r] * b[4 * c + k];
  return out;
}

/** Planes of the view frustum: (a, b, c, d), inside is a x + b y + c z + d > 0. */
export function planesOf(m) {
  const row = (n) => [m[n], m[4 + n], m[8 + n], m[12 + n]], w = row(3);
  return [0, 1, 2].flatMap((n) => [w.map((c, k) => c + row(n)[k]), w.map((c, k) => c - row(n)[k])]);
}
