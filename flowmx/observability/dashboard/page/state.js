// The page's copy of the process state: the whole state first, then changes. This module has no side effects.

const SAMPLES = 600;
const BARS = 2048;

export function empty() {
  return { seq: 0, times: [], series: {}, bars: [], curves: {}, now: {} };
}

// Applies a frame to the state, in place, and returns the state.
export function applyFrame(state, frame) {
  if (frame.whole) {
    Object.assign(state, empty(), { times: frame.times, series: frame.series, bars: frame.bars });
  } else {
    addPoint(state, frame.at, frame.values);
    state.bars.push(...frame.bars);
    if (state.bars.length > BARS) state.bars.splice(0, state.bars.length - BARS);
  }
  for (const [name, curve] of Object.entries(frame.curves)) addCurve(state, name, curve);
  state.seq = frame.seq;
  state.now = frame.now;
  return state;
}

function addPoint(state, at, values) {
  const before = state.times.length;
  state.times.push(at);
  for (const name of Object.keys(values)) state.series[name] ??= new Array(before).fill(null);
  for (const [name, column] of Object.entries(state.series)) column.push(values[name] ?? null);
  if (state.times.length <= SAMPLES) return;
  state.times.shift();
  for (const column of Object.values(state.series)) column.shift();
}

function addCurve(state, name, curve) {
  const points = (state.curves[name] ??= []);
  points.length = Math.min(points.length, curve.from);
  points.push(...curve.points);
}

// The last value of a series, or null.
export function last(state, name) {
  return state.series[name]?.at(-1) ?? null;
}

// The names of the series with a prefix, with the prefix removed.
export function named(state, prefix) {
  return Object.keys(state.series).filter((name) => name.startsWith(prefix)).map((name) => name.slice(prefix.length)).sort();
}

// Memory by owner, in groups whose rows add up to the total: [{title, tone, total, rows: [[name, bytes], ...]}].
export function memoryGroups(owners) {
  const groups = [["by role", "c0", owners.roles], ["by layer", "c2", owners.layers], ...Object.entries(owners.devices).map(([device, rows]) => [`on ${device}`, "c6", rows])];
  return groups
    .filter(([, , rows]) => rows.length)
    .map(([title, tone, rows]) => ({ title, tone, rows, total: rows.reduce((sum, [, nbytes]) => sum + nbytes, 0) }));
}
