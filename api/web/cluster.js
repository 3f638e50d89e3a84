// /cluster: machines as boxes with a tile a device, the links between them, and a table to act on devices.
import {ask, Drawn, h, toast} from './dom.js';
import {call, get, getOrNull, may, segment} from './api.js';
import {away, bytes, duration, figure, now, percent, rate, time} from './format.js';
import {empty, meter, stack, table, trouble} from './parts.js';
import {subscribe} from './stream.js';

const PICTURE_NODES = 12; // of more machines, links are in the table alone
const MACHINES = 6; // drawn at once: the next ones come with the next drawing, so that none takes long
const PAGE = 50; // devices of the table
const MINUTE = 60000;
const CLOCK_OFF = 30; // seconds from which a clock is named

export function open(frame) {
  const state = {devices: null, nodes: [], links: [], leases: [], queue: [], load: new Map(), jobs: new Map(), machines: MACHINES, page: null, drawn: new Drawn()};
  frame.title('Cluster');
  frame.draw = () => draw(frame, state);
  state.poke = frame.repeat(() => readDevices(frame, state), 10000, 1500);
  frame.repeat(() => readLinks(frame, state), 60000);
  frame.atEnd(subscribe(['devices', 'queue'], () => state.poke()));
}

async function readDevices(frame, state) {
  const options = {signal: frame.signal};
  const [devices, nodes, leases, queue] = await Promise.all([get('/v1/devices', options), get('/v1/nodes', options), get('/v1/leases', options), get('/v1/queue', options)]);
  Object.assign(state, {devices: devices.devices, nodes: nodes.nodes, leases: leases.leases, queue: queue.queue, jobs: new Map(queue.queue.map((row) => [row.id, row]))});
}

// Links, and what every device did in the last hour.
async function readLinks(frame, state) {
  const options = {signal: frame.signal};
  const [known, load] = await Promise.all([get('/v1/links', options), getOrNull('/v1/load', options)]);
  state.load = new Map((load?.devices || []).map((each) => [each.name, {...each, seconds: (Date.parse(load.to) - Date.parse(load.from)) / 1000}]));
  const pairs = new Map();
  for (const {from, to, latency_s: latency, bytes_per_s: bytesPerSecond, emulated, unreachable, measured_at: measured} of known.links) {
    const pair = [from, to].sort().join(' ');
    if (from !== to && !(unreachable && pairs.has(pair))) pairs.set(pair, {a: from, b: to, latency, rate: unreachable ? 0 : bytesPerSecond, emulated, apart: unreachable, measured});
  }
  state.links = [...pairs.values()];
}

function draw(frame, state) {
  if (!state.devices) return [trouble(frame.trouble) || h('p', {class: 'loading'}, 'Loading…')];
  const names = [...new Set([...state.nodes.map((node) => node.name), ...state.devices.map((device) => device.node)])].sort();
  if (names.length === 0) return [trouble(frame.trouble), empty('No machine has joined', h('code', null, 'motley join-token'), ' prints what the first one needs.')];
  const busy = state.devices.filter((device) => device.job_owner).length;
  const lost = state.nodes.filter((node) => node.state !== 'alive' || node.lacking || Math.abs(node.clock_ahead_s || 0) >= CLOCK_OFF);
  if (state.machines < names.length) {
    requestAnimationFrame(() => {
      state.machines += MACHINES;
      frame.paint();
    });
  }
  return [
    h('div', {class: 'head'}, h('h1', null, `${busy} of ${state.devices.length} devices ${busy === 1 ? 'is' : 'are'} busy with jobs, on ${names.length} ${names.length === 1 ? 'machine' : 'machines'}.`), trouble(frame.trouble),
      lost.map((node) => h('p', {key: node.name, class: 'notice warn'}, node.state !== 'alive' ? `${node.name} is ${node.state}${node.why ? `: ${node.why}` : ''}` : `${node.name}: ${node.why}`))),
    h('div', {class: 'machines'}, names.slice(0, state.machines).map((name) => machine(state, name))),
    links(state, names),
    devicesTable(frame, state),
  ];
}

const jobOf = (state, device) => state.jobs.get(device.job);
const LOOKS = {free: '', busy: 'busy', leased: 'busy', drained: 'drained', draining: 'drained'}; // by a device's state; else away

// The job on a device: its name where one may see it, else whose it is; null for none.
function worksFor(state, device) {
  if (device.job) return h('a', {href: `/jobs/${device.job}`}, jobOf(state, device)?.name || `job ${device.job}`);
  return device.job_owner && h('span', {title: 'It is not shared with you.'}, `a job of ${device.job_owner}`);
}

