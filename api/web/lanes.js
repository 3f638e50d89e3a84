// /jobs/N/lanes: what every rank did in a step: predicted above measured, on one axis of time.
import {colour, h, speak} from './dom.js';
import {get, getOrNull} from './api.js';
import {ticks} from './chart.js';
import {count, duration, figure} from './format.js';
import {empty, table, trouble} from './parts.js';

const LEFT = 150;
const AXIS = 22;
const LANE = 20;
const WIRE = 7; // a rank's transfers, below its lane
const GAP = 12;
const LIST = 20;
const PIXELS = 2000; // asked for: as many as a wide screen has
const BOXES = 24000; // read at most: many ranks come less finely, until one looks closer
const LISTS = 6; // of boxes a rank: computing, sending, receiving; predicted and measured
const RANKS_AT_ONCE = 8; // taken in one task
const BOXES_AT_ONCE = 6000; // drawn in one frame; the other rows come in the next ones
const BAR = 46; // the bar above the page (style.css)
const BESIDE = 3; // ranks that are read above and below those in view
const CLOSER_MS = 150; // after the last zoom or scroll, before the part is read
const KINDS = {FORWARD: 'line1', BACKWARD: 'line4', RECOMPUTE: 'line6', STEP: 'line2', LOSS: 'line7', SEND: 'line3', RECV: 'line3'};

export function open(frame) {
  const id = Number(frame.place.id);
  const state = {id, job: null, ranks: null, steps: [], differences: [], chosen: null, from: 0, to: 1, end: 1};
  frame.title(`Lanes of job ${id}`);
  frame.draw = () => draw(frame, state);
  state.view = new Lanes(state, () => frame.paint(), () => readPart(frame, state));
  frame.atEnd(() => state.view.close());
  state.poke = frame.repeat(() => read(frame, state), 30000);
}

// ---- reading ----

// The whole step of the ranks in view: boxes narrower than a pixel come merged, and are read again when one looks closer.
async function read(frame, state) {
  const options = {signal: frame.signal};
  state.job = await get(`/v1/jobs/${state.id}`, options);
  const wanted = frame.place.query.get('step');
  const window = state.view.inView(state.job.run?.ranks?.length || 1);
  const lanes = await getOrNull(`/v1/jobs/${state.id}/lanes?${ranksOf(window)}${wanted ? `&step=${Number(wanted)}` : ''}`, options);
  if (lanes === null) {
    state.ranks = [];
    return;
  }
  const shown = `${lanes.run}/${lanes.step}`;
  if (state.shown === shown) return;
  state.shown = shown;
  await take(state, lanes, {...window, whole: true});
  Object.assign(state, {step: lanes.step, steps: lanes.steps, end: lanes.end_ns * 1e-9 || 1, predicted: lanes.predicted_ns, measured: lanes.measured_ns, residual: lanes.residual_ns, unmatched: lanes.unmatched,
    differences: lanes.differences.map((each) => ({...each, name: nameOf(each.op, each.micro_batch, each.peer, 1)}))});
  state.view.whole();
}

// The part that is looked at, as finely as there are pixels; nothing where the ranks in view have it already.
async function readPart(frame, state) {
  const window = state.view.inView(state.ranks.length);
  const [from, to] = [Math.floor(state.from * 1e9), Math.ceil(state.to * 1e9)];
  const part = {...window, whole: from === 0 && to >= Math.floor(state.end * 1e9), from, to};
  const has = state.has;
  if (has && has.whole === part.whole && (part.whole || (has.from === from && has.to === to)) && has.first <= window.seen && has.first + has.count >= window.seen + window.rows) return;
  const lanes = await getOrNull(`/v1/jobs/${state.id}/lanes?${ranksOf(window)}&from=${from}&to=${to}${state.step === null ? '' : `&step=${state.step}`}`, {signal: frame.signal}).catch(() => null);
  if (lanes && lanes.step === state.step && Math.floor(state.from * 1e9) === from) await take(state, lanes, part);
}

const ranksOf = ({first, count}) => `px=${Math.min(PIXELS, Math.ceil(BOXES / LISTS / count))}&first_rank=${first}&ranks=${count}`;

