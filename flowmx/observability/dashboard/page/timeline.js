// The rolling timeline: a lane per actor, a bar per operation; pointer or arrow keys show details.

import { clock } from "./axes.js";
import { prepare } from "./chart.js";
import { seconds } from "./format.js";
import { colour, toneOf } from "./theme.js";

const AXIS = 20;
const HEIGHT = 112; // minimum height of all lanes
const LANE = [32, 56]; // minimum and maximum height of a lane
const DELAY = 0.9; // seconds by which the right edge lags, so that bars arrive complete

const ACTOR = 0, ROW = 1, NAME = 2, BEGAN = 3, ENDED = 4, ABOUT = 5, FAILED = 6, COUNT = 7;

export class Timeline {
  constructor(canvas, tip, announcement) {
    Object.assign(this, { canvas, tip, announcement, span: 5, lane: LANE[1], bars: [], lanes: [], running: [], clock: null, selected: null, point: null, paused: null });
    canvas.addEventListener("pointermove", (event) => this.hover(event.offsetX, event.offsetY));
    canvas.addEventListener("pointerdown", (event) => this.hover(event.offsetX, event.offsetY));
    canvas.addEventListener("pointerleave", () => this.select(null));
    canvas.addEventListener("blur", () => this.select(null));
    canvas.addEventListener("keydown", (event) => this.key(event));
  }

  // bars and actors, with their running operations; at: time of the process' clock; epoch: that clock's zero in Unix seconds.
  show(bars, actors, at, epoch) {
    this.bars = bars;
    this.epoch = epoch;
    this.clock = { at, receivedAt: performance.now() };
    this.running = actors.filter((actor) => actor.running).map((actor) => [actor.name, 0, actor.running.name, actor.running.began, null, "running", 0, 1]);
    const rows = new Set([...actors.filter((actor) => actor.queued || actor.running).map((actor) => `${actor.name}\n0`), ...this.lanes, ...bars.map((bar) => `${bar[ACTOR]}\n${bar[ROW]}`)]);
    this.lanes = [...rows].sort((a, b) => a.localeCompare(b, undefined, { numeric: true })).slice(0, 24);
    this.lane = Math.min(Math.max(Math.floor(HEIGHT / Math.max(this.lanes.length, 1)), LANE[0]), LANE[1]);
    const height = `${Math.max(this.lanes.length * this.lane, HEIGHT) + AXIS}px`;
    if (this.canvas.style.height !== height) this.canvas.style.height = height;
  }

  get right() {
    if (this.paused !== null) return this.paused;
    return this.clock === null ? 0 : this.clock.at + Math.min((performance.now() - this.clock.receivedAt) / 1000, 1) - DELAY;
  }

  pause(paused) {
    this.paused = paused ? this.right : null;
  }

  draw() {
    const [context, width, height] = prepare(this.canvas);
    this.gutter = width < 560 ? 0 : this.gutterWidth(context, width);
    this.scale = (width - this.gutter) / this.span;
    this.left = this.right - this.span;
    this.x = (at) => this.gutter + (at - this.left) * this.scale;
    this.grid(context, width, height);
    context.save();
    context.beginPath();
    context.rect(this.gutter, 0, width - this.gutter, height);
    context.clip();
    context.font = "11px system-ui, sans-serif";
    context.textBaseline = "middle";
    context.textAlign = "left";
    for (const bar of this.visible()) this.bar(context, bar, width);
    context.restore();
    this.labels(context);
    if (this.selected) this.place(width);
  }

  // The width of the lane names.
  gutterWidth(context, width) {
    context.font = "11px system-ui, sans-serif";
    const names = this.lanes.map((lane) => context.measureText(lane.split("\n")[0]).width);
    return Math.min(Math.max(60, ...names.map((name) => name + 16)), 180, width * 0.25);
  }

  visible() {
    return [...this.bars, ...this.running].filter((bar) => (bar[ENDED] ?? Infinity) >= this.left && bar[BEGAN] <= this.right);
  }

  grid(context, width, height) {
    context.strokeStyle = colour("grid");
    context.fillStyle = colour("muted");
    context.font = "11px system-ui, sans-serif";
    context.textBaseline = "alphabetic";
    const step = [0.1, 0.2, 0.5, 1, 2, 5, 10].find((interval) => interval * this.scale > 72) ?? 10;
    // Ticks are at round times of day.
    for (let time = Math.ceil((this.left + this.zero) / step) * step; time <= this.right + this.zero; time += step) {
      const at = time - this.zero;
      const x = Math.round(this.x(at)) + 0.5;
      context.beginPath();
      context.moveTo(x, 0);
      context.lineTo(x, height - AXIS + 4);
      context.stroke();
      context.textAlign = "center";
      if (x > this.gutter + 26 && x < width - 26) context.fillText(clock(time, step < 1 ? 1 : 0), x, height - 5);
    }
    this.lanes.forEach((_, index) => {
      context.beginPath();
      context.moveTo(0, (index + 1) * this.lane + 0.5);
      context.lineTo(width, (index + 1) * this.lane + 0.5);
      context.stroke();
    });
  }

