// Figures, times and durations as people read them, in the reader's zone and the server's time.
import {h} from './dom.js';

const DAY = 86400;
const clock = new Intl.DateTimeFormat([], {hour: '2-digit', minute: '2-digit', hourCycle: 'h23'});
const day = new Intl.DateTimeFormat([], {weekday: 'short', day: 'numeric', month: 'short'});
const whole = new Intl.DateTimeFormat([], {dateStyle: 'full', timeStyle: 'long'});
let skew = 0;

// Notes the server's time from an answer: the reader's clock may differ.
export function noteServerTime(text) {
  const at = Date.parse(text);
  if (Number.isFinite(at) && Math.abs(at - Date.now() - skew) > 2000) skew = at - Date.now();
}

// The server's time in milliseconds.
export const now = () => Date.now() + skew;

// "14:05", with its day where that is not today.
export function when(text) {
  const at = new Date(text);
  if (!text || Number.isNaN(at.getTime())) return '–';
  const today = day.format(new Date(now())) === day.format(at);
  return today ? clock.format(at) : `${day.format(at)} ${clock.format(at)}`;
}

// A time as an element: short, with the whole of it as its title.
export function time(text, words) {
  if (!text) return '–';
  return h('time', {datetime: text, title: whole.format(new Date(text))}, words ?? when(text));
}

// "1 h 20 min"; at most two units.
export function duration(seconds) {
  if (!Number.isFinite(seconds)) return '–';
  const s = Math.abs(seconds);
  if (s < 1e-6) return s === 0 ? '0 s' : `${figure(s * 1e9)} ns`;
  if (s < 1e-3) return `${figure(s * 1e6)} µs`;
  if (s < 1) return `${figure(s * 1e3)} ms`;
  if (s < 100) return `${figure(s)} s`;
  if (s < 5400) return `${Math.round(s / 60)} min`;
  if (s < 2 * DAY) return `${Math.floor(s / 3600)} h ${Math.round((s % 3600) / 60)} min`;
  return `${Math.floor(s / DAY)} d ${Math.round((s % DAY) / 3600)} h`;
}

// "in 12 min", "3 min ago".
export function away(text) {
  const seconds = (Date.parse(text) - now()) / 1000;
  if (!Number.isFinite(seconds)) return '–';
  if (Math.abs(seconds) < 1) return 'now';
  return seconds > 0 ? `in ${duration(seconds)}` : `${duration(-seconds)} ago`;
}

// Three digits that matter.
export function figure(value) {
  if (value === null || value === undefined || !Number.isFinite(value)) return '–';
  const size = Math.abs(value);
  if (size >= 100000) return value.toExponential(2);
  if (size >= 100) return value.toFixed(0);
  if (size >= 10) return value.toFixed(1);
  if (size >= 1) return value.toFixed(2);
  if (size >= 0.001) return value.toPrecision(3);
  return size === 0 ? '0' : value.toExponential(1);
}

export function count(value) {
  return Number.isFinite(value) ? Math.round(value).toLocaleString('en').replaceAll(',', '\u202f') : '–';
}

// "445 MiB".
export function bytes(value) {
  if (!Number.isFinite(value)) return '–';
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];
  let unit = 0;
  let size = value;
  for (; size >= 1024 && unit < units.length - 1; unit++) size /= 1024;
  return `${unit === 0 || size >= 100 ? size.toFixed(0) : figure(size)} ${units[unit]}`;
}

// A link's rate: "1.2 Gbit/s".
export function rate(bytesPerSecond) {
  if (!Number.isFinite(bytesPerSecond)) return '–';
  const bits = bytesPerSecond * 8;
  if (bits >= 1e9) return `${figure(bits / 1e9)} Gbit/s`;
  return bits >= 1e6 ? `${figure(bits / 1e6)} Mbit/s` : `${figure(bits / 1e3)} kbit/s`;
}

export function percent(part) {
  return Number.isFinite(part) ? `${(100 * part).toFixed(Math.abs(part) < 0.095 ? 1 : 0)} %` : '–';
}

// A sentence of the server's, as a sentence begins.
export const sentence = (text) => text ? text[0].toUpperCase() + text.slice(1) : '';

// "1 job", "2 jobs".
export const plural = (number, one, many) => `${count(number)} ${number === 1 ? one : many || one + 's'}`;
