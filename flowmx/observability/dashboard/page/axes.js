// Ranges and tick labels of axes. This module has no side effects.

// Returns about `most` round values within a range; base 1024 gives round numbers of KiB, MiB and so on.
export function ticks(low, high, most, base = 1) {
  if (base > 1) {
    const unit = base ** Math.max(0, Math.floor(Math.log(Math.max(high, 1)) / Math.log(base)));
    return ticks(low / unit, high / unit, most).map((tick) => tick * unit);
  }
  const rough = (high - low) / Math.max(most, 1) || 1;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((size) => size >= rough) ?? 10 * power;
  const result = [];
  const first = Math.ceil(low / step);
  for (let at = first; at * step <= high + step * 1e-9 && result.length <= 2 * most + 2; at += 1) result.push(at * step || 0);
  return result;
}

// Returns the range of an axis for these values; it is negative only if a value is.
export function ends(values) {
  const [low, high] = [Math.min(...values), Math.max(...values)];
  if (low < high) return [low, high + (high - low) * 0.05];
  if (low === 0) return [0, 1];
  return low > 0 ? [0, low * 1.2] : [low * 1.2, 0];
}

// Returns ticks with distinct labels; format(value, step) receives the distance of the ticks.
export function marks(low, high, most, format, base = 1) {
  const positions = ticks(low, high, most, base);
  const step = positions.length > 1 ? positions[1] - positions[0] : high - low;
  const used = new Set();
  return positions.map((tick) => [tick, format(tick, step)]).filter(([, text]) => !used.has(text) && used.add(text));
}

// Returns the labels of a horizontal axis: both ends if they differ and fit, else the right one: [[text, is left], ...].
export function sides(left, right, room, width) {
  return left === right || width(left) + width(right) + 12 > room ? [[right, false]] : [[left, true], [right, false]];
}

// Formats Unix time as local time of day.
export function clock(seconds, digits) {
  const scale = 10 ** digits;
  const day = new Date((Math.round(seconds * scale) / scale) * 1000);
  const two = (number) => String(number).padStart(2, "0");
  const rest = digits ? `.${String(Math.round(day.getMilliseconds() / 10 ** (3 - digits))).padStart(digits, "0")}` : "";
  return `${two(day.getHours())}:${two(day.getMinutes())}:${two(day.getSeconds())}${rest}`;
}
