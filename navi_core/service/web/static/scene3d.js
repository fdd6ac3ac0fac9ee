// WebGL2 drawing of a scene: quantised triangles coloured by name, thick lines, squares, and the seen floor.

const CHUNK = 2048; // triangles drawn or left out together
const DETAILS = [0, 0.01, 0.03]; // grids of the levels of detail [m]; 0: the mesh itself
const ERROR = 1.6; // pixels that a coarser level may be wrong
const MESH = [`#version 300 es
uniform mat4 camera; uniform vec4 grid; uniform highp sampler2D palette;
layout(location=0) in vec3 place; layout(location=1) in float name;
out vec3 world; out vec3 colour;
void main() {
  world = grid.xyz + grid.w * place;
  int id = int(name);
  colour = texelFetch(palette, ivec2(id & 255, id >> 8), 0).rgb;
  gl_Position = camera * vec4(world, 1.0);
}`, `#version 300 es
precision highp float;
uniform vec3 eye; uniform float cut; uniform vec3 haze; uniform float far;
in vec3 world; in vec3 colour; out vec4 pixel;
void main() {
  if (world.y > cut) discard;
  vec3 normal = normalize(cross(dFdx(world), dFdy(world))), away = eye - world;
  float distance = length(away), facing = abs(dot(normal, away / max(distance, 1e-4)));
  float light = 0.42 + 0.38 * facing + 0.12 * abs(normal.y) + 0.08 * abs(normal.x);
  pixel = vec4(mix(colour * light, haze, 0.55 * smoothstep(0.0, 1.0, distance / far)), 1.0);
}`];
// A segment is four corners of a strip, spread to a width in pixels; one of no length is a square.
const LINE = [`#version 300 es
uniform mat4 camera; uniform vec2 size; uniform float width; uniform float lift;
layout(location=0) in vec3 a; layout(location=1) in vec3 b;
void main() {
  vec4 p = camera * vec4(a, 1.0), q = camera * vec4(b, 1.0);
  float near = 0.02;
  if (p.w < near && q.w < near) { gl_Position = vec4(2.0, 2.0, 2.0, 1.0); return; }
  if (p.w < near) p = mix(p, q, (near - p.w) / (q.w - p.w));
  if (q.w < near) q = mix(q, p, (near - q.w) / (p.w - q.w));
  vec2 along = (q.xy / q.w - p.xy / p.w) * size;
  along = length(along) < 0.01 ? vec2(1.0, 0.0) : normalize(along);
  int corner = gl_VertexID;
  vec4 end = corner < 2 ? p : q;
  vec2 side = vec2(-along.y, along.x) * (corner % 2 == 0 ? 1.0 : -1.0) + along * (corner < 2 ? -1.0 : 1.0);
  end.xy += side * width * end.w / size;
  end.z -= lift * end.w;
  gl_Position = end;
}`, `#version 300 es
precision highp float;
uniform vec4 colour; out vec4 pixel;
void main() { pixel = colour; }`];
const FLOOR = [`#version 300 es
uniform mat4 camera; uniform vec4 area; uniform float level;
out vec2 at;
void main() {
  at = vec2(gl_VertexID & 1, gl_VertexID >> 1);
  gl_Position = camera * vec4(area.x + at.x * area.z, level, area.y + at.y * area.w, 1.0);
  gl_Position.z -= 0.00002 * gl_Position.w;
}`, `#version 300 es
precision highp float;
uniform sampler2D seen; uniform vec4 colour; in vec2 at; out vec4 pixel;
void main() {
  if (texture(seen, at).r < 0.5) discard;
  vec2 cell = abs(fract((at.x + at.y) * vec2(90.0, 0.0)) - 0.5);
  pixel = cell.x < 0.09 ? colour : vec4(0.55, 0.75, 1.0, 0.22);
}`];

/** Hue by name: the same name has the same colour in every scene; what carries a building is grey. */
export function colourOf(name) {
  if (/floor|ground|carpet|street|road/i.test(name)) return [0.76, 0.74, 0.7];
  if (/wall|ceiling|roof|column|stair|facade/i.test(name)) return [0.93, 0.92, 0.89];
  let hash = 2166136261;
  for (const letter of name) hash = Math.imul(hash ^ letter.codePointAt(0), 16777619);
  const hue = ((hash >>> 0) * 0.61803398875) % 1, light = 0.56 + 0.12 * ((hash >>> 9) % 3);
  return [0, 8, 4].map((n) => {
    const k = (n + hue * 12) % 12;
    return light - 0.5 * Math.min(light, 1 - light) * Math.max(-1, Math.min(k - 3, 9 - k, 1));
  });
}