function machine(state, name) {
  const node = state.nodes.find((each) => each.name === name);
  const devices = state.devices.filter((device) => device.node === name);
  const leases = state.leases.filter((lease) => lease.active && devices.some((device) => device.name === lease.device));
  const facts = [node?.state, devices, leases, devices.map((device) => [jobOf(state, device), state.load.get(device.name)])];
  return state.drawn.of(`machine ${name}`, facts, () => h('section', {key: name, class: 'card machine', 'aria-label': `Machine ${name}`}, h('div', {class: 'row between'}, h('h2', null, name), h('span', {class: `state ${node?.state === 'alive' ? 'running' : 'failed'}`}, h('span', {class: 'dot', 'aria-hidden': 'true'}), node?.state || 'unknown')),
    h('div', {class: 'tiles'}, devices.map((device) => tile(state, device))), devices.length === 0 && h('p', {class: 'dim'}, 'It has no device that can be used.')));
}

function tile(state, device) {
  const {health} = device;
  const job = worksFor(state, device);
  const lease = state.leases.find((each) => each.device === device.name && each.active);
  const kind = LOOKS[device.state] ?? 'away';
  const hot = health?.throttle?.length > 0;
  const total = health?.memory_bytes || device.memory_limit_bytes;
  return h('div', {key: device.name, class: `tile ${kind}`},
    h('strong', null, device.name.split('/').slice(1).join('/') || device.name),
    h('small', null, device.catalogue?.entry || device.like || device.kind),
    h('span', null, job ? [job, device.job && h('small', null, ` ${device.job_owner}`)] : lease && device.state === 'leased' ? `leased by ${lease.holder}` : device.state),
    lastHour(state.load.get(device.name)),
    health?.used_bytes ? meter(health.used_bytes / total, `memory of ${bytes(total)}`) : null, h('small', null, health?.used_bytes ? `${bytes(health.used_bytes)} of ${bytes(total)}` : `limit ${bytes(device.memory_limit_bytes)}`),
    (health?.temperature_c !== undefined || hot) && h('small', {class: hot ? 'hot' : null}, [health.temperature_c !== undefined && `${health.temperature_c} °C`, health.power_w !== undefined && `${health.power_w} W`, hot && `throttled: ${health.throttle.join(', ')}`].filter(Boolean).join(' · ')));
}

// How much of the last hour it computed, and waited for others while it was held; sending overlaps both.
function lastHour(load) {
  if (!load || !(load.compute_s + load.wait_s > 0)) return null;
  return [stack([[load.compute_s / load.seconds, 'computes', 'computed'], [load.wait_s / load.seconds, 'waits', 'waited']], 'the last hour'), h('small', null, `last hour: computed ${percent(load.compute_s / load.seconds)}, sent ${percent(load.send_s / load.seconds)}`)];
}

// ---- links ----

function links(state, names) {
  if (state.links.length === 0 && names.length < 2) return null;
  return h('section', {class: 'card', 'aria-label': 'Links'}, h('h2', null, 'Links between machines'),
    state.links.length === 0 ? h('p', {class: 'dim'}, 'No link has been measured yet: that happens when a job is planned over several machines.')
      : h('div', {class: 'columns'}, names.length <= PICTURE_NODES && picture(state, names),
        table('Links', ['Between', '#Rate', '#Latency', 'Measured'], state.links.map((link) => h('tr', {key: `${link.a} ${link.b}`}, h('td', null, `${link.a} – ${link.b}`), link.apart ? [h('td', {class: 'number'}, '–'), h('td', {class: 'number'}, '–')] : [h('td', {class: 'number'}, rate(link.rate)), h('td', {class: 'number'}, duration(link.latency))], h('td', null, link.measured ? time(link.measured, away(link.measured)) : '–', link.emulated && h('span', {class: 'tag'}, 'emulated'), link.apart && h('span', {class: 'tag'}, 'cannot connect')))))));
}

function picture(state, names) {
  const wide = names.length > 2;
  const width = 720;
  const height = wide ? 360 : 110;
  const at = new Map(names.map((name, index) => {
    const angle = 2 * Math.PI * index / names.length - Math.PI;
    return [name, [width / 2 + Math.cos(angle) * 260, height / 2 + (wide ? Math.sin(angle) * 140 : 0)]];
  }));
  const slowest = Math.min(...state.links.map((link) => link.rate || Infinity));
  return h('svg', {viewBox: `0 0 ${width} ${height}`, class: 'picture', role: 'img', 'aria-label': 'Machines and the links between them; the table below has the figures'},
    state.links.filter((link) => at.has(link.a) && at.has(link.b) && !link.apart).map((link) => {
      const [[x0, y0], [x1, y1]] = [at.get(link.a), at.get(link.b)];
      const [x, y] = [(x0 + x1) / 2, (y0 + y1) / 2];
      return h('g', {key: `${link.a} ${link.b}`}, h('line', {x1: x0, y1: y0, x2: x1, y2: y1, class: `wire ${link.rate === slowest && state.links.length > 1 ? 'slow' : ''}`}),
        state.links.length <= 15 && [h('rect', {x: x - 66, y: y - 11, width: 132, height: 22, class: 'back'}), h('text', {x, y: y + 4, 'text-anchor': 'middle', class: 'dim'}, `${rate(link.rate)}, ${duration(link.latency)}`)]);
    }),
    names.map((name) => {
      const [x, y] = at.get(name);
      const count = state.devices.filter((device) => device.node === name).length;
      return h('g', {key: name}, h('rect', {x: x - 62, y: y - 24, width: 124, height: 48, rx: 8, class: 'node'}), h('text', {x, y: y - 3, 'text-anchor': 'middle'}, name.length > 16 ? `${name.slice(0, 15)}…` : name), h('text', {x, y: y + 14, 'text-anchor': 'middle', class: 'dim'}, `${count} ${count === 1 ? 'device' : 'devices'}`));
    }));
}

