// One WebSocket: binary messages in, orders as JSON out. It comes back by itself.

const TYPES = { float32: Float32Array, uint8: Uint8Array, uint16: Uint16Array };

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

export class Connection {
  constructor(onMessage, onState) {
    this.onMessage = onMessage;
    this.onState = onState;
    this.wait = 250;
    this.open();
  }

  open() {
    const scheme = location.protocol === "https:" ? "wss:" : "ws:";
    this.socket = new WebSocket(`${scheme}//${location.host}/ws`);
    this.socket.binaryType = "arraybuffer";
    this.socket.onopen = () => { this.wait = 250; this.onState(true); };
    this.socket.onmessage = ({ data }) => this.onMessage(typeof data === "string" ? { ...JSON.parse(data), arrays: {} } : unpack(data));
    this.socket.onclose = () => {
      this.onState(false);
      setTimeout(() => this.open(), this.wait);
      this.wait = Math.min(2 * this.wait, 4000);
    };
  }

  send(order) {
    if (this.socket.readyState === WebSocket.OPEN) this.socket.send(JSON.stringify(order));
  }
}
