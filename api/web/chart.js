// Line charts on a canvas. A point has a least and a most value beside its own, and every column of pixels is drawn from the
// least to the most of all points in it: a spike of one step is seen at every zoom, and the same points draw the same pixels.
//
// Charts of one Group share what part of the steps they show, and the step under the cursor.
import {colour, h, render, speak} from './dom.js';
import {count, figure} from './format.js';

const LEFT = 52;
const BOTTOM = 20;
const TOP = 8;
const RIGHT = 10;
const WHEEL = 1.2;

export class Group {
  constructor() {
    this.charts = new Set();
    this.from = null; // null: the first and the last step there is
    this.to = null;
    this.at = null;
    this.changed = () => {}; // hears when another part is shown
  }

  extent() {
    let least = Infinity;
    let most = -Infinity;
    for (const chart of this.charts) {
      for (const series of chart.series) {
        if (series.x.length === 0) continue;
        least = Math.min(least, series.x[0]);
        most = Math.max(most, series.x[series.x.length - 1]);
      }
    }
    if (least > most) return [0, 1];
    return least === most ? [least - 0.5, most + 0.5] : [least, most];
  }

  range() {
    const [least, most] = this.extent();
    return [this.from ?? least, this.to ?? most];
  }

  show(from, to) {
    const [least, most] = this.extent();
    const size = Math.max(2, Math.min(to - from, most - least));
    const begin = Math.max(least, Math.min(from, most - size));
    const all = size >= most - least;
    this.from = all ? null : begin;
    this.to = all ? null : begin + size;
    this.draw();
    this.changed();
  }

  zoom(factor, around) {
    const [from, to] = this.range();
    const middle = around ?? (from + to) / 2;
    this.show(middle - (middle - from) * factor, middle + (to - middle) * factor);
  }

  cursor(at) {
    this.at = at;
    this.draw();
  }

  draw() {
    for (const chart of this.charts) chart.draw();
  }
}

export class Chart {
  // `series`: [{name, colour, x, y, least?, most?, dots?}], x growing. `log`: a logarithmic axis. `smooth`: weight of what was before, 0 to 1.
  constructor(group, {title, unit = '', log = false, smooth = 0, from = null}) {
    Object.assign(this, {group, title, unit, log, smooth, zero: from, series: [], dirty: false});
    group.charts.add(this);
    this.resize = new ResizeObserver(() => this.draw());
    this.themed = () => this.draw();
    matchMedia('(prefers-color-scheme: dark)').addEventListener('change', this.themed);
    window.addEventListener('theme', this.themed);
  }

  close() {
    this.group.charts.delete(this);
    this.resize.disconnect();
    matchMedia('(prefers-color-scheme: dark)').removeEventListener('change', this.themed);
    window.removeEventListener('theme', this.themed);
  }

  set(series) {
    this.series = series;
    this.draw();
  }

  // The chart as an element to put into a view.
  element() {
    return h('figure', {key: this.title, class: 'chart', own: true, ref: (figure_) => this.attach(figure_)});
  }

  attach(box) {
    this.box = box;
    this.canvas = document.createElement('canvas');
    this.head = document.createElement('figcaption');
    box.append(this.head, this.canvas);
    this.canvas.tabIndex = 0;
    this.canvas.setAttribute('role', 'img');
    this.canvas.setAttribute('aria-label', this.title);
    this.resize.observe(this.canvas);
    this.canvas.onkeydown = (event) => this.key(event);
    this.canvas.onpointermove = (event) => this.point(event);
    this.canvas.onpointerleave = () => this.group.cursor(null);
    this.canvas.onpointerdown = (event) => this.grab(event);
    this.canvas.ondblclick = () => this.group.show(-Infinity, Infinity);
    this.canvas.addEventListener('wheel', (event) => this.wheel(event), {passive: false});
    this.draw();
  }

