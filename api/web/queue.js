// /queue: what runs and what waits, of everybody; one job's whole why beside it; leases and shares below.
import {ask, Drawn, h, speak, toast} from './dom.js';
import {call, get, getOrNull, may, segment, session} from './api.js';
import {away, duration, figure, now, percent, plural, sentence, time, when} from './format.js';
import {actionButtons, empty, ENDED, meter, RUNNING, shorten, stateBadge, table, trouble, WAITING} from './parts.js';
import {subscribe} from './stream.js';

const READ_MS = 8000; // a scheduler that fails causes no event, and is to be told within ten seconds
const PAGE = 50; // rows that may change at once: their layout and painting is most of what a drawing costs
const ALL = 1000; // a request, where everything is read to be filtered
const ALL_PAGES = 20;
const LARGE_MS = 10000; // how often everything is read at most, where that is much, whatever happens
const TIMES_MS = 20000; // how often rows with times are drawn anew
const KINDS = {all: 'Now', running: 'Running', waiting: 'Waiting', mine: 'Mine', ended: 'Ended'};

export function open(frame) {
  const state = {rows: [], counts: {}, next: null, page: 0, cursors: [null], details: new Map(), chosen: new Set(), leases: null, shares: null, devices: [], why: null, at: 0, drawn: new Drawn()};
  frame.title('Queue');
  frame.draw = () => draw(frame, state);
  state.first = new Promise((resolve) => {
    state.poke = frame.repeat(() => readQueue(frame, state).finally(resolve), READ_MS, 2000);
  });
  frame.repeat(() => readOthers(frame, state), 30000);
  frame.atEnd(subscribe(['queue'], () => {
    const large = state.whole && state.rows.length > ALL;
    if (!large || performance.now() - state.readAt > LARGE_MS) state.poke();
  }));
  const keys = (event) => onKey(event, frame, state);
  document.addEventListener('keydown', keys);
  frame.atEnd(() => document.removeEventListener('keydown', keys));
}

// ---- reading ----

// The queue of everybody, and of the jobs that one may see how far they are. Ended ones are read when they are asked for.
async function readQueue(frame, state) {
  const kind = frame.place.query.get('show');
  const options = {signal: frame.signal};
  const whole = isFiltered(frame);
  const reading = whole ? readWhole(state, options) : readPage(state, options);
  if (!state.read && kind !== 'ended') {
    reading.then((rows) => {
      if (rows.length === 0) return; // jobs that are held may come
      state.rows = rows;
      state.read = true;
      state.whole = whole;
      frame.paint();
    }, () => {}); // a failure is told below
  }
  const [rows, lines] = await Promise.all([reading, get(`/v1/jobs?limit=500&state=${kind === 'ended' ? ENDED.join(',') : [...RUNNING, ...WAITING].join(',')}`, options)]);
  state.allHeld = kind !== 'ended' && !lines.next && !state.next; // every held job that one may see is a row
  state.details = new Map(lines.jobs.map((job) => [job.id, job]));
  state.rows = kind === 'ended' ? lines.jobs.map((job) => ({devices: [], place: null, wait: null, starts: null, ends: job.updated, ...job}))
    : (state.next ? rows : withHeld(rows, lines.jobs)).map((row) => state.details.has(row.id) ? {...state.details.get(row.id), ...row} : row);
  if (state.rows.length === 0 && kind !== 'ended') state.ended = (await get(`/v1/jobs?limit=5&state=${ENDED.join(',')}`, options)).jobs;
  state.read = true;
  state.readAt = performance.now();
  state.whole = whole || kind === 'ended';
  const id = Number(frame.place.query.get('job'));
  if (id) await readWhy(frame, state, id);
}

// The queue has what runs and waits; jobs that are held are put behind them.
function withHeld(rows, lines) {
  const there = new Set(rows.map((row) => row.id));
  return [...rows, ...lines.filter((job) => job.state === 'held' && !there.has(job.id)).map((job) => ({devices: [], place: null, wait: null, starts: null, ends: null, ...job}))];
}

const isFiltered = (frame) => Boolean(frame.place.query.get('q')) || ['running', 'waiting', 'mine'].includes(frame.place.query.get('show'));

// The page that is shown, and where the next one begins.
async function readPage(state, options) {
  const after = state.cursors[state.page];
  const document = await get(`/v1/queue?limit=${PAGE}${after ? `&after=${segment(after)}` : ''}`, options);
  state.counts = document.jobs;
  state.scheduler = document.scheduler;
  state.next = document.next;
  state.cursors[state.page + 1] = document.next;
  return document.queue;
}

