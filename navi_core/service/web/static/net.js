// One WebSocket: binary messages in, orders as JSON out. It reconnects by itself, also after a silent loss.

const SILENT = 6000; // longest silence [ms]: the server sends a beat every two seconds

const TYPES = { float32: Float32Array, uint8: Uint8Array, uint16: Uint16Array, uint32: Uint32Array };

const KEY = "navi-token", NO_TOKEN = 4401;
let known = "";

/** The token of this page: from the part of its link behind #, which is not sent to servers, else as kept before. */
export function token() {
  const given = new URLSearchParams(location.hash.slice(1)).get("token");
  try {
    if (given) localStorage.setItem(KEY, given);
    known = given ?? known ?? "";
    known ||= localStorage.getItem(KEY) ?? "";
  } catch { known = given ?? known; } // a browser may keep nothing
  if (given) history.replaceState(null, "", location.pathname + location.search);
  return known;
}

/** Take a message apart: header fields, and arrays by name with their shapes. */
export function unpack(buffer) {
  const length = new DataView(buffer).getUint32(0, true);
  const header = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, length)));
  const arrays = {};
  for (const { name, dtype, shape, offset } of header.arrays) {
    const count = shape.reduce((a, b) => a * b, 1);
    arrays[name] = { data: new TYPES[dtype](buffer, 4 + length + offset, count), shape };
  }
  return { ...header, arrays };
}

/** Messages are shown once a picture of the browser, the newest of each kind: a busy page skips some and never lags. */
export class Connection {
  constructor(onMessage, onState) {
    this.onMessage = onMessage;
    this.onState = onState;
    this.waiting = new Map();
    this.wait = 250;
    addEventListener("hashchange", () => {
      token();
      this.wait = 250;
      if (this.socket.readyState <= WebSocket.OPEN) { this.socket.close(); return; }
      clearTimeout(this.timer);
      this.open();
    });
    this.open();
    setInterval(() => this.watch(), 1000);
  }

  open() {
    const scheme = location.protocol === "https:" ? "wss:" : "ws:";
    const socket = this.socket = new WebSocket(`${scheme}//${location.host}/ws?token=${encodeURIComponent(token())}`);
    this.heard = Date.now();
    socket.binaryType = "arraybuffer";
    socket.onmessage = ({ data }) => {
      this.heard = Date.now();
      if (!this.isOpen) {
        this.isOpen = true;
        this.wait = 250;
        this.onState("open");
      }
      this.take(typeof data === "string" ? { ...JSON.parse(data), arrays: {} } : unpack(data));
    };
    socket.onclose = ({ code }) => this.again(code === NO_TOKEN ? "token" : "lost");
  }

  take(message) {
    if (!this.waiting.size) requestAnimationFrame(() => this.show());
    this.waiting.delete(message.kind); // the kinds keep the order of their newest messages
    this.waiting.set(message.kind, message);
  }

  show() {
    const messages = [...this.waiting.values()];
    this.waiting.clear();
    for (const message of messages) this.onMessage(message);
    const at = messages.find(({ kind }) => kind === "frame")?.at;
    if (at !== undefined) this.send({ do: "seen", at });
  }

  again(state = "lost") {
    this.waiting.clear();
    this.isOpen = false;
    this.onState(state);
    this.timer = setTimeout(() => this.open(), this.wait);
    this.wait = Math.min(2 * this.wait, 4000);
  }

  /** After sleep or a network change a connection is dead without a close event. */
  watch() {
    if (this.socket.readyState > WebSocket.OPEN || Date.now() - this.heard < SILENT) return;
    this.socket.onmessage = this.socket.onclose = null;
    this.socket.close();
    this.again();
  }

  send(order) {
    if (this.socket.readyState === WebSocket.OPEN) this.socket.send(JSON.stringify(order));
  }
}