  // Draws once before the next picture, however often it is called.
  draw() {
    if (this.dirty || !this.canvas) return;
    this.dirty = true;
    requestAnimationFrame(() => {
      this.dirty = false;
      this.paint();
    });
  }

  stepAt(clientX) {
    const box = this.canvas.getBoundingClientRect();
    const [from, to] = this.group.range();
    return from + (clientX - box.left - LEFT) / Math.max(1, box.width - LEFT - RIGHT) * (to - from);
  }

  point(event) {
    if (this.held) {
      const [from, to] = this.group.range();
      const moved = (this.held.x - event.clientX) / Math.max(1, this.canvas.clientWidth - LEFT - RIGHT) * (to - from);
      this.held.x = event.clientX;
      this.group.show(from + moved, to + moved);
    } else this.group.cursor(Math.round(this.stepAt(event.clientX)));
  }

  grab(event) {
    this.held = {x: event.clientX};
    this.canvas.setPointerCapture(event.pointerId);
    this.canvas.onpointerup = this.canvas.onpointercancel = () => { this.held = null; };
  }

  // The wheel scrolls the page, as everywhere; with Ctrl or Shift it zooms.
  wheel(event) {
    if (!event.ctrlKey && !event.shiftKey) return;
    event.preventDefault();
    this.group.zoom(event.deltaY + event.deltaX > 0 ? WHEEL : 1 / WHEEL, this.stepAt(event.clientX));
  }

  key(event) {
    const [from, to] = this.group.range();
    const step = Math.max(1, Math.round((to - from) / 100)) * (event.shiftKey ? 10 : 1);
    const at = this.group.at ?? Math.round(to);
    const moves = {ArrowLeft: () => this.group.cursor(Math.max(Math.ceil(from), at - step)), ArrowRight: () => this.group.cursor(Math.min(Math.floor(to), at + step)),
      Home: () => this.group.cursor(Math.ceil(from)), End: () => this.group.cursor(Math.floor(to)),
      '+': () => this.group.zoom(0.5, at), '=': () => this.group.zoom(0.5, at), '-': () => this.group.zoom(2, at), 0: () => this.group.show(-Infinity, Infinity), Escape: () => this.group.cursor(null)};
    if (!moves[event.key]) return;
    event.preventDefault();
    event.stopPropagation();
    moves[event.key]();
    if (this.group.at !== null) speak(`Step ${this.group.at}: ${this.series.map((series) => `${series.name} ${figure(valueAt(series, this.group.at))}`).join(', ')}`);
  }

  // ---- drawing ----

  paint() {
    const {canvas} = this;
    const width = canvas.clientWidth;
    const height = canvas.clientHeight;
    if (!width || !height) return;
    const scale = window.devicePixelRatio || 1;
    if (canvas.width !== Math.round(width * scale) || canvas.height !== Math.round(height * scale)) {
      canvas.width = Math.round(width * scale);
      canvas.height = Math.round(height * scale);
    }
    const context = canvas.getContext('2d');
    context.setTransform(scale, 0, 0, scale, 0, 0);
    context.clearRect(0, 0, width, height);
    const [from, to] = this.group.range();
    const plot = {left: LEFT, top: TOP, width: width - LEFT - RIGHT, height: height - TOP - BOTTOM, from, to};
    const columns = this.series.map((series) => ({series, columns: reduce(series, plot, this.smoothOf(series))}));
    this.scaleTo(plot, columns);
    this.axes(context, plot);
    context.save();
    context.beginPath();
    context.rect(plot.left, plot.top - 2, plot.width, plot.height + 4);
    context.clip();
    for (const each of columns) this.line(context, plot, each);
    context.restore();
    this.cursorLine(context, plot);
    this.caption();
  }

  // Dots are few and stay as they are.
  smoothOf(series) {
    return series.dots ? 0 : this.smooth;
  }