// Everything, to look for something in it.
async function readWhole(state, options) {
  const rows = [];
  let after = null;
  for (let page = 0; page < ALL_PAGES; page++) {
    const document = await get(`/v1/queue?limit=${ALL}${after ? `&after=${segment(after)}` : ''}`, options);
    rows.push(...document.queue);
    document.queue.forEach(textOf); // a page at a time, so that no task is long
    state.counts = document.jobs;
    state.scheduler = document.scheduler;
    after = document.next;
    if (!after) break;
  }
  state.next = null;
  return rows;
}

async function readWhy(frame, state, id) {
  const options = {signal: frame.signal};
  const [why, job] = await Promise.all([getOrNull(`/v1/jobs/${id}/why`, options), getOrNull(`/v1/jobs/${id}`, options)]);
  state.why = {id, why, job};
}

async function readOthers(frame, state) {
  await state.first; // rows come first
  const options = {signal: frame.signal};
  const [leases, shares, devices] = await Promise.all([
    may('nodes:read') ? get('/v1/leases', options) : null, get('/v1/shares', options), may('nodes:read') ? get('/v1/devices', options) : null]);
  state.leases = (leases?.leases || []).filter((lease) => lease.ends > lease.begins); // a withdrawn booking ends where it begins
  state.shares = shares.shares;
  state.devices = devices?.devices || [];
}

// ---- the first sentence ----

function headline(state) {
  if (state.scheduler?.why) return sentence(state.scheduler.why);
  const of = (names) => names.reduce((sum, name) => sum + (state.counts[name] || 0), 0);
  const run = of(RUNNING);
  const wait = state.counts.queued || 0;
  const held = state.counts.held || 0;
  if (run + wait + held === 0) return 'Nothing runs and nothing waits.';
  const parts = [`${run || 'None'} ${run === 1 ? 'runs' : 'run'}`, `${wait || 'none'} ${wait === 1 ? 'waits' : 'wait'}`];
  const unseen = state.allHeld ? held - state.rows.filter((row) => row.state === 'held').length : 0;
  if (held) parts.push(`${held} held${unseen > 0 ? ` (${unseen} not shared with you)` : ''}`);
  return `${parts.join(', ')}${mine(state)}.`;
}

// Where the reader's own first job stands.
function mine(state) {
  const own = state.rows.filter((row) => row.owner === session.user);
  const first = own.filter((row) => row.state === 'queued' && row.place).sort((a, b) => a.place - b.place)[0];
  if (first) {
    const place = first.place === 1 ? 'yours is next' : `yours is number ${first.place}`;
    if (!first.starts) return `; ${place}`;
    return first.starts_latest ? `; ${place}, between ${when(first.starts_earliest ?? first.starts)} and ${when(first.starts_latest)}` : `; ${place}, about ${when(first.starts)}`;
  }
  const running = own.filter((row) => RUNNING.includes(row.state) && row.ends).sort((a, b) => a.ends < b.ends ? -1 : 1)[0];
  return running ? `; yours ends about ${when(running.ends)}` : '';
}

// ---- drawing ----

function filtered(frame, state) {
  const query = frame.place.query;
  const words = (query.get('q') || '').toLowerCase().split(/\s+/).filter(Boolean);
  const show = query.get('show') || 'all';
  return state.rows.filter((row) => {
    if (show === 'running' && !RUNNING.includes(row.state)) return false;
    if (show === 'waiting' && !WAITING.includes(row.state)) return false;
    if (show === 'mine' && row.owner !== session.user) return false;
    return words.length === 0 || words.every((word) => textOf(row).includes(word));
  });
}

const texts = new WeakMap();

// What is looked for in a row: made once a row, because there may be ten thousand.
function textOf(row) {
  if (!texts.has(row)) texts.set(row, `${row.id} ${row.name ?? ''} ${row.owner} ${row.account ?? ''} ${row.state} ${row.devices.join(' ')} ${row.why ?? ''} ${Object.entries(row.labels || {}).map(([key, value]) => `${key}=${value}`).join(' ')}`.toLowerCase());
  return texts.get(row);
}

