// A worker of a distributed job in JavaScript (docs/wire.md), for Node 18 or newer, without packages.
//
//   FLOWMX_SCHEDULER=127.0.0.1:9091 FLOWMX_SECRET_FILE=secret node job_worker.mjs [rounds] [elements]
//
// joins the job, starts the key "w" together with the other workers (in Python: kv.init("w", ...)), pushes gradients of
// ones in synchronous rounds, prints of each round's value the least and the greatest element, and leaves. It gives signs
// of life meanwhile, follows the view, and asks again where a server or the scheduler does not answer.

import { createHash, randomUUID } from "node:crypto";
import { readFileSync } from "node:fs";
import { setTimeout as sleep } from "node:timers/promises";
import { pathToFileURL } from "node:url";

import { Peer, Refused, Tensor } from "./wire_worker.mjs";

const product = (shape) => shape.reduce((total, length) => total * length, 1);

/** The first eight bytes of a SHA-256: the same number in every language. */
export function stableHash(key) {
  const text = typeof key === "number" ? `i${key}` : `s${key}`;
  return createHash("sha256").update(text).digest().readBigUInt64LE(0);
}

/** The parts of keys, [key, piece, home, start, stop] each, by key; the keys of one batch, as [key, shape]. */
export class Layout {
  constructor(servers, bound = 1_000_000) {
    this.servers = servers;
    this.bound = bound;
    this.loads = Array(servers).fill(0);
    this.parts = new Map();
  }

  add(batch, itemSize = 4) {
    const less = (a, b) => (a < b ? -1 : a > b ? 1 : 0);
    const ordered = [...batch].sort(([a, one], [b, other]) =>
      product(other) - product(one) || less(stableHash(a), stableHash(b)));
    for (const [key, shape] of ordered) {
      const stretches = this.#stretches(key, shape);
      stretches.forEach(([home, start, stop]) => { this.loads[home] += (stop - start) * itemSize; });
      this.parts.set(key, stretches.map(([home, start, stop], piece) => [key, piece, home, start, stop]));
    }
  }

  #stretches(key, shape) {
    const size = product(shape);
    if (size < this.bound || this.servers === 1) return [[this.#leastLoaded(key), 0, size]];
    const unit = shape.length > 1 && shape[0] >= 8 * this.servers ? product(shape.slice(1)) : 1;
    const cut = (rank) => Math.floor((size / unit) * rank / this.servers) * unit;
    return [...this.loads.keys()].map((rank) => [rank, cut(rank), cut(rank + 1)]).filter(([, start, stop]) => start < stop);
  }

  #leastLoaded(key) {
    const first = Number(stableHash(key) % BigInt(this.servers));
    const order = (rank) => (rank - first + this.servers) % this.servers;
    return [...this.loads.keys()].reduce((best, rank) =>
      this.loads[rank] < this.loads[best] || (this.loads[rank] === this.loads[best] && order(rank) < order(best)) ? rank : best);
  }
}

/** This process in a job. */
export class Worker {
  constructor(scheduler, { secret = null, patience = 30_000 } = {}) {
    this.id = randomUUID().replaceAll("-", "");
    this.incarnation = BigInt(Date.now()) * 1_000_000n;
    this.patience = patience;
    this.rank = -1;
    this.view = null;
    this.doing = "starting";
    this.options = { secret, node: this.id };
    this.scheduler = new Peer(scheduler.includes("//") ? scheduler : `http://${scheduler}`, this.options);
    this.peers = new Map();
    this.beats = 0;
    this.turn = 0;
    this.rounds = {};
    this.numbers = new Map(); // by part: the number of this worker's last push
    this.acknowledged = new Map();
  }

  /** Take a place in the job, and wait until all places are taken. */
  async join() {
    await this.#register();
    this.beating = this.#beat();
    this.beating.catch((error) => { this.error = error; });
    while (this.view.phase === "forming") {
      this.#check();
      await sleep(20);
    }
    this.#check();
    this.homes = 1 + Math.max(...this.view.members.filter(({ role }) => role === "server").map(({ rank }) => rank));
    this.layout = new Layout(this.homes);
  }

  /** Say goodbye: rounds go on without this worker. */
  async leave() {
    this.left = true;
    await this.#ask("leave", {});
  }

