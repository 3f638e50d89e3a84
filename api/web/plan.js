// /plan: what a job would take on this cluster, while one takes devices out, adds others, and types links and prices; then submit it.
import {h, speak, toast} from './dom.js';
import {get, may, post, segment} from './api.js';
import {bytes, count, duration, figure} from './format.js';
import {empty, table, trouble} from './parts.js';
import {plan as alternatives} from './why.js';

const WAIT_MS = 60; // after the last change, before the server is asked
const PAIRS_MAX = 15; // of machines, whose links are shown to be typed
const AWAY = ['gone', 'unreachable', 'drained', 'draining', 'lacking']; // no plan has such devices
const STALE = 412; // a newer question of this session came meanwhile

export function open(frame) {
  const state = {jobs: [], devices: [], links: [], out: new Set((frame.place.query.get('out') || '').split(',').filter(Boolean)), added: [], typed: new Map(), prices: new Map(), text: '', answer: null, before: null, problem: null, asked: 0, open: 0};
  frame.title('Plan');
  frame.draw = () => draw(frame, state);
  frame.repeat(() => read(frame, state), 30000);
  frame.atEnd(() => state.asking?.abort());
}

// ---- what is known, and what was changed ----

async function read(frame, state) {
  const options = {signal: frame.signal};
  const nodes = may('nodes:read');
  const [jobs, devices, links] = await Promise.all([get('/v1/jobs?limit=50', options), nodes ? get('/v1/devices', options) : {devices: []}, nodes ? get('/v1/links', options) : {links: []}]);
  state.jobs = jobs.jobs;
  state.devices = devices.devices;
  state.links = links.links.filter((link) => !link.unreachable);
  const wanted = Number(frame.place.query.get('job')) || state.jobs[0]?.id;
  state.read = true;
  if (wanted && !state.text) await take(frame, state, wanted);
}

// Takes a job's specification to begin with.
async function take(frame, state, id) {
  const job = await get(`/v1/jobs/${id}`, {signal: frame.signal});
  state.from = id;
  state.text = JSON.stringify(job.spec, null, 2);
  state.before = state.answer = null;
  ask(frame, state);
}

const isIn = (state, device) => !state.out.has(device.name);
const everything = (state) => [...state.devices.map((device) => ({...device, like: likeOf(device)})), ...state.added];
// What the catalogue calls a device.
const likeOf = (device) => device.catalogue?.entry ?? (device.kind === 'cpu' ? `cpu-${device.isa_effective ?? 'avx2'}` : undefined);
const machines = (state) => [...new Set(everything(state).map((device) => device.node))].sort();
const pairOf = (a, b) => [a, b].sort().join(' ');

// The measured link of two machines, or what was typed for it.
function linkOf(state, a, b) {
  const typed = state.typed.get(pairOf(a, b));
  const known = state.links.find((link) => pairOf(link.from, link.to) === pairOf(a, b));
  return {latency_s: typed?.latency_s ?? known?.latency_s, bytes_per_s: typed?.bytes_per_s ?? known?.bytes_per_s, typed: Boolean(typed)};
}

// The cluster as a file of `motley plan --cluster`, where the server completes what it knows of devices that are there. Null while it has
// only these, unless `whole`: devices that are left out are excluded then.
export function clusterOf(state, whole = false) {
  if (!whole && state.added.length + state.typed.size + state.prices.size === 0) return null;
  const used = everything(state).filter((device) => isIn(state, device) && !AWAY.includes(device.state));
  const names = [...new Set(used.map((device) => device.node))];
  const nodes = names.map((name) => ({name, devices: used.filter((device) => device.node === name).map((device) => {
    const one = {name: device.name};
    if (device.kind === 'added') one.like = device.like;
    if (state.prices.has(device.name)) one.price_per_hour = state.prices.get(device.name);
    return one;
  })}));
  const pairs = [...state.typed].map(([pair, {latency_s, bytes_per_s}]) => ({a: pair.split(' ')[0], b: pair.split(' ')[1], latency_s, bytes_per_s, origin: 'estimated'}))
    .filter(({a, b, latency_s, bytes_per_s}) => names.includes(a) && names.includes(b) && bytes_per_s > 0 && latency_s >= 0);
  return {nodes, links: {pairs}};
}

function specOf(state) {
  const spec = JSON.parse(state.text);
  if (spec === null || typeof spec !== 'object' || Array.isArray(spec)) throw new SyntaxError('it is no object');
  return spec;
}