function draw(frame, state) {
  const rows = filtered(frame, state);
  state.visible = shownOf(frame, state, rows);
  const open = Number(frame.place.query.get('job')) || null;
  return [
    h('div', {class: 'head'}, h('h1', {class: 'sentence'}, state.read ? headline(state) : 'Reading the queue…'), trouble(frame.trouble)),
    filterBar(frame, state, rows),
    h('div', {class: open ? 'split open' : 'split'},
      h('section', {'aria-label': 'Jobs'}, state.read ? jobsTable(frame, state, rows) : h('p', {class: 'loading'}, 'Loading…')),
      open && panel(frame, state, open)),
    h('div', {class: 'columns'}, leases(frame, state), shares(state)),
  ];
}

function filterBar(frame, state, rows) {
  const query = frame.place.query;
  const show = query.get('show') || 'all';
  const chosen = state.rows.filter((row) => state.chosen.has(row.id));
  return h('div', {class: 'filters', role: 'search'},
    h('input', {type: 'search', 'data-filter': '', 'aria-label': 'Filter by name, owner, device, reason or label', placeholder: 'Filter: name, owner, device, label  ( / )', value: query.get('q') || '', oninput: (event) => {
      state.page = 0;
      const whole = isFiltered(frame);
      frame.setQuery({q: event.target.value});
      if (whole !== isFiltered(frame)) state.poke();
    }}),
    h('div', {class: 'choice', role: 'group', 'aria-label': 'Which jobs'}, Object.entries(KINDS).map(([name, words]) => h('button', {key: name, type: 'button', 'aria-pressed': String(show === name), onclick: () => {
      state.page = 0;
      frame.setQuery({show: name === 'all' ? null : name});
      state.poke();
    }}, words))),
    h('span', {class: 'dim'}, state.read ? plural(rows.length, 'job') : ''),
    chosen.length > 0 && h('div', {class: 'many', role: 'group', 'aria-label': 'Do to all that are chosen'}, h('strong', null, `${chosen.length} chosen`),
      actionButtons(['hold', 'release', 'priority', 'cancel'], chosen, state.poke),
      chosen.length > 1 && h('a', {class: 'button', href: `/jobs?ids=${chosen.map((row) => row.id).join(',')}`}, 'Compare'),
      h('button', {type: 'button', class: 'quiet', onclick: () => {
        state.chosen.clear();
        frame.paint();
      }}, 'None')));
}

function jobsTable(frame, state, rows) {
  if (rows.length === 0) {
    return state.rows.length > 0 ? empty('No job is like this', 'Take words out of the filter, or choose "Now".')
      : state.ended?.length > 0 ? h('section', {class: 'card', 'aria-label': 'Ended last'}, h('h2', null, 'Ended last'),
        table('Ended last', ['Job', 'State', 'Ended'], state.ended.map((job) => h('tr', {key: job.id}, h('td', null, h('a', {href: `/jobs/${job.id}`}, job.name), h('span', {class: 'dim'}, ` #${job.id}`)), h('td', null, stateBadge(job.state)), h('td', null, time(job.updated, away(job.updated)))))))
      : empty('No jobs', 'Start one: ', h('code', null, 'motley run job.yaml'), ', or look what it would take: ', h('a', {href: '/plan'}, 'a plan'), '.');
  }
  const every = rows.every((row) => state.chosen.has(row.id));
  const choose = (row, on) => {
    on ? state.chosen.add(row.id) : state.chosen.delete(row.id);
    frame.paint();
  };
  return [h('div', {class: 'scroll'}, h('table', {class: 'jobs'},
    h('thead', null, h('tr', null,
      h('th', {class: 'check'}, h('input', {type: 'checkbox', 'aria-label': 'Choose all', checked: every, indeterminate: !every && rows.some((row) => state.chosen.has(row.id)), onchange: (event) => rows.forEach((row) => choose(row, event.target.checked))})),
      ['Place', 'Job', 'Owner', 'State', 'Devices', 'Why', 'Starts, ends', 'Progress'].map((name) => h('th', {scope: 'col'}, name)))),
    h('tbody', null, shownOf(frame, state, rows).map((row) => state.drawn.of(row.id, factsOf(frame, state, row), () => jobRow(frame, state, row, choose)))))), pages(frame, state, rows)];
}

// Of everything, the part that is shown; else the server sent just that.
const shownOf = (frame, state, rows) => state.whole ? rows.slice(PAGE * state.page, PAGE * (state.page + 1)) : rows;