  /** Wait until every worker has come to the barrier of a name. */
  async barrier(name) {
    const header = { name, after: this.rounds[name] ?? 0, first: !(name in this.rounds) };
    for (;;) {
      this.#check();
      const { round } = (await this.#ask("barrier", { ...header, term: this.view.term })).header;
      if (round !== null) return (this.rounds[name] = round);
    }
  }

  /** Take part in a key from now on; the worker of rank 0 brings its first value. */
  async init(key, array, shape = [array.length]) {
    this.layout.add([[key, shape]], array.BYTES_PER_ELEMENT);
    const me = this.view.members.find(({ id }) => id === this.id);
    this.turn += 1;
    for (const part of this.layout.parts.get(key)) {
      const [, piece, home, start, stop] = part;
      const header = { turn: this.turn, rank: this.rank, joined: me.epoch, parts: [[key, piece, home]] };
      const given = this.rank === 0 ? [this.#tensor(array, start, stop)] : [];
      const answer = await this.call(home, "init", header, given);
      this.numbers.set(`${key} ${piece}`, answer.header.numbers[0]);
    }
  }

  /** Push a gradient, and pull the value of the round that it is in. */
  async pushpull(key, gradient) {
    const found = new gradient.constructor(gradient.length);
    const parts = this.layout.parts.get(key);
    await Promise.all(parts.map(async ([, piece, home, start, stop]) => {
      const name = `${key} ${piece}`;
      const number = this.numbers.get(name) + 1;
      this.numbers.set(name, number);
      this.doing = `pushpull of key ${key}, number ${number}`;
      const header = { parts: [[key, piece, home, number, this.acknowledged.get(name) ?? 0]] };
      const answer = await this.call(home, "pushpull", header, [this.#tensor(gradient, start, stop)]);
      this.acknowledged.set(name, number);
      found.set(answer.tensors[0].array(), start);
    }));
    return found;
  }

  /** Ask whoever answers for a home: again, with the same numbers, until there is an answer. */
  async call(home, operation, header, tensors = []) {
    const common = { incarnation: this.incarnation };
    return this.#again(() => this.#server(home).call(operation, { ...common, ...header }, tensors), ["moved", "busy"]);
  }

  #tensor(array, start, stop) {
    return Tensor.of(array.subarray(start, stop));
  }

  /** The server that answers for a home: the first from there on, around the ring, that is alive. */
  #server(home) {
    const alive = new Map(this.view.members.filter(({ role, state }) => role === "server" && state === "alive")
      .map((member) => [member.rank, member]));
    for (let step = 0; step < this.homes; step += 1) {
      const member = alive.get((home + step) % this.homes);
      if (member && !this.peers.has(member.address)) this.peers.set(member.address, new Peer(member.address, this.options));
      if (member) return this.peers.get(member.address);
    }
    throw new TypeError(`no server is there for home ${home}`); // as if it could not be reached: there may come one
  }

  async #register() {
    const header = {
      role: "worker", address: "", host: "javascript", beat: (this.beats += 1), view: this.view, rounds: this.rounds,
      ...(this.rank < 0 ? {} : { rank: this.rank }),
    };
    const answer = await this.#ask("join", header);
    if (this.rank < 0) this.rounds = { ...answer.header.rounds };
    this.rank = answer.header.rank;
    this.view = answer.header.view;
  }

  async #beat() {
    while (!this.left) {
      const { term, epoch } = this.view;
      const sign = { beat: (this.beats += 1), term, epoch, doing: this.doing };
      const answer = await this.#ask("heartbeat", sign);
      const found = answer.header.view;
      if (found && (found.term > term || (found.term === term && found.epoch > epoch))) this.view = found;
    }
  }

  async #ask(operation, header) {
    const common = { incarnation: this.incarnation };
    const full = operation === "join" ? ["full", "busy"] : ["busy"];
    try {
      return await this.#again(() => this.scheduler.call(operation, { ...common, ...header }), full);
    } catch (error) {
      if (!(error instanceof Refused) || error.kind !== "unregistered" || operation === "join") throw error;
      await this.#register(); // the scheduler was restarted
      return this.#ask(operation, "term" in header ? { ...header, term: this.view.term } : header);
    }
  }

  async #again(call, kinds) {
    const start = Date.now();
    for (let pause = 20; ; pause = Math.min(2 * pause, 500)) {
      try {
        return await call();
      } catch (error) {
        const broken = error instanceof TypeError; // what fetch raises where a connection fails
        if (!broken && !(error instanceof Refused && kinds.includes(error.kind))) throw error;
        if (Date.now() - start > this.patience) throw error;
        this.#check();
        await sleep(pause);
      }
    }
  }

  #check() {
    if (this.error) throw this.error;
    if (this.view?.phase === "failed") throw new Error(`the job has failed: ${this.view.failure}`);
  }
}

async function main([rounds = "3", elements = "6"]) {
  const { FLOWMX_SCHEDULER: scheduler, FLOWMX_SECRET_FILE: file } = process.env;
  const worker = new Worker(scheduler, { secret: file ? readFileSync(file, "utf8").trim() : null });
  try {
    await worker.join();
    for (let home = 0; home < worker.homes; home += 1) await worker.call(home, "open", { mode: "sync" });
    await worker.init("w", new Float32Array(Number(elements)));
    await worker.barrier("init 1");
    for (let round = 0; round < Number(rounds); round += 1) {
      const value = await worker.pushpull("w", new Float32Array(Number(elements)).fill(1));
      const [least, most] = value.reduce(([low, high], each) => [Math.min(low, each), Math.max(high, each)], [value[0], value[0]]);
      console.log(JSON.stringify({ round: round + 1, elements: value.length, least, most }));
    }
    await worker.leave();
  } catch (error) {
    console.error(`${error.kind ?? error.name}: ${error.message}`);
    process.exitCode = 1;
  }
  process.exit();
}

if (process.argv[1] && import.meta.url === pathToFileURL(process.argv[1]).href) await main(process.argv.slice(2));