// What can be submitted: the devices that were left out are excluded.
function submittable(state) {
  const spec = specOf(state);
  const out = state.devices.filter((device) => !isIn(state, device)).map((device) => device.name);
  if (out.length > 0) spec.placement = {...spec.placement, exclude: [...new Set([...(spec.placement?.exclude || []), ...out])]};
  return spec;
}

// ---- asking ----

function ask(frame, state) {
  clearTimeout(state.timer);
  state.timer = setTimeout(() => askNow(frame, state, state.whole), WAIT_MS);
}

// Asks for a quick answer and the whole one at once; of several questions the newest wins.
function askNow(frame, state, before) {
  clearTimeout(state.timer);
  state.asking?.abort();
  const asking = state.asking = new AbortController();
  const number = ++state.asked;
  const cluster = clusterOf(state);
  let question;
  try {
    question = {spec: cluster ? specOf(state) : submittable(state)};
  } catch (problem) {
    state.problem = {message: `This is not JSON: ${problem.message}`};
    return frame.paint();
  }
  if (cluster) question.cluster = cluster;
  state.before = before;
  state.open = 2;
  for (const brief of [true, false]) one(frame, state, number, {...question, brief}, asking.signal);
  frame.paint();
  return question.spec;
}

async function one(frame, state, number, question, signal) {
  try {
    const answer = await post('/v1/plans', question, {signal});
    if (number !== state.asked) return;
    if (question.brief && state.wholeOf === number) return; // the whole answer was quicker
    state.answer = {...answer, brief: question.brief};
    state.problem = null;
    if (!question.brief) {
      state.whole = answer;
      state.wholeOf = number;
      speak(answer.words || answer.verdict);
    }
  } catch (problem) {
    if (problem.name === 'AbortError' || problem.status === STALE || number !== state.asked) return;
    state.problem = problem;
    state.answer = null;
  } finally {
    if (number === state.asked) {
      state.open--;
      frame.paint();
    }
  }
}

function move(frame, state, name, out) {
  const added = state.added.findIndex((device) => device.name === name);
  if (added >= 0 && out) state.added.splice(added, 1);
  else if (out) state.out.add(name);
  else state.out.delete(name);
  frame.setQuery({out: [...state.out].join(',')});
  ask(frame, state);
}

// ---- drawing ----

function draw(frame, state) {
  if (!state.read) return [trouble(frame.trouble) || h('p', {class: 'loading'}, 'Loading…')];
  return [
    h('div', {class: 'head'}, h('h1', null, 'What would it take?'), trouble(frame.trouble)),
    h('div', {class: 'planner'}, source(frame, state), h('div', {class: 'stacked'}, cluster(frame, state), links(frame, state)), result(frame, state)),
    state.answer?.verdict === 'fits' && alternatives(state.answer),
  ];
}

function source(frame, state) {
  return h('section', {class: 'card', 'aria-label': 'Model and data'}, h('h2', null, 'Model and data'),
    state.jobs.length > 0 ? h('label', {class: 'field'}, h('span', null, 'As in job'), h('select', {onchange: (event) => {
      frame.setQuery({job: event.target.value});
      take(frame, state, Number(event.target.value));
    }}, state.jobs.map((job) => h('option', {key: job.id, value: String(job.id), selected: job.id === state.from}, `#${job.id} ${job.name}`))))
      : h('p', {class: 'dim'}, 'Models and data come with a first job: ', h('code', null, 'motley submit job.yaml'), '.'),
    h('label', {class: 'field'}, h('span', null, 'Specification'), h('textarea', {value: state.text, spellcheck: 'false', oninput: (event) => {
      state.text = event.target.value;
      ask(frame, state);
    }})));
}

function cluster(frame, state) {
  const names = machines(state);
  const outside = state.devices.filter((device) => !isIn(state, device));
  return h('section', {class: 'card', 'aria-label': 'Cluster'}, h('h2', null, 'Cluster'), h('p', {class: 'dim'}, 'Drag a device, or press it, to take it out and in.'),
    h('div', {class: 'machines small'}, names.map((name) => h('div', {key: name}, h('h3', null, name), zone(frame, state, false, everything(state).filter((device) => device.node === name && isIn(state, device)), 'Nobody of this machine.')))),
    h('h3', null, 'Left out'), zone(frame, state, true, outside, 'Nobody is left out.'), addForm(frame, state),
    h('p', null, h('button', {type: 'button', onclick: () => exportFile(frame, state)}, 'Cluster file'), ' ', h('span', {class: 'dim'}, 'with what was measured: ', h('code', null, `motley plan job.yaml --cluster cluster.json${clusterOf(state) ? '' : ' --runnable'}`), ' plans the same.')));
}

