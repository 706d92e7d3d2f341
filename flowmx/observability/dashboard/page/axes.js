// The ends and the labels of axes. Pure.

// Round values that divide a range, at most about so many; of bytes in their own units, which base 1024 makes.
export function ticks(low, high, most, base = 1) {
  if (base > 1) {
    const unit = base ** Math.max(0, Math.floor(Math.log(Math.max(high, 1)) / Math.log(base)));
    return ticks(low / unit, high / unit, most).map((each) => each * unit);
  }
  const rough = (high - low) / Math.max(most, 1) || 1;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((each) => each * power).find((each) => each >= rough) ?? 10 * power;
  const found = [];
  const first = Math.ceil(low / step);
  for (let at = first; at * step <= high + step * 1e-9 && found.length <= 2 * most + 2; at += 1) found.push(at * step || 0);
  return found;
}

// Least and most of an axis that shows these values; below zero only where a value is.
export function ends(values) {
  const [low, high] = [Math.min(...values), Math.max(...values)];
  if (low < high) return [low, high + (high - low) * 0.05];
  if (low === 0) return [0, 1];
  return low > 0 ? [0, low * 1.2] : [low * 1.2, 0];
}

// Values and their labels, of which no two are alike: format(value, step) is given how far apart they are.
export function marks(low, high, most, format, base = 1) {
  const found = ticks(low, high, most, base);
  const step = found.length > 1 ? found[1] - found[0] : high - low;
  const seen = new Set();
  return found.map((tick) => [tick, format(tick, step)]).filter(([, text]) => !seen.has(text) && seen.add(text));
}

// The labels of a horizontal axis: both ends where they differ and there is room, else the right one: [[text, is left], ...].
export function sides(left, right, room, width) {
  return left === right || width(left) + width(right) + 12 > room ? [[right, false]] : [[left, true], [right, false]];
}

// Seconds since 1970 as the local time of day.
export function clock(seconds, digits) {
  const scale = 10 ** digits;
  const day = new Date((Math.round(seconds * scale) / scale) * 1000);
  const two = (number) => String(number).padStart(2, "0");
  const rest = digits ? `.${String(Math.round(day.getMilliseconds() / 10 ** (3 - digits))).padStart(digits, "0")}` : "";
  return `${two(day.getHours())}:${two(day.getMinutes())}:${two(day.getSeconds())}${rest}`;
}