  scaleTo(plot, all) {
    let least = Infinity;
    let most = -Infinity;
    for (const {columns} of all) {
      for (const column of columns) {
        if (this.log && column.least <= 0) continue;
        least = Math.min(least, column.least);
        most = Math.max(most, column.most);
      }
    }
    if (this.zero !== null && !this.log) least = Math.min(least, this.zero);
    if (!(least <= most)) [least, most] = this.log ? [1, 10] : [0, 1];
    if (least === most) [least, most] = this.log ? [least / 2, most * 2] : [least - (Math.abs(least) * 0.1 || 1), most + (Math.abs(most) * 0.1 || 1)];
    const turn = this.log ? Math.log10 : (value) => value;
    const low = turn(least);
    const room = (turn(most) - low) * 0.06;
    const base = this.zero !== null && least === this.zero && !this.log ? low : low - room;
    const size = turn(most) + room - base;
    plot.y = (value) => plot.top + plot.height * (1 - (turn(value) - base) / size);
    plot.x = (step) => plot.left + plot.width * (step - plot.from) / (plot.to - plot.from);
    plot.ticks = this.log ? logTicks(base, base + size) : ticks(base, base + size, Math.max(2, plot.height / 40));
  }

  axes(context, plot) {
    context.font = '11px system-ui, sans-serif';
    context.lineWidth = 1;
    context.strokeStyle = colour('grid');
    context.fillStyle = colour('dim');
    context.textBaseline = 'middle';
    context.textAlign = 'right';
    for (const tick of plot.ticks) {
      const y = Math.round(plot.y(tick)) + 0.5;
      if (y < plot.top - 1 || y > plot.top + plot.height + 1) continue;
      line(context, plot.left, y, plot.left + plot.width, y);
      context.fillText(short(tick), plot.left - 6, y);
    }
    context.textBaseline = 'top';
    for (const tick of ticks(plot.from, plot.to, Math.max(2, plot.width / 90))) {
      if (!Number.isInteger(tick)) continue;
      const x = plot.x(tick);
      context.textAlign = x > plot.left + plot.width - 20 ? 'right' : x < plot.left + 10 ? 'left' : 'center';
      context.fillText(count(tick), x, plot.top + plot.height + 6);
    }
  }

  line(context, plot, {series, columns}) {
    const paint = colour(series.colour);
    context.fillStyle = context.strokeStyle = paint;
    if (series.dots) {
      for (const column of columns) {
        context.beginPath();
        context.arc(plot.x(column.step), plot.y(column.value), 3, 0, 2 * Math.PI);
        context.fill();
      }
    }
    const smooth = this.smoothOf(series) > 0;
    context.globalAlpha = smooth ? 0.3 : 0.35;
    for (const column of columns) {
      if (column.most <= column.least || (this.log && column.least <= 0)) continue;
      const top = plot.y(column.most);
      context.fillRect(column.pixel, top, 1, Math.max(1, plot.y(column.least) - top));
    }
    if (smooth) this.trace(context, plot, columns, (column) => column.value);
    context.globalAlpha = 1;
    context.lineWidth = series.dots ? 1 : 1.5;
    this.trace(context, plot, columns, (column) => smooth ? column.smooth : column.value);
  }

  trace(context, plot, columns, value) {
    context.beginPath();
    let before = false;
    for (const column of columns) {
      const at = value(column);
      const good = Number.isFinite(at) && (!this.log || at > 0);
      if (good) before ? context.lineTo(plot.x(column.step), plot.y(at)) : context.moveTo(plot.x(column.step), plot.y(at));
      before = good;
    }
    context.stroke();
  }

  cursorLine(context, plot) {
    const at = this.group.at;
    if (at === null || at < plot.from || at > plot.to) return;
    context.strokeStyle = colour('dim');
    const x = Math.round(plot.x(at)) + 0.5;
    line(context, x, plot.top, x, plot.top + plot.height);
  }

