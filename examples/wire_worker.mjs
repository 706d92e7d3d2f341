// A client of flowmx's wire (docs/wire.md) for Node 18 or newer, without packages: frames, signatures, calls.
//
//   FLOWMX_SECRET_FILE=secret node wire_worker.mjs http://127.0.0.1:9090 [operation]
//
// calls an operation (by default "echo") with a header and two tensors, and prints the response as JSON.
// As a module: import { Peer, Tensor } from "./wire_worker.mjs".

import { createHash, createHmac, randomBytes, timingSafeEqual } from "node:crypto";
import { readFileSync } from "node:fs";
import { pathToFileURL } from "node:url";

const MAGIC = "FMX1";
const SCHEME = "FMX1-HMAC-SHA256";
const MEDIA_TYPE = "application/x-flowmx";
const ITEM_SIZE = {
  bool: 1, int8: 1, uint8: 1, int16: 2, uint16: 2, int32: 4, uint32: 4, int64: 8, uint64: 8,
  float16: 2, bfloat16: 2, float32: 4, float64: 8,
};
const ARRAYS = {
  Int8Array: "int8", Uint8Array: "uint8", Int16Array: "int16", Uint16Array: "uint16", Int32Array: "int32",
  Uint32Array: "uint32", BigInt64Array: "int64", BigUint64Array: "uint64", Float32Array: "float32",
  Float64Array: "float64",
};
const TYPES = Object.fromEntries(Object.entries(ARRAYS).map(([name, dtype]) => [dtype, globalThis[name]]));

/** A refusal by the service, with its kind and its text. */
export class Refused extends Error {
  constructor(kind, text) {
    super(text);
    this.kind = kind;
  }
}

/** A tensor: a dtype, a shape, and its bytes (little-endian, C order). */
export class Tensor {
  constructor(dtype, shape, bytes) {
    this.dtype = dtype;
    this.shape = shape;
    this.bytes = bytes;
  }

  /** The tensor of a typed array, by default of one dimension. */
  static of(array, shape = [array.length]) {
    return new Tensor(ARRAYS[array.constructor.name], shape, Buffer.from(array.buffer, array.byteOffset, array.byteLength));
  }

  /** The elements as a typed array (as bytes, where JavaScript has no such type). */
  array() {
    const bytes = Uint8Array.from(this.bytes); // a copy that starts where elements may start
    const type = TYPES[this.dtype];
    return type ? new type(bytes.buffer) : bytes;
  }
}

// msgpack, as much of it as headers use.

function packNumber(value) {
  if (typeof value === "number" && !Number.isSafeInteger(value)) {
    const packed = Buffer.alloc(9, 0xcb);
    packed.writeDoubleBE(value, 1);
    return packed;
  }
  if (value >= 0 && value < 128) return Buffer.from([Number(value)]);
  const packed = Buffer.alloc(9, value < 0 ? 0xd3 : 0xcf);
  if (value < 0) packed.writeBigInt64BE(BigInt(value), 1);
  else packed.writeBigUInt64BE(BigInt(value), 1);
  return packed;
}

function sized(tag, length, body) {
  const start = Buffer.alloc(5, tag);
  start.writeUInt32BE(length, 1);
  return Buffer.concat([start, ...body]);
}

/** The msgpack form of a value. */
export function pack(value) {
  if (value === null || value === undefined) return Buffer.from([0xc0]);
  if (typeof value === "boolean") return Buffer.from([value ? 0xc3 : 0xc2]);
  if (typeof value === "number" || typeof value === "bigint") return packNumber(value);
  if (typeof value === "string") return sized(0xdb, Buffer.byteLength(value), [Buffer.from(value)]);
  if (value instanceof Uint8Array) return sized(0xc6, value.length, [value]);
  if (Array.isArray(value)) return sized(0xdd, value.length, value.map(pack));
  const entries = Object.entries(value);
  return sized(0xdf, entries.length, entries.flatMap(([key, inner]) => [pack(key), pack(inner)]));
}