// Takes the boxes of an answer, some ranks at a time: rows of the numbers that `columns` names. A newer answer ends it.
async function take(state, lanes, part) {
  const taking = state.taking = {};
  const column = Object.fromEntries(lanes.columns.map((name, index) => [name, index]));
  const compute = lanes.queues.indexOf('compute');
  const box = (row) => {
    const [begin, end, ready] = ['begin_ns', 'end_ns', 'ready_ns'].map((name) => row[column[name]] * 1e-9);
    const op = lanes.ops[row[column.op]];
    return {name: nameOf(op, row[column.micro_batch], row[column.peer], row[column.count]), paint: KINDS[/^(BACKWARD|[A-Z]+)/.exec(op)?.[0]] || 'line5', instr: row[column.instr], begin, end, wait: Math.max(0, begin - ready), wire: row[column.queue] !== compute};
  };
  const ranks = [];
  for (const rank of lanes.ranks) {
    if (ranks.length % RANKS_AT_ONCE === 0 && part.count > RANKS_AT_ONCE) await new Promise((resume) => setTimeout(resume));
    if (state.taking !== taking) return;
    ranks.push({rank: rank.rank, device: rank.device, predicted: rank.predicted.map(box), measured: rank.measured.map(box)});
  }
  Object.assign(state, {ranks, has: part, both: lanes.predicted_ns !== null});
  const {chosen, sought} = state;
  if (chosen) state.chosen = find(state, chosen.rank.rank, chosen.kind, chosen.event.instr) || chosen;
  if (sought && ranks[sought.rank]) {
    const found = find(state, sought.rank, 'measured', sought.instr);
    state.sought = null;
    if (found) state.view.choose(found.rank, found.event, 'measured', true);
  }
  state.view.draw();
}

// What is known of an instruction of a rank: null where its boxes are not here, or it is inside of another box.
function find(state, number, kind, instr) {
  const rank = state.ranks.find((each) => each.rank === number);
  const event = rank?.[kind].find((each) => each.instr === instr);
  return event ? {rank, event, kind, other: twin(rank, event, kind)} : null;
}

const nameOf = (op, microBatch, peer, boxes) => `${op}${microBatch >= 0 ? ` mb${microBatch}` : ''}${peer >= 0 ? ` ${op.startsWith('RECV') ? 'from' : 'to'} ${peer}` : ''}${boxes > 1 ? ` and ${boxes - 1} more` : ''}`;

// ---- drawing the page ----

function draw(frame, state) {
  if (!state.ranks) return [trouble(frame.trouble) || h('p', {class: 'loading'}, 'Loading…')];
  const head = h('div', {class: 'head'}, trouble(frame.trouble), h('div', {class: 'row between wrap'}, h('h1', null, 'Lanes of ', h('a', {href: `/jobs/${state.id}`}, state.job.name), h('span', {class: 'dim'}, ` #${state.id}`)),
    h('div', {class: 'row wrap'}, state.steps.length > 0 && h('label', null, 'Step ', h('select', {value: String(state.step), onchange: (event) => {
      frame.setQuery({step: event.target.value});
      state.poke();
    }}, state.steps.map((step) => h('option', {key: step, value: String(step), selected: step === state.step}, count(step))))),
    h('a', {class: 'button', href: `/v1/jobs/${state.id}/trace`, download: `job-${state.id}-trace.json`}, 'Chrome trace'))));
  if (state.ranks.length === 0) return [head, empty('No step was traced yet', 'Workers trace a sample of their steps; the first ones are among them. Look again when the job has run.')];
  return [head,
    h('section', {class: 'card lanes', 'aria-label': 'Lanes'}, h('p', {class: 'dim'}, 'Predicted above', state.predicted !== null && ` (${duration(state.predicted * 1e-9)})`, ', measured below', state.measured !== null && ` (${duration(state.measured * 1e-9)})`, '; ', h('span', {class: 'key waits'}), ' it waits. Drag moves, Ctrl and the wheel zoom; keys: arrows, + and −, 0; n and p for the next instruction and the one before. ', state.residual !== null ? `The machines' clocks agree to ${duration(state.residual * 1e-9)}.` : state.ranks.length > 1 && 'How far the machines\' clocks agree is not known.', state.unmatched > 0 && ` ${count(state.unmatched)} recorded events are no instruction of the plan.`), state.view.element()),
    h('div', {class: 'columns'}, chosen(state), largest(state))];
}