  caption() {
    const at = this.group.at;
    const parts = this.series.filter((series) => series.x.length > 0).map((series) => [series, valueAt(series, at ?? Infinity)]);
    render(this.head, h('span', {class: 'title'}, this.title, this.unit && h('span', {class: 'dim'}, ` ${this.unit}`)),
      h('span', {class: 'values'}, parts.map(([series, value]) => h('span', {key: series.name}, h('i', {style: {background: `var(--${series.colour})`}}), parts.length > 1 && `${series.name} `, h('b', null, figure(value))))),
      at !== null && h('span', {class: 'dim'}, `step ${count(at)}`));
    this.canvas.setAttribute('aria-label', parts.length === 0 ? `${this.title}: nothing yet`
      : `${this.title}: ${parts.map(([series, value]) => `${series.name} ${figure(value)}`).join(', ')} ${at === null ? 'last' : `at step ${at}`}; arrow keys read values, plus and minus zoom`);
  }
}

function line(context, x0, y0, x1, y1) {
  context.beginPath();
  context.moveTo(x0, y0);
  context.lineTo(x1, y1);
  context.stroke();
}

// The first index whose x is at least `value`.
function lower(x, value) {
  let low = 0;
  let high = x.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (x[middle] < value) low = middle + 1;
    else high = middle;
  }
  return low;
}

function valueAt(series, step) {
  const index = lower(series.x, step);
  if (series.x[index] === step) return series.y[index];
  return series.y[Math.max(0, index - 1)];
}

// The points of what is shown, one for each column of pixels: least, most, and the mean; where columns are wider than points,
// each point. One point beyond each edge is kept, so that lines leave the picture.
export function reduce(series, plot, smooth = 0) {
  const {x, y} = series;
  const begin = Math.max(0, lower(x, plot.from) - 1);
  const end = Math.min(x.length, lower(x, plot.to) + 1);
  const columns = [];
  let column = null;
  let running = 0; // the smoothed value times its weight, so that the first values count whole
  let weight = 0;
  for (let i = begin; i < end; i++) {
    if (!Number.isFinite(y[i])) continue;
    weight = smooth * weight + 1 - smooth;
    running = smooth * running + (1 - smooth) * y[i];
    const pixel = Math.floor(plot.left + plot.width * (x[i] - plot.from) / (plot.to - plot.from));
    const least = series.least?.[i] ?? y[i];
    const most = series.most?.[i] ?? y[i];
    if (!column || column.pixel !== pixel) {
      column = {pixel, step: x[i], value: y[i], sum: 0, count: 0, least, most, smooth: 0};
      columns.push(column);
    }
    column.sum += y[i];
    column.count++;
    column.value = column.sum / column.count;
    column.least = Math.min(column.least, least);
    column.most = Math.max(column.most, most);
    column.smooth = running / weight;
  }
  return columns;
}

export function ticks(least, most, wanted) {
  const rough = (most - least) / Math.max(1, wanted);
  const power = 10 ** Math.floor(Math.log10(rough));
  const size = [1, 2, 5, 10].map((each) => each * power).find((each) => each >= rough);
  const out = [];
  for (let i = Math.ceil(least / size); i * size <= most && out.length < 50; i++) out.push(Number((i * size).toPrecision(12)));
  return out;
}

function logTicks(low, high) {
  const out = [];
  const fine = high - low < 2 ? [1, 2, 5] : [1];
  for (let power = Math.floor(low); power <= high; power++) for (const each of fine) if (Math.log10(each) + power >= low && Math.log10(each) + power <= high) out.push(each * 10 ** power);
  return out.length > 1 ? out : [10 ** low, 10 ** high];
}

function short(value) {
  const size = Math.abs(value);
  if (size >= 1e6) return `${Number((value / 1e6).toPrecision(4))}M`;
  if (size >= 1e4) return `${Number((value / 1e3).toPrecision(4))}k`;
  if (size > 0 && size < 1e-3) return value.toExponential(0);
  return String(Number(value.toPrecision(4)));
}