function pages(frame, state, rows) {
  const more = state.whole ? rows.length > PAGE * (state.page + 1) : state.next;
  if (!more && state.page === 0) return null;
  const turn = (by) => {
    state.page = Math.max(0, state.page + by);
    frame.paint();
    state.poke();
  };
  return h('nav', {class: 'row wrap pages', 'aria-label': 'Pages'}, h('button', {type: 'button', disabled: state.page === 0, onclick: () => turn(-1)}, 'Before'), h('span', {class: 'dim'}, `page ${state.page + 1}`), h('button', {type: 'button', disabled: !more, onclick: () => turn(1)}, 'Next'));
}

// What a row's looks depend on.
const factsOf = (frame, state, row) => [row, state.chosen.has(row.id), frame.place.query.get('job') === String(row.id), row.starts || row.ends ? Math.floor(now() / TIMES_MS) : 0];

function jobRow(frame, state, row, choose) {
  const open = frame.place.query.get('job') === String(row.id);
  const show = () => openPanel(frame, state, open ? null : row.id);
  return h('tr', {key: row.id, 'data-job': row.id, class: `${open ? 'open ' : ''}${row.owner === session.user ? 'mine' : ''}`, 'aria-selected': open ? 'true' : null,
    onclick: (event) => event.target.closest('a, input, button') || show()},
  h('td', {class: 'check'}, h('input', {type: 'checkbox', 'aria-label': `Choose job ${row.id}`, checked: state.chosen.has(row.id), onchange: (event) => choose(row, event.target.checked)})),
  h('td', {class: 'number', 'data-label': 'Place'}, row.place ?? (RUNNING.includes(row.state) ? h('span', {class: 'dim'}, '–') : '')),
  h('td', {class: 'name'}, row.name === null ? h('span', {class: 'dim', title: `It is ${row.owner}'s, and not shared with you.`}, `Job ${row.id}`) : h('a', {href: `/jobs/${row.id}`}, row.name || `Job ${row.id}`), h('span', {class: 'dim id'}, ` #${row.id}`)),
  h('td', {'data-label': 'Owner'}, row.owner, row.account && h('span', {class: 'dim'}, ` · ${row.account}`)),
  h('td', null, stateBadge(row.state), row.service && row.service !== 'normal' && h('span', {class: 'tag'}, row.service)),
  h('td', {'data-label': 'Devices'}, devicesOf(row)),
  h('td', {class: 'why'}, h('button', {type: 'button', class: 'text', 'aria-expanded': String(open), title: row.why, onclick: show}, row.why || (row.wait ? `waits: ${row.wait}` : row.name === null ? 'not shared' : 'details'))),
  h('td', {'data-label': RUNNING.includes(row.state) ? 'Ends' : 'Starts'}, timesOf(row)),
  h('td', {class: 'progress'}, progressOf(row)));
}

function devicesOf(row) {
  if (row.devices.length === 0) return h('span', {class: 'dim'}, row.devices_wanted ? `wants ${row.devices_wanted}` : '–');
  const words = row.devices.length > 2 ? `${row.devices[0]} + ${row.devices.length - 1}` : row.devices.join(', ');
  return h('span', {class: WAITING.includes(row.state) ? 'dim' : null, title: row.devices.join(', ')}, words);
}

function timesOf(row) {
  if (ENDED.includes(row.state)) return ['ended ', time(row.ends, away(row.ends))];
  if (RUNNING.includes(row.state)) return row.ends ? ['ends ', time(row.ends), h('span', {class: 'dim'}, ` ${away(row.ends)}${row.ends_by === 'time_limit' ? ', by its time limit' : ''}`)] : h('span', {class: 'dim'}, 'since ', time(row.since));
  if (row.starts && row.starts_latest) return ['starts ', time(row.starts_earliest ?? row.starts), h('span', {class: 'dim'}, ` to ${when(row.starts_latest)}`)];
  return row.starts ? ['starts ', time(row.starts), h('span', {class: 'dim'}, ` ${away(row.starts)}`)] : h('span', {class: 'dim'}, 'not known yet');
}

function progressOf(row) {
  if (row.steps > 0 && row.step >= 0) return [meter(row.step / row.steps, `${row.step} of ${row.steps} steps`), h('span', {class: 'dim'}, `${row.step}/${row.steps}`), Number.isFinite(row.loss) && h('span', {class: 'dim', title: 'loss'}, figure(row.loss))];
  if (RUNNING.includes(row.state) && row.since && row.ends) {
    const part = (now() - Date.parse(row.since)) / (Date.parse(row.ends) - Date.parse(row.since));
    return meter(part, 'of its predicted time');
  }
  return null;
}

