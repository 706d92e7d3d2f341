// What the page knows of the process: the whole first, then what is new. Pure.

const SAMPLES = 600;
const BARS = 2048;

export function empty() {
  return { seq: 0, times: [], series: {}, bars: [], curves: {}, now: {} };
}

// The state after a frame; it is changed in place and returned.
export function applied(state, frame) {
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

// The last value of a series; null where there is none.
export function last(state, name) {
  return state.series[name]?.at(-1) ?? null;
}

// The names of series that begin with a prefix, without it.
export function named(state, prefix) {
  return Object.keys(state.series).filter((name) => name.startsWith(prefix)).map((name) => name.slice(prefix.length)).sort();
}

// Who holds the memory, in groups whose rows add up to their total: [{title, tone, total, rows: [[name, bytes], ...]}].
export function heldBy(held) {
  const groups = [["by role", "c0", held.roles], ["by layer", "c2", held.layers], ...Object.entries(held.devices).map(([device, rows]) => [`on ${device}`, "c6", rows])];
  return groups
    .filter(([, , rows]) => rows.length)
    .map(([title, tone, rows]) => ({ title, tone, rows, total: rows.reduce((sum, [, nbytes]) => sum + nbytes, 0) }));
}
