// Numbers, sizes and times as people read them.

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const UNITS = ["B", "KB", "MB", "GB", "TB", "PB"];

export function count(number) {
  return number === null || number === undefined ? "–" : whole.format(number);
}

/** A number that has to fit: 12,345 but 1.2 M. */
export function brief(number) {
  if (number === null || number === undefined || Number.isNaN(number)) return "–";
  const size = Math.abs(number);
  if (size >= 1e9) return `${(number / 1e9).toFixed(size < 1e10 ? 1 : 0)} G`;
  if (size >= 1e6) return `${(number / 1e6).toFixed(size < 1e7 ? 1 : 0)} M`;
  if (size >= 1e5) return `${(number / 1e3).toFixed(0)} k`;
  return size > 0 && size < 10 && !Number.isInteger(number) ? number.toFixed(1) : whole.format(number);
}

export function rate(number) {
  return number === null || number === undefined ? "–" : `${brief(number)}/s`;
}

export function size(bytes) {
  if (bytes === null || bytes === undefined || bytes < 0) return "–";
  let unit = 0;
  while (bytes >= 1000 && unit < UNITS.length - 1) {
    bytes /= 1000;
    unit += 1;
  }
  return `${unit && bytes < 10 ? bytes.toFixed(1) : Math.round(bytes)} ${UNITS[unit]}`;
}

export function duration(ms) {
  if (ms === null || ms === undefined || ms < 0) return "–";
  const seconds = ms / 1000;
  if (seconds < 1) return `${Math.round(ms)} ms`;
  if (seconds < 120) return `${Math.round(seconds)} s`;
  if (seconds < 7200) return `${Math.round(seconds / 60)} min`;
  if (seconds < 172800) return `${Math.round(seconds / 3600)} h`;
  return `${Math.round(seconds / 86400)} days`;
}

const pad = (number, digits = 2) => String(number).padStart(digits, "0");

export function clock(ms) {
  const at = new Date(ms);
  return `${pad(at.getHours())}:${pad(at.getMinutes())}:${pad(at.getSeconds())}`;
}

/** Date and time with milliseconds, in the reader's own time zone. */
export function moment(ms) {
  if (ms === null || ms === undefined || ms < 0) return "–";
  const at = new Date(ms);
  return `${at.getFullYear()}-${pad(at.getMonth() + 1)}-${pad(at.getDate())} ${clock(ms)}.${pad(at.getMilliseconds(), 3)}`;
}

export function plural(number, one, many = `${one}s`) {
  return `${count(number)} ${number === 1 ? one : many}`;
}