// Asks again at the same time: equal questions that come together rest on the same state of the cluster.
async function exportFile(frame, state) {
  const spec = askNow(frame, state, state.before);
  try {
    const file = await post('/v1/plans:cluster', {spec: spec ?? {}, cluster: clusterOf(state, state.out.size > 0)});
    const address = URL.createObjectURL(new Blob([JSON.stringify(file)], {type: 'application/json'}));
    const link = document.createElement('a');
    link.href = address;
    link.download = 'cluster.json';
    link.click();
    setTimeout(() => URL.revokeObjectURL(address), 60000);
  } catch (problem) {
    toast(problem.message, 'bad');
  }
}

function zone(frame, state, out, list, nobody) {
  return h('div', {class: 'drop', ondragover: (event) => event.preventDefault(), ondragenter: (event) => event.currentTarget.classList.add('over'), ondragleave: (event) => event.currentTarget.contains(event.relatedTarget) || event.currentTarget.classList.remove('over'),
    ondrop: (event) => {
      event.preventDefault();
      event.currentTarget.classList.remove('over');
      const name = event.dataTransfer.getData('text/plain');
      if (everything(state).some((device) => device.name === name)) move(frame, state, name, out);
      else toast(`${name || 'This device'} is not there any more.`, 'bad');
    }},
  list.length === 0 && h('span', {class: 'dim'}, nobody), list.map((device) => piece(frame, state, device, out)));
}

// What the answer says of a device that no worker of this release runs on.
const runsOf = (state, name) => [...(state.answer?.ranks ?? []), ...(state.answer?.left_out ?? [])].find((line) => line.device === name && line.runs === 'planned only')?.runs;

function piece(frame, state, device, out) {
  const price = state.prices.get(device.name);
  return h('span', {key: device.name, class: 'priced'},
    h('button', {type: 'button', class: 'piece', draggable: 'true', 'aria-label': `${device.name}: ${out ? 'take it in' : 'leave it out'}`, ondragstart: (event) => event.dataTransfer.setData('text/plain', device.name), onclick: () => move(frame, state, device.name, !out)},
      h('strong', null, device.name), h('small', null, [device.like || device.kind, runsOf(state, device.name), device.memory_limit_bytes && bytes(device.memory_limit_bytes)].filter(Boolean).join(', '))),
    !out && h('input', {type: 'number', min: '0', step: 'any', class: 'short', placeholder: 'price/h', 'aria-label': `Price of ${device.name} an hour`, value: price === undefined ? '' : String(price), oninput: (event) => {
      const value = Number(event.target.value);
      event.target.value === '' || !(value >= 0) ? state.prices.delete(device.name) : state.prices.set(device.name, value);
      ask(frame, state);
    }}));
}

// A device that is not there: an entry of the catalogue, or what the vendor's tool calls the card.
function addForm(frame, state) {
  return h('form', {class: 'row wrap', onsubmit: (event) => {
    event.preventDefault();
    const form = new FormData(event.target);
    const node = String(form.get('node')).trim();
    let number = 0;
    while (everything(state).some((device) => device.name === `${node}/new${number}`)) number++;
    state.added.push({name: `${node}/new${number}`, node, like: String(form.get('like')).trim(), kind: 'added'});
    ask(frame, state);
  }},
  h('label', null, h('span', {class: 'unseen'}, 'Card'), h('input', {name: 'like', required: true, maxlength: 120, placeholder: 'a100x40, or as nvidia-smi calls it'})),
  h('label', null, 'in ', h('input', {name: 'node', required: true, maxlength: 64, pattern: '[a-z0-9][a-z0-9\\-]*', title: 'small letters, digits and -', value: 'new', class: 'short', list: 'machines'})), h('datalist', {id: 'machines'}, machines(state).map((name) => h('option', {key: name, value: name}))),
  h('button', {type: 'submit'}, 'Add it'));
}