function chosen(state) {
  const pick = state.chosen;
  if (!pick) return h('section', {class: 'card', 'aria-label': 'Instruction'}, h('h2', null, 'An instruction'), h('p', {class: 'dim'}, 'Choose one with the mouse, or with n and p.'));
  const {event, rank, other} = pick;
  const facts = {Rank: `${rank.rank}, ${rank.device}`, Began: duration(event.begin), Measured: pick.kind === 'measured' ? duration(event.end - event.begin) : other && duration(other.end - other.begin), Predicted: pick.kind === 'predicted' ? duration(event.end - event.begin) : other && duration(other.end - other.begin), Waited: event.wait > 0 ? duration(event.wait) : 'for nothing'};
  const ratio = other && (pick.kind === 'measured' ? (event.end - event.begin) / (other.end - other.begin) : (other.end - other.begin) / (event.end - event.begin));
  if (ratio) facts.Ratio = figure(ratio);
  return h('section', {class: 'card', 'aria-label': 'Instruction'}, h('h2', null, event.name), h('dl', {class: 'facts'}, Object.entries(facts).filter(([, value]) => value).map(([name, value]) => [h('dt', null, name), h('dd', null, value)])));
}

const twin = (rank, event, kind) => rank[kind === 'measured' ? 'predicted' : 'measured'].find((each) => each.instr === event.instr);

// The instructions whose predicted and measured times differ most, of the whole step.
function largest(state) {
  if (state.differences.length === 0) return null;
  const choose = (row) => {
    const found = find(state, row.rank, 'measured', row.instr);
    if (found) state.view.choose(found.rank, found.event, 'measured', true);
    else {
      state.sought = row; // when its rank has come
      state.view.reveal(row.rank);
    }
  };
  return h('section', {class: 'card', 'aria-label': 'Largest'}, h('h2', null, 'The largest differences'),
    table('Largest', ['Instruction', 'Device', '#Measured', '#Predicted', '#Difference', '#Ratio'], state.differences.slice(0, LIST).map((row) => h('tr', {key: `${row.rank}/${row.instr}`},
      h('td', null, h('button', {type: 'button', class: 'text', onclick: () => choose(row)}, row.name)), h('td', null, state.ranks.find((rank) => rank.rank === row.rank)?.device), h('td', {class: 'number'}, duration(row.measured_ns * 1e-9)), h('td', {class: 'number'}, duration(row.predicted_ns * 1e-9)),
      h('td', {class: 'number'}, `${row.measured_ns < row.predicted_ns ? '−' : '+'}${duration((row.measured_ns - row.predicted_ns) * 1e-9)}`), h('td', {class: 'number'}, row.predicted_ns > 0 ? figure(row.measured_ns / row.predicted_ns) : '–')))));
}

// ---- the canvas ----

class Lanes {
  constructor(state, changed, closer) {
    Object.assign(this, {state, changed, closer});
    this.themed = () => this.draw();
    this.scrolled = () => {
      this.draw();
      this.look();
    };
    window.addEventListener('theme', this.themed);
    matchMedia('(prefers-color-scheme: dark)').addEventListener('change', this.themed);
  }

  close() {
    clearTimeout(this.timer);
    window.removeEventListener('scroll', this.scrolled);
    window.removeEventListener('theme', this.themed);
    matchMedia('(prefers-color-scheme: dark)').removeEventListener('change', this.themed);
    this.resize?.disconnect();
  }

  element() {
    return h('div', {key: 'canvas', own: true, ref: (box) => this.attach(box)});
  }