// ---- one job beside the table ----

function openPanel(frame, state, id) {
  frame.setQuery({job: id});
  if (!id) return;
  readWhy(frame, state, id).then(() => {
    frame.paint();
    speak(state.why.why?.why || `Job ${id}`);
  }).catch((problem) => toast(problem.message, 'bad'));
}

function panel(frame, state, id) {
  const row = state.rows.find((each) => each.id === id);
  const known = state.why?.id === id ? state.why : {};
  const job = known.job || row;
  const close = h('button', {type: 'button', class: 'quiet', 'aria-label': 'Close', onclick: () => openPanel(frame, state, null)}, '×');
  if (!job) return h('aside', {class: 'panel', 'aria-label': `Job ${id}`}, h('div', {class: 'row between'}, h('h2', null, `Job ${id}`), close), h('p', {class: 'dim'}, known.id ? 'It is not in the queue, or not shared with you.' : 'Loading…'));
  const facts = {Owner: job.owner, Account: row?.account || job.account, Service: row?.service || job.service, Priority: job.priority, Place: row?.place ?? known.why?.place,
    Starts: row?.starts && time(row.starts), Ends: row?.ends && time(row.ends), Submitted: job.created && time(job.created), Attempt: job.attempt, Model: job.spec?.model && shorten(job.spec.model)};
  return h('aside', {class: 'panel', 'aria-label': `Job ${id}`},
    h('div', {class: 'row between'}, h('h2', null, job.name || `Job ${id}`), close),
    h('p', null, stateBadge(job.state), ' ', h('span', {class: 'dim'}, `#${id}`)),
    h('p', {class: 'whole'}, sentence(known.why?.why || row?.why || (job.name === null ? `it is ${job.owner}'s, and not shared with you.` : 'no reason was given.'))),
    sooner(known.why),
    h('div', {class: 'row wrap'}, actionButtons(['hold', 'release', 'priority', ENDED.includes(job.state) ? 'resume' : 'cancel'], [{...job, priority: job.priority}], state.poke)),
    h('dl', {class: 'facts'}, Object.entries(facts).filter(([, value]) => value !== null && value !== undefined && value !== '').map(([name, value]) => [h('dt', null, name), h('dd', null, value)])),
    job.name !== null && h('p', {class: 'row wrap'}, h('a', {href: `/jobs/${id}`}, 'Open the job'), h('a', {href: `/jobs/${id}/why`}, 'Why it is placed so')));
}

// What would start it sooner, and who is before it, where the server says so.
function sooner(why) {
  if (!why) return null;
  const list = (why.sooner || []).map((each) => typeof each === 'string' ? each : each.words || each.what);
  return [
    why.waits_for && h('p', null, 'It waits for ', h('a', {href: `/jobs/${why.waits_for}`}, `job ${why.waits_for}`), '.'),
    why.starts_latest && h('p', null, 'It starts between ', time(why.starts_earliest), ' and ', time(why.starts_latest), Number.isFinite(why.starts_right) && h('span', {class: 'dim'}, ` (${percent(why.starts_right)} of such ranges were right so far)`), '.'),
    list.length > 0 && [h('h3', null, 'What would start it sooner'), h('ul', null, list.map((words) => h('li', null, words)))]];
}

// ---- leases and shares ----

function leases(frame, state) {
  if (state.leases === null) return null;
  const change = async (method, path, body, words) => {
    try {
      await call(method, path, body);
      toast(words);
      await readOthers(frame, state);
      frame.paint();
    } catch (problem) {
      toast(problem.message, 'bad');
    }
  };
  const extend = async (lease) => {
    const minutes = await ask({title: `Extend the lease of ${lease.device}`, action: 'Extend', field: {label: 'Minutes', type: 'number', min: 1, value: '60'}});
    if (minutes) change('PATCH', `/v1/leases/${lease.id}`, {extend_seconds: 60 * Number(minutes)}, `${lease.device} is yours for longer.`);
  };
  const able = (lease) => lease.holder === session.user || may('admin');
  return h('section', {class: 'card', 'aria-label': 'Leases and reservations'}, h('h2', null, 'Leases and reservations'),
    state.leases.length === 0 ? h('p', {class: 'dim'}, 'Nobody holds a device by hand.')
      : table('Leases', ['Device', 'Holder', 'From', 'To', 'Note', ''], state.leases.map((lease) => h('tr', {key: lease.id, class: lease.active ? null : 'later'},
        h('td', null, lease.device), h('td', null, lease.holder, lease.kind === 'maintenance' && h('span', {class: 'tag'}, 'maintenance')), h('td', null, lease.active ? 'now' : time(lease.begins)), h('td', null, time(lease.ends)), h('td', {class: 'why'}, lease.note),
        h('td', {class: 'row'}, able(lease) && [may('leases:write') && h('button', {type: 'button', onclick: () => extend(lease)}, 'Extend'), (may('leases:write') || may('jobs:write')) && h('button', {type: 'button', onclick: () => change('DELETE', `/v1/leases/${lease.id}`, undefined, `${lease.device} is given back.`)}, lease.active ? 'End' : 'Withdraw')])))),
    may('leases:write') && state.devices.length > 0 && leaseForm(state, change));
}