// ---- the table ----

function devicesTable(frame, state) {
  const change = async (method, path, body, words) => {
    try {
      await call(method, path, body);
      toast(words);
      state.poke();
    } catch (problem) {
      toast(problem.message, 'bad');
    }
  };
  const lease = async (device) => {
    const minutes = await ask({title: `Hold ${device.name}`, text: 'No job starts there, and the time is charged to you.', action: 'Hold it', field: {label: 'Minutes', type: 'number', min: 1, max: 44640, value: '60'}});
    if (minutes) change('POST', '/v1/leases', {device: device.name, seconds: Math.round(60 * Number(minutes))}, `${device.name} is yours.`);
  };
  const drain = (device) => change('POST', `/v1/devices/${segment(device.name)}/${device.drained ? 'undrain' : 'drain'}`, undefined, device.drained ? `Jobs may start on ${device.name} again.` : `Nothing new starts on ${device.name}; what runs there moves at its next checkpoint.`);
  const reason = may('nodes:write') ? null : 'Your session lacks the scope nodes:write.';
  const wanted = frame.place.query.get('device');
  state.page ??= Math.max(0, Math.floor(state.devices.findIndex((device) => device.name === wanted) / PAGE));
  const shown = state.devices.slice(PAGE * state.page, PAGE * (state.page + 1));
  return h('section', {class: 'card', 'aria-label': 'Devices'}, h('h2', null, 'Devices'),
    table('Devices', ['Device', 'Kind', 'State', 'Job', '#Memory', '#Measured', '#Heat', 'Lease', ''], shown.map((device) => {
      const held = state.leases.filter((each) => each.device === device.name);
      return state.drawn.of(device.name, [device, held, jobOf(state, device)?.name, wanted === device.name, reason, held.length > 0 ? Math.floor(now() / MINUTE) : 0], () => h('tr', {key: device.name, class: wanted === device.name ? 'mine' : null}, h('td', null, device.name), h('td', null, device.kind), h('td', null, device.state, device.drained && !device.state.startsWith('drain') && h('span', {class: 'tag', title: device.drain_why}, 'drained'), (device.drain_why || device.lacks) && h('span', {class: 'dim'}, ` ${device.drain_why || device.lacks}`)),
        h('td', null, worksFor(state, device) || '–'), h('td', {class: 'number'}, bytes(device.memory_limit_bytes)),
        h('td', {class: 'number'}, device.catalogue ? h('span', {title: `${device.catalogue.entry}: ${figure(device.catalogue.ratio)} of what the catalogue expects`}, `${figure(device.catalogue.flops_per_s / 1e9)} GFLOP/s`) : '–'),
        h('td', {class: 'number'}, device.health?.temperature_c !== undefined ? `${device.health.temperature_c} °C` : '–'),
        h('td', null, held.map((each) => h('span', {key: each.id}, each.active ? `${each.holder} until ` : `${each.holder} from `, time(each.active ? each.ends : each.begins, each.active ? away(each.ends) : undefined), ' '))),
        h('td', {class: 'row end'}, h('button', {type: 'button', onclick: () => lease(device)}, 'Hold'), h('button', {type: 'button', 'aria-disabled': reason ? 'true' : null, title: reason, onclick: () => reason ? toast(reason, 'bad') : drain(device)}, device.drained ? 'Undrain' : 'Drain'))));
    })), devicePages(frame, state), h('p', {class: 'dim'}, 'Who used what: ', h('code', null, 'motley usage --by device'), '.'));
}

function devicePages(frame, state) {
  const last = Math.ceil(state.devices.length / PAGE) - 1;
  state.page = Math.min(state.page, Math.max(0, last));
  if (last < 1) return null;
  const turn = (by) => {
    state.page += by;
    frame.paint();
  };
  return h('nav', {class: 'row wrap pages', 'aria-label': 'Pages of devices'}, h('button', {type: 'button', disabled: state.page === 0, onclick: () => turn(-1)}, 'Before'), h('span', {class: 'dim'}, `page ${state.page + 1} of ${last + 1}`), h('button', {type: 'button', disabled: state.page === last, onclick: () => turn(1)}, 'Next'));
}
