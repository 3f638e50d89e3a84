// /jobs?ids=17,18: jobs over each other: curves, what their specifications differ in, where they ran. Without ids, the newest jobs.
import {h} from './dom.js';
import {get, getOrNull} from './api.js';
import {Chart, Group} from './chart.js';
import {duration, figure, time} from './format.js';
import {Metrics} from './metrics.js';
import {empty, shorten, stateBadge, table, trouble} from './parts.js';
import {subscribe} from './stream.js';

const JOBS_MAX = 7; // as many as there are colours
const LIST = 200;

export function open(frame) {
  const ids = [...new Set((frame.place.query.get('ids') || '').split(',').map(Number).filter((id) => Number.isInteger(id) && id > 0))].slice(0, JOBS_MAX);
  const state = {ids, jobs: [], missing: [], list: [], metrics: new Map(ids.map((id) => [id, new Metrics(id, frame.signal)]))};
  frame.title(ids.length > 0 ? `Jobs ${ids.join(', ')}` : 'Jobs');
  frame.draw = () => draw(frame, state);
  const group = new Group();
  state.charts = {loss: new Chart(group, {title: 'Loss', smooth: 0.8}), eval: new Chart(group, {title: 'Held-out loss'}), tokens_per_s: new Chart(group, {title: 'Tokens a second', from: 0, smooth: 0.8}), grad_norm: new Chart(group, {title: 'Gradient norm', smooth: 0.8})};
  frame.atEnd(() => Object.values(state.charts).forEach((chart) => chart.close()));
  frame.repeat(() => read(frame, state), 20000);
  const reload = frame.repeat(async () => {
    state.loaded = false;
    await Promise.all([...state.metrics.values()].map((metrics) => metrics.load().catch((problem) => {
      if (problem.status !== 404) throw problem; // that one is told to be missing, and the others are shown
    })));
    state.loaded = true;
    show(state);
  }, 600000);
  if (ids.length > 0) {
    frame.atEnd(subscribe(ids.map((id) => `job:${id}`), (events) => {
      if (!state.loaded) return;
      const missing = [...state.metrics].map(([id, metrics]) => metrics.take(events.filter((event) => event.type === 'gap' || event.data?.job === id)));
      if (missing.some(Boolean)) reload();
      show(state);
    }));
  }
}

async function read(frame, state) {
  const options = {signal: frame.signal};
  const found = await Promise.all(state.ids.map((id) => getOrNull(`/v1/jobs/${id}`, options)));
  state.jobs = found.filter(Boolean);
  state.missing = state.ids.filter((id, i) => !found[i]);
  state.list = (await get(`/v1/jobs?limit=${LIST}`, options)).jobs;
  show(state);
}

const colourOf = (state, id) => `line${state.ids.indexOf(id) + 1}`;
const nameOf = (state, id) => `${state.jobs.find((job) => job.id === id)?.name ?? 'job'} #${id}`;

function show(state) {
  for (const [key, chart] of Object.entries(state.charts)) {
    chart.set([...state.metrics].map(([id, metrics]) => key === 'eval' ? {name: nameOf(state, id), colour: colourOf(state, id), dots: true, x: metrics.evals.map((line) => line.step), y: metrics.evals.map((line) => line.loss)}
      : {name: nameOf(state, id), colour: colourOf(state, id), x: metrics.steps.x, y: metrics.steps[key].y, least: metrics.steps[key].least, most: metrics.steps[key].most}));
  }
}