function links(frame, state) {
  const names = [...new Set(everything(state).filter((device) => isIn(state, device)).map((device) => device.node))].sort();
  const pairs = names.flatMap((a, index) => names.slice(index + 1).map((b) => [a, b])).slice(0, PAIRS_MAX);
  if (pairs.length === 0) return null;
  const type = (a, b, name, factor) => (event) => {
    const value = Number(event.target.value) * factor;
    if (!(value > 0)) return;
    state.typed.set(pairOf(a, b), {...linkOf(state, a, b), [name]: value});
    ask(frame, state);
  };
  return h('section', {class: 'card', 'aria-label': 'Links'}, h('h2', null, 'Links'),
    table('Links', ['Between', 'Mbit/s', 'ms', ''], pairs.map(([a, b]) => {
      const link = linkOf(state, a, b);
      return h('tr', {key: pairOf(a, b)}, h('td', null, `${a} – ${b}`), h('td', null, h('input', {type: 'number', min: '0', step: 'any', class: 'short', 'aria-label': `Rate between ${a} and ${b} in Mbit/s`, value: link.bytes_per_s ? String(Number((link.bytes_per_s * 8e-6).toPrecision(4))) : '', onchange: type(a, b, 'bytes_per_s', 125000)})),
        h('td', null, h('input', {type: 'number', min: '0', step: 'any', class: 'short', 'aria-label': `Latency between ${a} and ${b} in ms`, value: link.latency_s ? String(Number((link.latency_s * 1e3).toPrecision(4))) : '', onchange: type(a, b, 'latency_s', 1e-3)})),
        h('td', {class: 'dim'}, link.typed ? 'typed' : link.bytes_per_s ? 'measured' : 'estimated'));
    })));
}

function result(frame, state) {
  const {answer, problem} = state;
  const reason = !may('jobs:write') ? 'Your session may only read.' : state.added.length > 0 ? 'It has devices that are not there.' : problem ? problem.message : null;
  const submit = async () => {
    if (reason) return toast(reason, 'bad');
    try {
      const made = await post('/v1/jobs', submittable(state));
      toast(`Job ${made.id} is submitted.`);
      frame.go(`/jobs/${made.id}`);
    } catch (error) {
      toast(error.message, 'bad');
    }
  };
  return h('section', {class: 'card', 'aria-label': 'What it takes', 'aria-busy': String(state.open > 0)}, h('h2', null, 'What it takes', h('span', {class: 'dim'}, state.open > 0 ? answer ? ' at least; it is still searched' : ' …' : '')),
    problem && h('div', {class: 'notice bad', role: 'alert'}, problem.message),
    !answer && !problem && h('p', {class: 'dim'}, state.text ? 'It is being planned.' : 'Give it a model and data.'),
    answer && figures(state, answer),
    answer && h('button', {type: 'button', class: 'primary', 'aria-disabled': reason ? 'true' : null, title: reason, onclick: submit}, 'Submit it'));
}

function figures(state, answer) {
  if (answer.verdict !== 'fits') return empty('It does not fit', answer.words);
  const before = state.before?.verdict === 'fits' ? state.before : null;
  const change = (key, better) => {
    if (!before?.[key] || answer[key] === before[key]) return null;
    const part = answer[key] / before[key] - 1;
    return h('span', {class: part < 0 === better < 0 ? 'dim' : 'bad', title: `before: ${figure(before[key])}`}, ` ${part >= 0 ? '+' : '−'}${(100 * Math.abs(part)).toFixed(0)} %`);
  };
  const facts = [['A step', [duration(answer.step_s), change('step_s', -1)]], ['Tokens a second', [count(answer.tokens_per_s), change('tokens_per_s', 1)]], ['Placement', answer.placement], ['All of it', answer.steps && answer.step_s ? duration(answer.steps * answer.step_s) : null],
    ['A million tokens cost', answer.cost_per_million_tokens ? [figure(answer.cost_per_million_tokens), change('cost_per_million_tokens', -1)] : null], ['Planned in', answer.plan_s ? duration(answer.plan_s) : null]];
  return [h('dl', {class: 'figures'}, facts.filter(([, value]) => value).map(([name, value]) => h('div', {key: name}, h('dt', null, name), h('dd', null, value)))), h('p', null, answer.words),
    table('Memory', ['Device', '#Memory', '#Limit'], (answer.ranks || []).map((rank, index) => h('tr', {key: index}, h('td', null, h('a', {href: `/cluster?device=${segment(rank.device)}`}, rank.device)), h('td', {class: 'number'}, bytes(rank.memory_bytes)), h('td', {class: 'number'}, bytes(rank.memory_limit_bytes)))))];
}
