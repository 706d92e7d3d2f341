// Formats numbers and times. This module has no side effects.

export const NONE = "–";

const isNumber = (value) => typeof value === "number" && Number.isFinite(value);

// Formats a number with three digits and k, M or G.
export function count(value) {
  if (!isNumber(value)) return typeof value === "string" ? value : NONE;
  const [scale, unit] = [[1e9, "G"], [1e6, "M"], [1e4, "k"]].find(([minimum]) => Math.abs(value) >= minimum) ?? [1, ""];
  const scaled = unit === "k" ? value / 1e3 : value / scale;
  const digits = Number.isInteger(scaled) && Math.abs(scaled) < 1e4 ? 0 : Math.max(0, 2 - Math.floor(Math.log10(Math.max(Math.abs(scaled), 1))));
  return scaled.toFixed(digits) + unit;
}

// Formats a value of a curve with four digits, or with more if the step between values is small.
export function value(number, step = 0) {
  if (!isNumber(number)) return typeof number === "string" ? number : NONE;
  const size = Math.abs(number);
  const digits = step > 0 && size > 0 ? Math.min(Math.max(4, Math.ceil(Math.log10(size / step)) + 2), 16) : 4;
  if (size !== 0 && (size < 1e-3 || size >= 1e6)) return number.toExponential(Math.max(2, Math.min(digits - 1, digits > 4 ? 15 : 2)));
  return String(Number(number.toPrecision(digits)));
}

export function bytes(value) {
  if (!isNumber(value)) return NONE;
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  const at = value < 1024 ? 0 : Math.min(units.length - 1, Math.floor(Math.log2(value) / 10));
  const scaled = value / 1024 ** at;
  return `${scaled.toFixed(at === 0 || scaled >= 100 ? 0 : scaled >= 10 ? 1 : 2)} ${units[at]}`;
}

export function seconds(value) {
  if (!isNumber(value)) return NONE;
  if (value === 0) return "0 s";
  if (value < 1e-3) return `${(value * 1e6).toFixed(0)} µs`;
  if (value < 1) return `${(value * 1e3).toFixed(value < 0.01 ? 2 : value < 0.1 ? 1 : 0)} ms`;
  if (value < 120) return `${value.toFixed(value < 10 ? 1 : 0)} s`;
  return value < 7200 ? `${(value / 60).toFixed(0)} min` : `${(value / 3600).toFixed(1)} h`;
}

export function percent(share) {
  return isNumber(share) ? `${(share * 100).toFixed(0)} %` : NONE;
}

// Splits a text into number and unit.
export function parts(text) {
  const match = /^([-\d.]+)\s*(.*)$/.exec(text);
  return match ? [match[1], match[2]] : [text, ""];
}