  attach(box) {
    const canvas = this.canvas = document.createElement('canvas');
    this.box = box;
    box.append(canvas);
    canvas.tabIndex = 0;
    canvas.setAttribute('role', 'img');
    canvas.setAttribute('aria-label', 'Lanes of the ranks; n and p choose instructions, arrows move, plus and minus zoom');
    canvas.onkeydown = (event) => this.key(event);
    canvas.onpointerdown = (event) => this.grab(event);
    canvas.onpointermove = (event) => this.drag(event);
    canvas.ondblclick = () => this.whole();
    canvas.addEventListener('wheel', (event) => this.wheel(event), {passive: false});
    this.resize = new ResizeObserver(() => this.draw());
    this.resize.observe(box);
    window.addEventListener('scroll', this.scrolled, {passive: true});
    this.whole();
  }

  whole() {
    this.show(0, this.state.end);
  }

  show(from, to) {
    const size = Math.max(1e-9, Math.min(to - from, this.state.end));
    this.state.from = Math.max(0, Math.min(from, this.state.end - size));
    this.state.to = this.state.from + size;
    this.draw();
    this.look();
  }

  // Reads soon what is in view.
  look() {
    clearTimeout(this.timer);
    if (this.state.ranks?.length > 0) this.timer = setTimeout(this.closer, CLOSER_MS);
  }

  get row() {
    return (this.state.both === false ? 1 : 2) * (LANE + WIRE) + GAP;
  }

  // Of so many ranks, those in view ({seen, rows}), and those that are read: with some above and below ({first, count}).
  inView(ranks) {
    const rows = Math.min(ranks, Math.ceil(innerHeight / this.row) + 1);
    const seen = Math.max(0, Math.min(ranks - rows, Math.floor(this.offset() / this.row)));
    const first = Math.max(0, seen - BESIDE);
    return {seen, rows, first, count: Math.min(ranks, seen + rows + BESIDE) - first};
  }

  // How many pixels of the rows are above the canvas, which is no taller than the window and stays in it.
  offset() {
    return this.canvas ? Math.max(0, this.canvas.getBoundingClientRect().top - this.box.getBoundingClientRect().top) : 0;
  }

  reveal(number) {
    const index = this.state.ranks.findIndex((each) => each.rank === number);
    const top = this.box.getBoundingClientRect().top + AXIS + index * this.row;
    if (top < BAR || top + this.row > innerHeight) window.scrollBy(0, top - innerHeight / 3);
    this.look();
  }

  zoom(factor, around) {
    const {from, to} = this.state;
    const middle = around ?? (from + to) / 2;
    this.show(middle - (middle - from) * factor, middle + (to - middle) * factor);
  }

  timeAt(x) {
    return this.state.from + (x - LEFT) / (this.canvas.clientWidth - LEFT) * (this.state.to - this.state.from);
  }

  wheel(event) {
    if (!event.ctrlKey && !event.shiftKey) return;
    event.preventDefault();
    this.zoom(event.deltaY + event.deltaX > 0 ? 1.25 : 0.8, this.timeAt(event.offsetX));
  }

  grab(event) {
    this.held = {x: event.clientX, moved: 0};
    this.canvas.setPointerCapture(event.pointerId);
    this.canvas.onpointerup = (end) => {
      if (this.held?.moved < 4) this.pick(end.offsetX, end.offsetY);
      this.held = null;
    };
  }

  drag(event) {
    if (!this.held) return;
    const by = (this.held.x - event.clientX) / (this.canvas.clientWidth - LEFT) * (this.state.to - this.state.from);
    this.held.moved += Math.abs(this.held.x - event.clientX);
    this.held.x = event.clientX;
    this.show(this.state.from + by, this.state.to + by);
  }

  // Chooses what is under a point.
  pick(x, y) {
    const down = y - AXIS + this.offset();
    const rank = this.state.ranks[Math.floor(down / this.row)];
    if (!rank || y < AXIS) return;
    const inside = down % this.row;
    const kind = inside < this.row - GAP - LANE - WIRE ? 'predicted' : 'measured';
    const wire = inside % (LANE + WIRE) > LANE;
    const at = this.timeAt(x);
    const found = rank[kind].find((event) => event.wire === wire && event.begin <= at && at <= event.end) || rank[kind].find((event) => event.begin <= at && at <= event.end);
    if (found) this.choose(rank, found, kind);
  }

