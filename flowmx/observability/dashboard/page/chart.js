// Line charts on a canvas, with axes and a crosshair; and sparklines.

import { ends, marks, sides } from "./axes.js";
import { colour } from "./theme.js";

const PAD = { right: 8, top: 8, bottom: 18 };
const FONT = "11px system-ui, sans-serif";

// Scales a canvas to the screen's resolution; returns [context, width, height] in CSS pixels.
export function prepare(canvas) {
  const scale = window.devicePixelRatio || 1;
  const { width, height } = canvas.getBoundingClientRect();
  const [w, h] = [Math.round(width * scale), Math.round(height * scale)];
  if (canvas.width !== w || canvas.height !== h) Object.assign(canvas, { width: w, height: h });
  const context = canvas.getContext("2d");
  context.setTransform(scale, 0, 0, scale, 0, 0);
  context.clearRect(0, 0, width, height);
  return [context, width, height];
}

const numbers = (list) => list.filter((value) => typeof value === "number" && Number.isFinite(value));

export class Chart {
  // format: formats values; place: formats positions on the horizontal axis; base: 1024 for bytes.
  constructor(box, title, format, place, base = 1) {
    this.base = base;
    this.format = format;
    this.place = place;
    this.figure = document.createElement("figure");
    this.canvas = document.createElement("canvas");
    this.canvas.setAttribute("role", "img");
    this.caption = document.createElement("figcaption");
    this.title = title;
    this.lines = [];
    this.pointer = null;
    this.figure.append(this.caption, this.canvas);
    box.append(this.figure);
    this.canvas.addEventListener("pointermove", (event) => {
      this.pointer = event.offsetX;
      this.draw();
    });
    this.canvas.addEventListener("pointerleave", () => {
      this.pointer = null;
      this.draw();
    });
  }

  // lines: [{name, tone, points: [[x, y], ...]}]; range: y values that are always included.
  show(lines, range = []) {
    this.lines = lines.filter((line) => line.points.length);
    this.range = range;
    this.draw();
  }

  draw() {
    const [context, width, height] = prepare(this.canvas);
    const xs = this.lines.flatMap((line) => [line.points[0][0], line.points.at(-1)[0]]);
    const ys = [...numbers(this.lines.flatMap((line) => line.points.map((point) => point[1]))), ...(this.range ?? [])];
    this.legend();
    if (!xs.length || !ys.length || width < 80) return;
    const area = this.area(context, xs, ys, width, height);
    this.axes(context, area, width, height);
    for (const line of this.lines) this.line(context, area, line);
    if (this.pointer !== null) this.crosshair(context, area, height);
  }

  area(context, xs, ys, width, height) {
    const [x0, x1] = [Math.min(...xs), Math.max(...xs)];
    const [y0, y1] = ends(ys);
    context.font = FONT;
    const labels = marks(y0, y1, 4, this.format, this.base);
    const left = Math.max(30, ...labels.map(([, text]) => context.measureText(text).width + 10));
    const w = width - left - PAD.right;
    const h = height - PAD.top - PAD.bottom;
    return {
      x0, x1, y0, y1, left, marks: labels,
      x: (value) => left + ((value - x0) / (x1 - x0 || 1)) * w,
      y: (value) => PAD.top + (1 - (value - y0) / (y1 - y0)) * h,
    };
  }

  axes(context, area, width, height) {
    context.fillStyle = colour("muted");
    context.strokeStyle = colour("grid");
    context.lineWidth = 1;
    context.textAlign = "right";
    context.textBaseline = "middle";
    for (const [tick, text] of area.marks) {
      const y = Math.round(area.y(tick)) + 0.5;
      context.beginPath();
      context.moveTo(area.left, y);
      context.lineTo(width - PAD.right, y);
      context.stroke();
      context.fillText(text, area.left - 6, y);
    }
    context.textBaseline = "alphabetic";
    const room = width - PAD.right - area.left;
    for (const [text, isLeft] of sides(this.place(area.x0, area), this.place(area.x1, area), room, (label) => context.measureText(label).width)) {
      context.textAlign = isLeft ? "left" : "right";
      context.fillText(text, isLeft ? area.left : width - PAD.right, height - 4);
    }
  }