function leaseForm(state, change) {
  return h('form', {class: 'row wrap', onsubmit: (event) => {
    event.preventDefault();
    const form = new FormData(event.target);
    const begins = form.get('begins');
    const body = {device: form.get('device'), seconds: Math.round(60 * Number(form.get('minutes')))};
    if (begins) body.begins = new Date(begins).toISOString();
    if (form.get('note')) body.note = form.get('note');
    change('POST', '/v1/leases', body, `${body.device} is ${begins ? 'booked' : 'yours'}.`);
  }},
  h('label', null, h('span', {class: 'unseen'}, 'Device'), h('select', {name: 'device'}, state.devices.map((device) => h('option', {key: device.name, value: device.name}, device.name)))),
  h('label', null, 'for ', h('input', {name: 'minutes', type: 'number', min: '1', max: '44640', value: '60', required: true, class: 'short'}), ' min'),
  h('label', null, 'from ', h('input', {name: 'begins', type: 'datetime-local', 'aria-label': 'From; empty is now', title: 'Empty: now'})),
  h('label', null, h('span', {class: 'unseen'}, 'Note'), h('input', {name: 'note', placeholder: 'Note', maxlength: 500})),
  h('button', {type: 'submit'}, 'Hold it'));
}

function shares(state) {
  if (!state.shares) return null;
  return h('section', {class: 'card', 'aria-label': 'Shares'}, h('h2', null, 'Shares'), h('p', {class: 'dim'}, 'Who is furthest below their share comes first.'),
    state.shares.length === 0 ? h('p', null, 'Nobody has used anything yet.')
      : table('Shares', ['#Turn', 'User', 'Due and used', '#Due', '#Used', '#Device time'], state.shares.map((share) => h('tr', {key: `${share.group}/${share.user}`, class: share.user === session.user ? 'mine' : null},
        h('td', {class: 'number'}, share.rank), h('td', null, share.user, share.group && h('span', {class: 'dim'}, ` · ${share.group}`)),
        h('td', {class: 'progress'}, meter(share.used, `${share.user} used`, share.used > share.due ? 'over' : '')), h('td', {class: 'number'}, percent(share.due)), h('td', {class: 'number'}, percent(share.used)), h('td', {class: 'number'}, duration(share.used_s))))));
}

// ---- keys ----

function onKey(event, frame, state) {
  if (event.key === 'Escape' && !document.querySelector('dialog') && frame.place.query.get('job')) openPanel(frame, state, null);
  if (event.target.closest('input:not([type=checkbox]), textarea, select, dialog') || event.ctrlKey || event.metaKey || event.altKey) return;
  const rows = state.visible || [];
  if (!['j', 'k', 'x', 'Enter'].includes(event.key) || rows.length === 0) return;
  if (event.key === 'Enter' && event.target.closest('a, button')) return;
  if (event.key === 'j') state.at = Math.min(rows.length - 1, state.focused ? state.at + 1 : 0);
  if (event.key === 'k') state.at = Math.max(0, state.at - 1);
  state.focused = true;
  const row = rows[state.at];
  const element = document.querySelector(`tr[data-job="${row.id}"]`);
  if (event.key === 'x') {
    state.chosen.has(row.id) ? state.chosen.delete(row.id) : state.chosen.add(row.id);
    frame.paint();
  } else if (event.key === 'Enter') openPanel(frame, state, row.id);
  element?.querySelector('input')?.focus({preventScroll: true});
  element?.scrollIntoView({block: 'nearest'});
}