/** Undo the differences of a mesh message: positions and names (4 to a vertex), indices, a box to each chunk. */
export function decodeMesh({ origin, step, arrays }) {
  const { high, positions, semantic } = arrays, count = semantic.data.length;
  const vertices = new Uint16Array(4 * count), faces = new Uint32Array(high.data.length);
  for (let c = 0; c < 4; c++) {
    for (let k = 0, sum = 0; k < count; k++) {
      sum += c < 3 ? positions.data[c * count + k] : semantic.data[k];
      vertices[4 * k + c] = sum;
    }
  }
  for (let k = 0, met = 0; k < faces.length; k++) {
    faces[k] = met - high.data[k];
    if (!high.data[k]) met++;
  }
  const levels = DETAILS.map((metres) => ({ metres, faces: metres ? coarser(vertices, faces, Math.round(metres / step)) : { faces, starts: null } })).filter((level) => level.faces);
  const boxes = [];
  for (let from = 0; from < faces.length; from += 3 * CHUNK) {
    const to = Math.min(faces.length, from + 3 * CHUNK), low = [65535, 65535, 65535], top = [0, 0, 0];
    for (let k = from; k < to; k++) {
      for (let c = 0; c < 3; c++) {
        const value = vertices[4 * faces[k] + c];
        if (value < low[c]) low[c] = value;
        if (value > top[c]) top[c] = value;
      }
    }
    const n = from / (3 * CHUNK), ranges = levels.map(({ faces: { starts } }) => (starts ? [starts[n], starts[n + 1] - starts[n]] : [from, to - from]));
    boxes.push({ ranges, low: low.map((v, c) => origin[c] + step * v), top: top.map((v, c) => origin[c] + step * v) });
  }
  return { vertices, levels: levels.map(({ metres, faces: { faces: indices } }) => ({ metres, indices })), boxes };
}

/** Triangles between the first vertices of grid cells, and where each chunk begins; null where the mesh is as coarse. */
function coarser(vertices, faces, cell) {
  if (cell < 12) return null;
  const first = new Map(), to = new Uint32Array(vertices.length / 4);
  for (let v = 0; v < to.length; v++) {
    let key = vertices[4 * v + 3];
    for (let c = 0; c < 3; c++) key = key * 5462 + Math.floor(vertices[4 * v + c] / cell);
    const known = first.get(key);
    if (known === undefined) first.set(key, v);
    to[v] = known ?? v;
  }
  const kept = new Uint32Array(faces.length), starts = [];
  let count = 0;
  for (let k = 0; k < faces.length; k += 3) {
    if (k % (3 * CHUNK) === 0) starts.push(count);
    const a = to[faces[k]], b = to[faces[k + 1]], c = to[faces[k + 2]];
    if (a !== b && b !== c && c !== a) { kept[count++] = a; kept[count++] = b; kept[count++] = c; }
  }
  return { faces: kept.slice(0, count), starts: [...starts, count] };
}

/** Is WebGL2 drawn by the processor? */
function isSoftware() {
  const gl = document.createElement("canvas").getContext("webgl2"), info = gl?.getExtension("WEBGL_debug_renderer_info");
  const name = info ? gl.getParameter(info.UNMASKED_RENDERER_WEBGL) : "";
  gl?.getExtension("WEBGL_lose_context")?.loseContext();
  return /swiftshader|llvmpipe|software|basic render/i.test(name);
}

export class Scene3d {
  /** @throws where the browser has no WebGL2. */
  constructor(canvas) {
    this.software = isSoftware();
    const gl = this.gl = canvas.getContext("webgl2", { antialias: !this.software, alpha: false, powerPreference: "low-power" });
    if (!gl) throw new Error("no WebGL2");
    this.mesh = null;
    this.layers = new Map();
    this.programs = { mesh: this.program(MESH), line: this.program(LINE), floor: this.program(FLOOR) };
    this.palette = gl.createTexture();
    this.seen = null;
    gl.enable(gl.DEPTH_TEST);
    gl.blendFunc(gl.SRC_ALPHA, gl.ONE_MINUS_SRC_ALPHA);
  }

  program([vertex, fragment]) {
    const gl = this.gl, program = gl.createProgram(), at = {};
    for (const [kind, text] of [[gl.VERTEX_SHADER, vertex], [gl.FRAGMENT_SHADER, fragment]]) {
      const shader = gl.createShader(kind);
      gl.shaderSource(shader, text);
      gl.compileShader(shader);
      gl.attachShader(program, shader);
    }
    gl.linkProgram(program);
    if (!gl.getProgramParameter(program, gl.LINK_STATUS)) throw new Error(gl.getProgramInfoLog(program) ?? "WebGL2 failed");
    for (let n = 0; n < gl.getProgramParameter(program, gl.ACTIVE_UNIFORMS); n++) {
      const { name } = gl.getActiveUniform(program, n);
      at[name] = gl.getUniformLocation(program, name);
    }
    return { program, at };
  }