/** The value of bytes in msgpack. */
export function unpack(bytes) {
  const data = Buffer.from(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  let at = 0;
  const take = (count) => {
    if (at + count > data.length) throw new Error("the header ends early");
    return data.subarray(at, (at += count));
  };
  const whole = (big) => (big >= Number.MIN_SAFE_INTEGER && big <= Number.MAX_SAFE_INTEGER ? Number(big) : big);
  const text = (count) => take(count).toString("utf8");
  const list = (count) => Array.from({ length: count }, next);
  const map = (count) => Object.fromEntries(list(2 * count).reduce((pairs, item, index) => {
    if (index % 2) pairs[pairs.length - 1].push(item);
    else pairs.push([item]);
    return pairs;
  }, []));
  const read = {
    0xc0: () => null, 0xc2: () => false, 0xc3: () => true,
    0xc4: () => take(take(1).readUInt8()), 0xc5: () => take(take(2).readUInt16BE()), 0xc6: () => take(take(4).readUInt32BE()),
    0xca: () => take(4).readFloatBE(), 0xcb: () => take(8).readDoubleBE(),
    0xcc: () => take(1).readUInt8(), 0xcd: () => take(2).readUInt16BE(), 0xce: () => take(4).readUInt32BE(),
    0xcf: () => whole(take(8).readBigUInt64BE()),
    0xd0: () => take(1).readInt8(), 0xd1: () => take(2).readInt16BE(), 0xd2: () => take(4).readInt32BE(),
    0xd3: () => whole(take(8).readBigInt64BE()),
    0xd9: () => text(take(1).readUInt8()), 0xda: () => text(take(2).readUInt16BE()), 0xdb: () => text(take(4).readUInt32BE()),
    0xdc: () => list(take(2).readUInt16BE()), 0xdd: () => list(take(4).readUInt32BE()),
    0xde: () => map(take(2).readUInt16BE()), 0xdf: () => map(take(4).readUInt32BE()),
  };
  function next() {
    const tag = take(1)[0];
    if (tag < 0x80) return tag;
    if (tag < 0x90) return map(tag & 0x0f);
    if (tag < 0xa0) return list(tag & 0x0f);
    if (tag < 0xc0) return text(tag & 0x1f);
    if (tag >= 0xe0) return tag - 0x100;
    if (!(tag in read)) throw new Error(`the header has the msgpack type ${tag}, which is none of the wire`);
    return read[tag]();
  }
  const value = next();
  if (at !== data.length) throw new Error("bytes follow the header");
  return value;
}

// Frames.

/** The head of a frame (everything before the tensors' bytes) and the frame. */
export function encode(header, tensors = []) {
  const packed = pack({ ...header, tensors: tensors.map(({ dtype, shape }) => [dtype, shape]) });
  const start = Buffer.from(`${MAGIC}0000`);
  start.writeUInt32LE(packed.length, 4);
  const head = Buffer.concat([start, packed]);
  return { head, frame: Buffer.concat([head, ...tensors.map(({ bytes }) => bytes)]) };
}

/** The header, the tensors and the head of a frame. */
export function decode(frame) {
  if (frame.length < 8 || frame.toString("latin1", 0, 4) !== MAGIC) throw new Error("this is no frame");
  let at = 8 + frame.readUInt32LE(4);
  const head = frame.subarray(0, at);
  const { tensors: described = [], ...header } = unpack(head.subarray(8));
  const tensors = described.map(([dtype, shape]) => {
    const size = shape.reduce((product, length) => product * length, ITEM_SIZE[dtype]);
    return new Tensor(dtype, shape, frame.subarray(at, (at += size)));
  });
  if (at !== frame.length) throw new Error(`the frame has ${frame.length} bytes, and must have ${at}`);
  return { header, tensors, head };
}

// Signatures.

const sha256 = (data) => createHash("sha256").update(data).digest();

/** The digest of a frame, from its head and its tensors. */
export function digestOf(head, tensors) {
  return sha256(Buffer.concat([head, ...tensors.map(({ bytes }) => bytes)].map(sha256))).toString("hex");
}

/** The signature of some lines. */
export function sign(secret, ...lines) {
  return createHmac("sha256", secret).update(["FMX1", ...lines].join("\n")).digest("hex");
}

/** A service to call. */
export class Peer {
  constructor(address, { secret = null, node = "" } = {}) {
    this.address = address.replace(/\/$/, "");
    this.secret = secret;
    this.node = node;
  }

  /** Call an operation; returns the header and the tensors of the answer. */
  async call(operation, header = {}, tensors = []) {
    const url = new URL(`${this.address}/v1/${operation}`);
    const { head, frame } = encode(this.node ? { node: this.node, ...header } : header, tensors);
    const nonce = randomBytes(16).toString("hex");
    const headers = { "Content-Type": MEDIA_TYPE, ...this.#signature(url.pathname, nonce, digestOf(head, tensors)) };
    const response = await fetch(url, { method: "POST", headers, body: frame });
    if (response.headers.get("content-type") !== MEDIA_TYPE) throw new Refused("unknown", `answered ${response.status}`);
    const answer = decode(Buffer.from(await response.arrayBuffer()));
    if (answer.header.error) throw new Refused(answer.header.error.kind, answer.header.error.text);
    this.#check(response, nonce, digestOf(answer.head, answer.tensors));
    return answer;
  }

  #signature(path, nonce, digest) {
    if (!this.secret) return {};
    const time = String(Date.now());
    const signature = sign(this.secret, "request", "POST", path, this.node, time, nonce, digest);
    const fields = { node: this.node, time, nonce, digest, signature };
    return { Authorization: `${SCHEME} ${Object.entries(fields).map(([key, value]) => `${key}=${value}`).join(", ")}` };
  }

  #check(response, nonce, digest) {
    if (!this.secret) return;
    const wanted = `${SCHEME} digest=${digest}, signature=${sign(this.secret, "answer", String(response.status), nonce, digest)}`;
    const found = response.headers.get("flowmx-signature") ?? "";
    if (found.length !== wanted.length || !timingSafeEqual(Buffer.from(found), Buffer.from(wanted))) {
      throw new Error("the answer is not signed with the secret");
    }
  }
}

async function main([address, operation = "echo"]) {
  const file = process.env.FLOWMX_SECRET_FILE;
  const secret = file ? readFileSync(file, "utf8").trim() : null;
  const peer = new Peer(address, { secret, node: "javascript-0" });
  const tensors = [Tensor.of(Float32Array.of(1, -2.5, 3), [3, 1]), Tensor.of(BigInt64Array.of(7n, -(2n ** 40n)))];
  try {
    const answer = await peer.call(operation, { id: "1", number: -70000, share: 0.5, list: [null, true, "ü"] }, tensors);
    const shown = answer.tensors.map((tensor) => ({ dtype: tensor.dtype, shape: tensor.shape, values: [...tensor.array()].map(Number) }));
    console.log(JSON.stringify({ header: answer.header, tensors: shown }));
  } catch (error) {
    console.error(`${error.kind ?? error.name}: ${error.message}`);
    process.exitCode = 1;
  }
}

if (process.argv[1] && import.meta.url === pathToFileURL(process.argv[1]).href) await main(process.argv.slice(2));