  choose(rank, event, kind, reveal) {
    this.state.chosen = {rank, event, kind, other: twin(rank, event, kind)};
    const size = this.state.to - this.state.from;
    if (reveal && (event.begin < this.state.from || event.end > this.state.to)) this.show(event.begin - size / 4, event.begin + size * 3 / 4);
    if (reveal) this.reveal(rank.rank);
    speak(`${event.name}, ${rank.device}, ${duration(event.end - event.begin)}`);
    this.draw();
    this.changed();
  }

  next(by) {
    const {chosen, ranks} = this.state;
    const rank = ranks.find((each) => each.rank === chosen?.rank.rank) || ranks[this.inView(ranks.length).seen];
    const kind = chosen?.kind || 'measured';
    const index = rank[kind].findIndex((event) => event.instr === chosen?.event.instr);
    const event = rank[kind][Math.max(0, Math.min(rank[kind].length - 1, index + by))];
    if (event) this.choose(rank, event, kind, true);
  }

  rank(by) {
    const {chosen, ranks} = this.state;
    const rank = ranks[Math.max(0, Math.min(ranks.length - 1, ranks.findIndex((each) => each.rank === chosen?.rank.rank) + by))];
    if (rank.measured.length === 0) this.reveal(rank.rank);
    else this.choose(rank, rank.measured.find((event) => event.end >= (chosen?.event.begin ?? 0)) || rank.measured[0], 'measured', true);
  }