function draw(frame, state) {
  return [
    h('div', {class: 'head'}, h('h1', null, state.ids.length > 0 ? `${state.ids.length} ${state.ids.length === 1 ? 'job' : 'jobs'} side by side` : 'Choose jobs to compare'), trouble(frame.trouble),
      state.missing.length > 0 && h('p', {class: 'notice warn'}, `${state.missing.map((id) => `#${id}`).join(', ')}: not there, or you may not see it.`)),
    state.ids.length > 0 && h('section', {class: 'card', 'aria-label': 'Curves'}, h('div', {class: 'charts'}, Object.values(state.charts).filter((chart) => chart.series.some((series) => series.x.length > 0)).map((chart) => chart.element()))),
    state.ids.length > 0 && differences(state),
    choices(frame, state),
  ];
}

// ---- what differs ----

function flatten(value, path, out) {
  if (value && typeof value === 'object' && !Array.isArray(value)) for (const [key, each] of Object.entries(value)) flatten(each, path ? `${path}.${key}` : key, out);
  else out.set(path, Array.isArray(value) ? value.map((each) => typeof each === 'object' ? JSON.stringify(each) : each).join(', ') : value === null ? '–' : String(value));
  return out;
}

function differences(state) {
  if (state.jobs.length === 0) return null;
  const specs = state.jobs.map((job) => flatten({...job.spec, name: undefined}, '', new Map()));
  const keys = [...new Set(specs.flatMap((spec) => [...spec.keys()]))].filter((key) => key !== 'name' && new Set(specs.map((spec) => spec.get(key) ?? '–')).size > 1).sort();
  const results = [
    ['State', (job) => stateBadge(job.state)], ['Steps', (job) => `${job.step} of ${job.steps}`], ['Loss', (job) => figure(job.loss)], ['Placement', (job) => job.run?.plan_answer?.placement ?? '–'],
    ['Devices', (job) => (job.run?.ranks || []).map((rank) => rank.device).join(', ') || '–'], ['A step, predicted', (job) => duration(job.run?.plan_answer?.step_s)], ['A step, measured', (job) => duration(state.metrics.get(job.id).pace())], ['Submitted', (job) => time(job.created)]];
  const heads = ['', ...state.jobs.map((job) => `${job.name} #${job.id}`)];
  return h('div', {class: 'columns'},
    h('section', {class: 'card', 'aria-label': 'Results'}, h('h2', null, 'How they went'), table('Results', heads, results.map(([name, value]) => h('tr', {key: name}, h('th', {scope: 'row'}, name), state.jobs.map((job) => h('td', {key: job.id}, value(job)))))), h('p', {class: 'row wrap'}, state.jobs.map((job) => h('a', {key: job.id, href: `/jobs/${job.id}/lanes`}, `lanes of #${job.id}`)))),
    h('section', {class: 'card', 'aria-label': 'Specifications'}, h('h2', null, 'What their specifications differ in'),
      keys.length === 0 ? h('p', {class: 'dim'}, state.jobs.length > 1 ? 'Nothing but their names.' : 'Choose another job to compare with.')
        : table('Differences', heads, keys.map((key) => h('tr', {key}, h('th', {scope: 'row'}, key), specs.map((spec, index) => h('td', {key: index, title: spec.get(key)}, shorten(spec.get(key) ?? '–'))))))));
}

function choices(frame, state) {
  if (state.list.length === 0) return frame.trouble ? null : empty('No jobs yet', 'They appear here when somebody submits one.');
  const toggle = (id) => {
    const next = state.ids.includes(id) ? state.ids.filter((each) => each !== id) : [...state.ids, id];
    frame.go(`/jobs${next.length > 0 ? `?ids=${next.join(',')}` : ''}`);
  };
  return h('section', {class: 'card', 'aria-label': 'Jobs'}, h('h2', null, 'Jobs, the newest first'), h('p', {class: 'dim'}, `At most ${JOBS_MAX} at once.`),
    table('Jobs', ['', 'Job', 'Owner', 'State', 'Step', 'Loss', 'Submitted'], state.list.map((job) => h('tr', {key: job.id},
      h('td', null, h('input', {type: 'checkbox', 'aria-label': `Compare job ${job.id}`, checked: state.ids.includes(job.id), disabled: !state.ids.includes(job.id) && state.ids.length >= JOBS_MAX, onchange: () => toggle(job.id)})),
      h('td', null, h('a', {href: `/jobs/${job.id}`}, job.name), h('span', {class: 'dim'}, ` #${job.id}`)), h('td', null, job.owner), h('td', null, stateBadge(job.state)), h('td', null, `${job.step ?? 0}/${job.steps ?? '–'}`), h('td', null, figure(job.loss)), h('td', null, time(job.created))))));
}