  setMesh(message) {
    const gl = this.gl;
    this.dropMesh();
    const { vertices, levels, boxes } = decodeMesh(message), array = gl.createVertexArray();
    gl.bindVertexArray(array);
    this.buffer(gl.ARRAY_BUFFER, vertices);
    gl.enableVertexAttribArray(0);
    gl.vertexAttribPointer(0, 3, gl.UNSIGNED_SHORT, false, 8, 0);
    gl.enableVertexAttribArray(1);
    gl.vertexAttribPointer(1, 1, gl.UNSIGNED_SHORT, false, 8, 6);
    const buffers = levels.map(({ indices }) => this.buffer(gl.ELEMENT_ARRAY_BUFFER, indices));
    gl.bindVertexArray(null);
    const colours = new Uint8Array(4 * 65536);
    for (let id = 0; id < 65536; id++) {
      const colour = colourOf(message.names[id] ?? `id ${id}`);
      for (let c = 0; c < 3; c++) colours[4 * id + c] = 255 * colour[c];
    }
    this.texture(this.palette, gl.RGBA8, 256, 256, gl.RGBA, colours);
    this.mesh = { array, buffers, boxes, details: levels.map(({ metres }) => metres), grid: [...message.origin, message.step] };
  }

  dropMesh() {
    if (!this.mesh) return;
    this.gl.deleteVertexArray(this.mesh.array);
    for (const buffer of this.mesh.buffers) this.gl.deleteBuffer(buffer);
    this.mesh = null;
  }

  buffer(target, data) {
    const gl = this.gl, buffer = gl.createBuffer();
    gl.bindBuffer(target, buffer);
    gl.bufferData(target, data, gl.DYNAMIC_DRAW);
    return buffer;
  }

  texture(texture, inner, width, height, format, data) {
    const gl = this.gl;
    gl.bindTexture(gl.TEXTURE_2D, texture);
    gl.pixelStorei(gl.UNPACK_ALIGNMENT, 1);
    gl.texImage2D(gl.TEXTURE_2D, 0, inner, width, height, 0, format, gl.UNSIGNED_BYTE, data);
    for (const [name, value] of [[gl.TEXTURE_MIN_FILTER, gl.NEAREST], [gl.TEXTURE_MAG_FILTER, gl.NEAREST], [gl.TEXTURE_WRAP_S, gl.CLAMP_TO_EDGE], [gl.TEXTURE_WRAP_T, gl.CLAMP_TO_EDGE]]) gl.texParameteri(gl.TEXTURE_2D, name, value);
  }

  /** The floor that was seen: a byte to a cell, 255 or 0, `size` cells to an edge, at a height. */
  setSeen(mask, size, corner, edge, level) {
    const gl = this.gl;
    this.seen ??= { texture: gl.createTexture() };
    this.texture(this.seen.texture, gl.R8, size, size, gl.RED, mask);
    Object.assign(this.seen, { area: [corner[0], corner[1], edge, edge], level: level + 0.02 });
  }

  /**
   * Set a layer of lines.
   * @param name Of the layer; null points remove it.
   * @param points Float32Array: ends of segments, or with `chain` the points of one line; with `dots` squares.
   * @param style colour [r, g, b, a], width [px], casing (colour of a wider line below), through (also behind surfaces).
   */
  setLines(name, points, { chain = false, dots = false, ...style } = {}) {
    const gl = this.gl;
    let layer = this.layers.get(name);
    const per = chain || dots ? 3 : 6, count = points ? points.length / per - (chain ? 1 : 0) : 0;
    if (count < 1) { if (layer) layer.count = 0; return; }
    if (!layer) {
      layer = { array: gl.createVertexArray(), buffer: gl.createBuffer() };
      this.layers.set(name, layer);
    }
    gl.bindVertexArray(layer.array);
    gl.bindBuffer(gl.ARRAY_BUFFER, layer.buffer);
    gl.bufferData(gl.ARRAY_BUFFER, points, gl.DYNAMIC_DRAW);
    for (const place of [0, 1]) {
      gl.enableVertexAttribArray(place);
      gl.vertexAttribPointer(place, 3, gl.FLOAT, false, 4 * per, dots ? 0 : 12 * place);
      gl.vertexAttribDivisor(place, 1);
    }
    gl.bindVertexArray(null);
    Object.assign(layer, { count, style });
  }