  // The offset of the process' clock from Unix time.
  get zero() {
    return this.epoch ?? 0;
  }

  // Pixels above a bar; without a gutter they hold the name of the lane.
  get head() {
    return this.gutter ? 3 : 13;
  }

  labels(context) {
    context.font = "11px system-ui, sans-serif";
    context.textBaseline = this.gutter ? "middle" : "top";
    context.textAlign = "left";
    this.lanes.forEach((lane, index) => {
      const [actor, row] = lane.split("\n");
      const name = row === "0" ? actor : `#${Number(row) + 1}`;
      const y = index * this.lane + (this.gutter ? this.lane / 2 : 1);
      if (this.gutter) {
        context.fillStyle = colour("muted");
        context.fillText(clip(context, name, this.gutter - 10), 4, y);
        return;
      }
      context.font = "9px system-ui, sans-serif";
      context.lineWidth = 3;
      context.strokeStyle = colour("panel");
      context.strokeText(name, 2, y);
      context.fillStyle = colour("text");
      context.fillText(name, 2, y);
      context.lineWidth = 1;
    });
  }

  bar(context, bar, width) {
    const row = this.lanes.indexOf(`${bar[ACTOR]}\n${bar[ROW]}`);
    if (row < 0) return;
    const begin = Math.max(this.x(bar[BEGAN]), this.gutter - 4);
    const end = bar[ENDED] === null ? width : Math.min(this.x(bar[ENDED]), width + 4);
    const long = Math.max(end - begin, 1);
    const tone = bar[FAILED] ? "bad" : toneOf(bar[ACTOR], bar[NAME]);
    context.globalAlpha = bar[ENDED] === null ? 0.45 : bar[COUNT] > 1 ? 0.8 : 1;
    context.fillStyle = colour(tone);
    context.beginPath();
    context.roundRect(begin, row * this.lane + this.head, Math.max(long - (long > 4 ? 0.8 : 0), 1), this.lane - this.head - 3, Math.min(3, long / 2));
    context.fill();
    context.globalAlpha = 1;
    if (this.selected === bar) {
      context.strokeStyle = colour("text");
      context.lineWidth = 2;
      context.stroke();
      context.lineWidth = 1;
    }
    if (long > 34) {
      context.fillStyle = colour("panel");
      context.fillText(clip(context, bar[NAME], long - 8), begin + 5, row * this.lane + (this.head + this.lane - 3) / 2 + 0.5);
    }
  }

  // -- selection ------------------------------------------------------------------------------------

  hover(x, y) {
    const lane = this.lanes[Math.floor(y / this.lane)];
    const at = this.left + (x - this.gutter) / this.scale;
    const slack = 3 / this.scale;
    const near = this.visible().filter((bar) => `${bar[ACTOR]}\n${bar[ROW]}` === lane && bar[BEGAN] - slack <= at && at <= (bar[ENDED] ?? Infinity) + slack);
    const off = (bar) => Math.max(bar[BEGAN] - at, at - (bar[ENDED] ?? Infinity), 0);
    this.select(near.sort((a, b) => off(a) - off(b))[0] ?? null);
  }

  key(event) {
    const step = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity }[event.key];
    if (event.key === "Escape") this.select(null);
    if (step === undefined) return;
    event.preventDefault();
    const bars = this.visible().sort((a, b) => a[BEGAN] - b[BEGAN]);
    const now = bars.indexOf(this.selected);
    const next = now < 0 ? bars.length - 1 : Math.min(Math.max(now + step, 0), bars.length - 1);
    this.select(bars[next] ?? null);
    this.announcement.textContent = this.selected ? describe(this.selected) : "";
  }

  select(bar) {
    this.selected = bar;
    this.tip.hidden = bar === null;
    if (bar) this.tip.textContent = describe(bar);
    this.draw();
  }

  place(width) {
    const row = this.lanes.indexOf(`${this.selected[ACTOR]}\n${this.selected[ROW]}`);
    const tipWidth = this.tip.offsetWidth;
    const x = Math.min(Math.max(this.x(this.selected[BEGAN]), 0), Math.max(width - tipWidth, 0));
    this.tip.style.transform = `translate(${Math.round(x)}px, ${(row + 1) * this.lane + 4}px)`;
  }
}

function describe(bar) {
  const duration = bar[ENDED] === null ? "running" : seconds(bar[ENDED] - bar[BEGAN]);
  const what = bar[COUNT] > 1 ? `${bar[COUNT]} operations, the longest ${bar[NAME]}` : bar[NAME];
  return [`${what}, ${duration}`, bar[ACTOR], bar[ENDED] === null ? "" : bar[ABOUT], bar[FAILED] ? "failed" : ""].filter(Boolean).join(" · ");
}

function clip(context, text, width) {
  if (context.measureText(text).width <= width) return text;
  let prefix = text;
  while (prefix && context.measureText(`${prefix}…`).width > width) prefix = prefix.slice(0, -1);
  return prefix.length > 1 ? `${prefix}…` : "";
}