  line(context, area, line) {
    context.strokeStyle = colour(line.tone);
    context.lineWidth = 1.75;
    context.lineJoin = "round";
    context.setLineDash(line.dashed ? [5, 3] : []);
    context.beginPath();
    let drawing = false;
    for (const [x, y] of line.points) {
      const isNumber = typeof y === "number";
      if (isNumber) context[drawing ? "lineTo" : "moveTo"](area.x(x), area.y(y));
      drawing = isNumber;
    }
    context.stroke();
    context.setLineDash([]);
    if (line.points.length === 1 && typeof line.points[0][1] === "number") {
      context.fillStyle = colour(line.tone);
      context.beginPath();
      context.arc(area.x(line.points[0][0]), area.y(line.points[0][1]), 3, 0, 7);
      context.fill();
    }
  }

  crosshair(context, area, height) {
    const at = area.x0 + ((this.pointer - area.left) / (area.x(area.x1) - area.left || 1)) * (area.x1 - area.x0);
    const near = this.lines.map((line) => line.points.reduce((a, b) => (Math.abs(b[0] - at) < Math.abs(a[0] - at) ? b : a)));
    const x = area.x(near[0][0]);
    context.strokeStyle = colour("muted");
    context.beginPath();
    context.moveTo(x, PAD.top);
    context.lineTo(x, height - PAD.bottom);
    context.stroke();
    near.forEach(([px, py], index) => {
      if (typeof py !== "number") return;
      context.fillStyle = colour(this.lines[index].tone);
      context.beginPath();
      context.arc(area.x(px), area.y(py), 3.5, 0, 7);
      context.fill();
    });
    this.legend(near, this.place(near[0][0], area));
  }

  legend(points, place) {
    const entries = this.lines.map((line, index) => {
      const point = points?.[index] ?? line.points.at(-1);
      return [line.name, line.tone, points ? this.format(point[1]) : line.last ?? this.format(point[1])];
    });
    const text = [this.title, place ?? "", ...entries.flat()].join("|");
    if (text === this.legendText) return;
    this.legendText = text;
    const keys = entries.map(([name, tone, value]) => {
      const key = document.createElement("span");
      key.className = "key";
      key.style.setProperty("--tone", `var(--${tone})`);
      const number = document.createElement("em");
      number.textContent = value;
      key.append(name, number);
      return key;
    });
    const title = document.createElement("b");
    title.textContent = this.title + (place ? `, ${place}` : "");
    this.caption.replaceChildren(title, ...keys);
    this.canvas.setAttribute("aria-label", `${this.title}: ${entries.map(([name, , value]) => `${name} ${value}`).join(", ") || "no data"}`);
  }
}

// Draws a line without axes.
export function sparkline(canvas, values, tone) {
  const [context, width, height] = prepare(canvas);
  const shown = values.slice(-120);
  const known = numbers(shown);
  if (known.length < 2) return;
  const high = Math.max(...known) || 1;
  const y = (value) => height - 2 - (value / high) * (height - 5);
  const x = (index) => (index / Math.max(shown.length - 1, 1)) * width;
  context.beginPath();
  let from = null;
  shown.forEach((value, index) => {
    if (typeof value !== "number") return;
    if (from === null) context.moveTo(x(index), y(value));
    else context.lineTo(x(index), y(value));
    from ??= index;
  });
  context.strokeStyle = colour(tone);
  context.lineWidth = 1.5;
  context.stroke();
  context.lineTo(x(shown.length - 1), height);
  context.lineTo(x(from), height);
  context.globalAlpha = 0.12;
  context.fillStyle = colour(tone);
  context.fill();
  context.globalAlpha = 1;
}