  /** Forget lines and seen floor; the mesh stays. */
  forget() {
    for (const layer of this.layers.values()) layer.count = 0;
    this.seen = null;
  }

  /** Draw everything. `view`: camera (16), eye, cut [m], focal [px/rad], haze (3), far [m], width, height, planes (frustum), hidden layers. */
  draw(view) {
    const gl = this.gl, { width, height } = view;
    gl.viewport(0, 0, width, height);
    gl.clearColor(...view.haze, 1);
    gl.clear(gl.COLOR_BUFFER_BIT | gl.DEPTH_BUFFER_BIT);
    if (this.mesh) this.drawMesh(view);
    gl.enable(gl.BLEND);
    if (this.seen && !view.hidden.has("seen")) {
      const { program, at } = this.programs.floor;
      gl.useProgram(program);
      gl.bindTexture(gl.TEXTURE_2D, this.seen.texture);
      gl.uniformMatrix4fv(at.camera, false, view.camera);
      gl.uniform4fv(at.area, this.seen.area);
      gl.uniform1f(at.level, this.seen.level);
      gl.uniform4fv(at.colour, [0.02, 0.2, 0.45, 0.85]);
      gl.depthMask(false);
      gl.drawArrays(gl.TRIANGLE_STRIP, 0, 4);
      gl.depthMask(true);
    }
    const { program, at } = this.programs.line;
    gl.useProgram(program);
    gl.uniformMatrix4fv(at.camera, false, view.camera);
    gl.uniform2f(at.size, width, height);
    for (const [name, { array, count, style }] of this.layers) {
      if (!count || view.hidden.has(name)) continue;
      gl.bindVertexArray(array);
      if (style.through) gl.disable(gl.DEPTH_TEST);
      for (const [colour, wider, lift] of style.casing ? [[[...style.casing, style.colour[3]], 1.5, 0.0001], [style.colour, 0, 0.0002]] : [[style.colour, 0, 0.0001]]) {
        gl.uniform4fv(at.colour, colour);
        gl.uniform1f(at.width, Math.max(1, (style.width + 2 * wider) * view.ratio));
        gl.uniform1f(at.lift, lift);
        // Else the end of one segment's casing would hide the next segment.
        gl.depthMask(!wider);
        gl.drawArraysInstanced(gl.TRIANGLE_STRIP, 0, 4, count);
      }
      gl.depthMask(true);
      gl.enable(gl.DEPTH_TEST);
    }
    gl.bindVertexArray(null);
    gl.disable(gl.BLEND);
  }

  drawMesh(view) {
    const gl = this.gl, { program, at } = this.programs.mesh;
    gl.useProgram(program);
    gl.bindTexture(gl.TEXTURE_2D, this.palette);
    gl.uniformMatrix4fv(at.camera, false, view.camera);
    gl.uniform4fv(at.grid, this.mesh.grid);
    gl.uniform3fv(at.eye, view.eye);
    gl.uniform3fv(at.haze, view.haze);
    gl.uniform1f(at.cut, view.cut);
    gl.uniform1f(at.far, view.far);
    gl.bindVertexArray(this.mesh.array);
    // Few changes of the index buffer: level by level.
    const shown = this.mesh.boxes.filter((box) => box.low[1] <= view.cut && visible(box, view.planes)).map((box) => [box, this.level(box, view)]);
    this.mesh.buffers.forEach((buffer, level) => {
      gl.bindBuffer(gl.ELEMENT_ARRAY_BUFFER, buffer);
      let begin = 0, count = 0;
      const flush = () => { if (count) gl.drawElements(gl.TRIANGLES, count, gl.UNSIGNED_INT, 4 * begin); count = 0; };
      for (const [box, wanted] of shown) {
        if (wanted !== level) continue;
        const [from, length] = box.ranges[level];
        if (begin + count !== from) flush();
        if (!count) begin = from;
        count += length;
      }
      flush();
    });
    gl.bindVertexArray(null);
  }

  /** The coarsest level of detail whose error is small in pixels. */
  level({ low, top }, { eye, focal }) {
    const away = Math.hypot(...eye.map((v, c) => Math.max(low[c] - v, 0, v - top[c])));
    return this.mesh.details.findLastIndex((metres) => metres * focal <= (this.software ? 2 : 1) * ERROR * away);
  }
}

/** Is any corner of a box inside each plane (a, b, c, d: inside is a x + b y + c z + d > 0)? */
function visible({ low, top }, planes) {
  return planes.every(([a, b, c, d]) => a * (a > 0 ? top[0] : low[0]) + b * (b > 0 ? top[1] : low[1]) + c * (c > 0 ? top[2] : low[2]) + d > 0);
}