  key(event) {
    const {from, to} = this.state;
    const by = (to - from) / 10;
    const moves = {ArrowLeft: () => this.show(from - by, to - by), ArrowRight: () => this.show(from + by, to + by), ArrowUp: () => this.rank(-1), ArrowDown: () => this.rank(1),
      '+': () => this.zoom(0.5), '=': () => this.zoom(0.5), '-': () => this.zoom(2), 0: () => this.whole(), n: () => this.next(1), p: () => this.next(-1)};
    if (!moves[event.key] || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    event.stopPropagation();
    moves[event.key]();
  }

  // Draws in the next frame; what is being drawn is drawn to its end first.
  draw() {
    this.wanted = true;
    if (this.due || !this.canvas) return;
    this.due = requestAnimationFrame(() => this.paint());
  }

  // Begins a drawing, and goes on frame by frame until all rows are there.
  paint() {
    const {canvas, state} = this;
    const width = canvas.clientWidth;
    this.due = 0;
    if (!width || !state.ranks) return;
    if (!this.rest) {
      const whole = AXIS + state.ranks.length * this.row;
      const height = Math.min(whole, innerHeight - BAR);
      const scale = window.devicePixelRatio || 1;
      this.box.style.height = `${whole}px`;
      if (canvas.width !== Math.round(width * scale) || canvas.height !== Math.round(height * scale)) {
        canvas.style.height = `${height}px`;
        canvas.width = Math.round(width * scale);
        canvas.height = Math.round(height * scale);
      }
      const [from, to, offset] = [state.from, state.to, this.offset()];
      const first = Math.max(0, Math.floor(offset / this.row));
      this.rest = {at: first, end: Math.min(state.ranks.length, Math.ceil((offset + height) / this.row)), offset, height, pixel: (time) => LEFT + (time - from) / (to - from) * (width - LEFT)};
      this.wanted = false;
      const context = canvas.getContext('2d');
      context.setTransform(scale, 0, 0, scale, 0, 0);
      context.font = '11px system-ui, sans-serif';
      this.hatch = hatch(context, scale);
      context.clearRect(0, 0, width, AXIS);
      this.axis(context, this.rest.pixel, width);
      context.save();
      context.beginPath();
      context.rect(0, AXIS, width, height - AXIS);
      context.clip();
    }
    const context = canvas.getContext('2d');
    const {rest} = this;
    for (let boxes = 0; rest.at < Math.min(rest.end, state.ranks.length) && boxes < BOXES_AT_ONCE; rest.at++) {
      const rank = state.ranks[rest.at];
      const y = AXIS + rest.at * this.row - rest.offset;
      context.clearRect(0, y, width, this.row);
      this.grid(context, rest.pixel, width, y);
      this.rankRow(context, rank, y, rest.pixel, width);
      boxes += rank.predicted.length + rank.measured.length;
    }
    if (rest.at >= Math.min(rest.end, state.ranks.length)) {
      context.restore();
      this.rest = null;
    }
    if (this.rest || this.wanted) this.due = requestAnimationFrame(() => this.paint());
  }

  axis(context, pixel, width) {
    context.textBaseline = 'middle';
    this.ticks = ticks(this.state.from, this.state.to, (width - LEFT) / 110);
    for (const tick of this.ticks) {
      const x = Math.round(pixel(tick)) + 0.5;
      context.strokeStyle = colour('grid');
      context.beginPath();
      context.moveTo(x, AXIS - 4);
      context.lineTo(x, AXIS);
      context.stroke();
      context.fillStyle = colour('dim');
      context.textAlign = x > width - 30 ? 'right' : 'center';
      context.fillText(duration(tick), x, AXIS / 2 - 2);
    }
  }

  grid(context, pixel, width, y) {
    context.fillStyle = colour('grid');
    for (const tick of this.ticks) context.fillRect(Math.round(pixel(tick)), y, 1, this.row);
  }

  rankRow(context, rank, y, pixel, width) {
    context.textAlign = 'left';
    context.fillStyle = colour('text');
    const both = this.state.both !== false;
    const measured = y + (both ? LANE + WIRE : 0);
    context.fillText(rank.device, 2, y + LANE / 2 + 1, LEFT - (both ? 66 : 8));
    context.fillStyle = colour('dim');
    if (both) context.fillText('predicted', LEFT - 60, y + LANE / 2);
    if (both) context.fillText('measured', LEFT - 60, measured + LANE / 2);
    context.save();
    context.beginPath();
    context.rect(LEFT, y, width - LEFT, this.row);
    context.clip();
    this.lane(context, rank.predicted, y, pixel, width);
    this.lane(context, rank.measured, measured, pixel, width);
    context.restore();
  }

  // One lane. Gaps between what computes are hatched; what is narrower than a pixel is drawn once a pixel.
  lane(context, events, y, pixel, width) {
    let free = null;
    let drawn = -1;
    for (const event of events) {
      const left = pixel(event.begin);
      const right = pixel(event.end);
      if (!event.wire) {
        if (free !== null && left - free > 2 && left > LEFT && free < width) {
          context.fillStyle = this.hatch;
          context.fillRect(Math.max(free, LEFT), y, Math.min(left, width) - Math.max(free, LEFT), LANE);
        }
        free = Math.max(free ?? 0, right);
      }
      if (right < LEFT || left > width) continue;
      const isChosen = this.state.chosen?.event === event;
      if (right - left < 1 && Math.floor(left) === drawn && !isChosen) continue;
      drawn = Math.floor(left);
      context.fillStyle = colour(event.paint);
      const [top, tall] = event.wire ? [y + LANE + 1, WIRE - 2] : [y, LANE];
      context.fillRect(left, top, Math.max(1, right - left - (right - left > 3 ? 0.5 : 0)), tall);
      if (isChosen) {
        context.strokeStyle = colour('text');
        context.lineWidth = 2;
        context.strokeRect(left, top, Math.max(2, right - left), tall);
        context.lineWidth = 1;
      }
      if (!event.wire && right - left > 44) {
        context.fillStyle = colour('card');
        context.fillText(event.name.replace(/ blocks.*/, ''), Math.max(left, LEFT) + 4, y + LANE / 2 + 1, right - Math.max(left, LEFT) - 8);
      }
    }
  }
}

// What fills waits: drawn once, so that a gap costs no more than a box.
function hatch(context, scale) {
  const tile = document.createElement('canvas');
  tile.width = tile.height = Math.round(6 * scale);
  const pen = tile.getContext('2d');
  pen.scale(tile.width / 6, tile.height / 6);
  pen.strokeStyle = colour('waits');
  pen.beginPath();
  for (const x of [-6, 0, 6]) {
    pen.moveTo(x, 6);
    pen.lineTo(x + 6, 0);
  }
  pen.stroke();
  const pattern = context.createPattern(tile, 'repeat');
  pattern.setTransform(new DOMMatrix().scale(6 / tile.width));
  return pattern;
}
