// /jobs/N: one job: where it stands, its curves, its devices, and what it leaves.
import {h} from './dom.js';
import {all, get, segment} from './api.js';
import {Chart, Group} from './chart.js';
import {away, bytes, count, duration, figure, sentence, time, when} from './format.js';
import {closer, Metrics, readJob} from './metrics.js';
import {actionButtons, ENDED, meter, RUNNING, stack, stateBadge, table, trouble} from './parts.js';
import {subscribe} from './stream.js';

const SLOW = 1.15; // a device that computes for so many times what was predicted is named
const LOG_LINES = 500;
const SMOOTH = 0.8; // weight of what was before
const STEADY = 10; // events without a gap, after which one is worth a word
const WITHOUT_STREAM_MS = 2000; // after which the past is read, stream or not

export function open(frame) {
  const id = Number(frame.place.id);
  const state = {id, metrics: new Metrics(id, frame.signal), job: null, runs: [], why: null, artifacts: [], log: [], charts: {}, smooth: SMOOTH, log10: false, news: [], steady: 0};
  state.begun = new Promise((resolve) => { state.begin = resolve; });
  frame.title(`Job ${id}`);
  frame.draw = () => draw(frame, state);
  makeCharts(frame, state);
  // What comes while the past is read waits until it is there: so no step is lost, and none counts twice.
  frame.atEnd(subscribe([`job:${id}`], (events) => hear(frame, state, events)));
  state.poke = frame.repeat(() => readFacts(frame, state), 20000, 1500);
  state.reload = frame.repeat(() => readPast(frame, state), 3600000, 2000);
}

// ---- reading ----

async function readFacts(frame, state) {
  const options = {signal: frame.signal};
  const path = `/v1/jobs/${state.id}`;
  const [job, runs, why, artifacts] = await Promise.all([readJob(state.id, frame.signal), all(`${path}/runs`, 'runs', 500, options), get(`${path}/why`, options), all(`${path}/artifacts`, 'artifacts', 2000, options)]);
  Object.assign(state, {job, runs, why, artifacts});
  frame.title(`${job.name} · job ${job.id}`);
  showCurves(state);
}

async function readPast(frame, state) {
  const options = {signal: frame.signal};
  state.loaded = false;
  await Promise.race([state.begun, new Promise((resolve) => { setTimeout(resolve, WITHOUT_STREAM_MS); })]);
  await state.metrics.load();
  state.log = (await all(`/v1/jobs/${state.id}/logs`, 'lines', 20000, options)).slice(-LOG_LINES);
  state.loaded = true;
  const news = state.news;
  state.news = [];
  hear(frame, state, news);
  showCurves(state);
}

function hear(frame, state, events) {
  if (events.some((event) => event.type === 'begun')) state.begin();
  if (!state.loaded) {
    state.news.push(...events);
    return;
  }
  if (state.metrics.take(events)) {
    state.gap ||= state.steady > STEADY;
    state.steady = 0;
    state.loaded = false;
    state.reload();
  } else state.steady += events.length;
  for (const {type, id, data} of events) {
    if (type === 'log' && !state.log.some((line) => line.id === id)) state.log.push({id, ...data});
    if (['state', 'checkpoint', 'run', 'plan', 'artifact'].includes(type)) state.poke();
  }
  state.log = state.log.slice(-LOG_LINES);
  showCurves(state);
  frame.paint();
}

// ---- curves ----

function makeCharts(frame, state) {
  const group = state.group = new Group();
  state.charts = {
    loss: new Chart(group, {title: 'Loss', unit: 'nats per token', smooth: state.smooth}),
    grad_norm: new Chart(group, {title: 'Gradient norm', unit: 'before clipping'}),
    learning_rate: new Chart(group, {title: 'Learning rate', from: 0}),
    tokens_per_s: new Chart(group, {title: 'Tokens a second', from: 0, smooth: state.smooth}),
    seconds: new Chart(group, {title: 'Step', unit: 's', from: 0}),
  };
  let timer;
  group.changed = () => {
    clearTimeout(timer);
    timer = setTimeout(() => lookCloser(frame, state), 250);
  };
  frame.atEnd(() => Object.values(state.charts).forEach((chart) => chart.close()));
}

// Where a part is shown whose steps came as buckets, reads that part's own steps.
async function lookCloser(frame, state) {
  state.near = null;
  if (state.group.from !== null && state.metrics.steps.loss.least) {
    const [from, to] = state.group.range();
    const near = await closer(state.id, Math.max(0, Math.floor(from)), Math.ceil(to) + 1, frame.signal).catch(() => null);
    if (near && state.group.from === from) {
      state.near = new Metrics(state.id, frame.signal);
      state.near.takeBuckets(near.buckets, near.width);
    }
  }
  showCurves(state);
}

function showCurves(state) {
  const {steps, evals} = state.metrics;
  const colours = {loss: 'line1', grad_norm: 'line2', learning_rate: 'line3', tokens_per_s: 'line4', seconds: 'line2'};
  for (const [key, chart] of Object.entries(state.charts)) {
    const series = [{name: key === 'loss' ? 'training' : chart.title.toLowerCase(), colour: colours[key], x: steps.x, y: steps[key].y, least: steps[key].least, most: steps[key].most}];
    if (state.near) Object.assign(series[0], {x: state.near.steps.x, y: state.near.steps[key].y, least: state.near.steps[key].least, most: state.near.steps[key].most});
    if (key === 'loss' && evals.length > 0) series.push({name: 'held-out', colour: 'line5', dots: true, x: evals.map((line) => line.step), y: evals.map((line) => line.loss)});
    const planned = answerOf(state)?.step_s;
    if (key === 'seconds' && planned && steps.x.length > 1) series.push({name: 'predicted', colour: 'line5', x: [steps.x[0], steps.x[steps.x.length - 1]], y: [planned, planned]});
    chart.set(series);
  }
}

// ---- drawing ----

const answerOf = (state) => state.job?.run?.plan_answer;

function draw(frame, state) {
  const {job} = state;
  if (!job) return [trouble(frame.trouble) || h('p', {class: 'loading'}, 'Loading…')];
  return [headline(frame, state, job), state.gap && h('p', {class: 'notice'}, 'The stream skipped; what was missing has been read again. ', h('button', {type: 'button', class: 'quiet', onclick: () => {
    state.gap = false;
    frame.paint();
  }}, 'Good')), curves(frame, state), h('div', {class: 'columns'}, devices(state), memory(state)), samples(state), trial(state), h('div', {class: 'columns'}, attempts(state), downloads(state)), logBox(state)];
}

function headline(frame, state, job) {
  const pace = state.metrics.pace();
  const planned = answerOf(state)?.step_s;
  const done = Math.max(job.step || 0, state.metrics.last + 1);
  const left = job.steps - done;
  const slow = slowest(state);
  const facts = [
    ['Step', `${count(done)} of ${count(job.steps)}`],
    ['Time left', RUNNING.includes(job.state) && left > 0 && Number.isFinite(pace) ? `${duration(left * pace)}` : null],
    ['Loss', Number.isFinite(lastOf(state, 'loss')) ? figure(lastOf(state, 'loss')) : null],
    ['A step takes', Number.isFinite(pace) ? [duration(pace), planned && h('span', {class: 'dim'}, ` measured; ${duration(planned)} predicted (${signed(planned / pace - 1)})`)] : planned ? [duration(planned), h('span', {class: 'dim'}, ' predicted')] : null],
    ['Tokens a second', Number.isFinite(lastOf(state, 'tokens_per_s')) ? count(lastOf(state, 'tokens_per_s')) : null],
    ['Placement', answerOf(state)?.placement],
  ];
  return h('div', {class: 'head'}, trouble(frame.trouble),
    h('div', {class: 'row between wrap'}, h('h1', null, job.name, h('span', {class: 'dim'}, ` #${job.id}`)),
      h('div', {class: 'row wrap'}, actionButtons(['hold', 'release', 'priority', ENDED.includes(job.state) ? 'resume' : 'cancel'], [job], state.poke))),
    h('p', {class: 'row wrap'}, stateBadge(job.state), h('span', null, `${job.owner}'s`), job.started && h('span', {class: 'dim'}, 'began ', time(job.started, away(job.started))), job.ended && h('span', {class: 'dim'}, 'ended ', time(job.ended, away(job.ended))),
      h('nav', {class: 'row', 'aria-label': 'Of this job'}, h('a', {href: `/jobs/${job.id}/why`}, 'Why it is placed so'), h('a', {href: `/jobs/${job.id}/lanes`}, 'Lanes'), h('a', {href: `/jobs?ids=${job.id}`}, 'Compare'), h('a', {href: `/plan?job=${job.id}`}, 'Plan again'))),
    state.why && !RUNNING.includes(job.state) && job.state !== 'succeeded' && h('p', {class: `notice ${job.state === 'failed' ? 'bad' : ''}`}, sentence(state.why.why)),
    job.state === 'succeeded' && job.why && h('p', {class: 'notice warn'}, sentence(job.why)),
    slow && h('p', {class: 'notice warn'}, `${slow.device} takes ${slow.ratio.toFixed(1)} times as long to compute as when it was measured: something else runs there, or it is hot.`),
    job.steps > 0 && meter(done / job.steps, `${done} of ${job.steps} steps`, 'wide'),
    h('dl', {class: 'figures'}, facts.filter(([, value]) => value !== null && value !== undefined).map(([name, value]) => h('div', {key: name}, h('dt', null, name), h('dd', null, value)))));
}

const signed = (part) => `${part >= 0 ? '+' : '−'}${(100 * Math.abs(part)).toFixed(1)} %`;

function lastOf(state, key) {
  const {y} = state.metrics.steps[key];
  return y.length > 0 ? y[y.length - 1] : NaN;
}

function slowest(state) {
  if (state.job.state !== 'running') return null;
  const slow = state.metrics.devices(answerOf(state)).filter((device) => device.ratio > SLOW);
  return slow.sort((a, b) => b.ratio - a.ratio)[0] || null;
}

function curves(frame, state) {
  const {charts} = state;
  const toggle = (name, on, change) => h('button', {type: 'button', 'aria-pressed': String(on), onclick: () => {
    change();
    for (const chart of Object.values(charts)) chart.draw();
    frame.paint();
  }}, name);
  return h('section', {class: 'card', 'aria-label': 'Curves', 'data-steps': state.loaded ? state.metrics.count : null, 'data-last': state.metrics.last}, h('div', {class: 'row between wrap'}, h('h2', null, 'Curves'),
    h('div', {class: 'choice'}, toggle('Smooth', state.smooth > 0, () => { charts.loss.smooth = charts.tokens_per_s.smooth = state.smooth = state.smooth > 0 ? 0 : SMOOTH; }),
      toggle('Log', state.log10, () => { state.log10 = charts.loss.log = charts.grad_norm.log = !state.log10; }),
      h('button', {type: 'button', onclick: () => state.group.show(-Infinity, Infinity)}, 'All steps'))),
  h('p', {class: 'dim hint'}, 'Drag moves, Ctrl and the wheel zoom, a double click shows all; with keys: arrows, + and −, 0.'),
  h('div', {class: 'charts'}, Object.values(charts).map((chart) => chart.element())));
}

function devices(state) {
  const rows = state.metrics.devices(answerOf(state));
  return h('section', {class: 'card', 'aria-label': 'Devices'}, h('h2', null, 'Time of the devices'), h('p', {class: 'dim'}, 'The medians of the last 10 steps. ', h('span', {class: 'key computes'}), 'computes ', h('span', {class: 'key waits'}), 'waits; sending overlaps both.'),
    rows.length === 0 ? h('p', null, answerOf(state) ? 'Nothing was measured yet, or it comes with the next steps.' : 'It has not been placed yet.')
      : table('Devices', ['Device', '', '#Computes', '#Predicted', '#Ratio', '#Waits', '#Sends'], rows.map((row) => {
        const whole = row.compute + row.wait;
        return h('tr', {key: row.rank}, h('td', null, h('a', {href: `/cluster?device=${segment(row.device)}`}, row.device)), h('td', {class: 'progress'}, stack([[row.compute / whole, 'computes', 'computes'], [row.wait / whole, 'waits', 'waits']], row.device)),
          h('td', {class: 'number'}, duration(row.compute)), h('td', {class: 'number'}, duration(row.predicted)), h('td', {class: `number ${row.ratio > SLOW ? 'bad' : ''}`}, figure(row.ratio)), h('td', {class: 'number'}, duration(row.wait)), h('td', {class: 'number'}, duration(row.send)));
      })));
}

function memory(state) {
  const planned = answerOf(state)?.ranks || [];
  const ranks = state.job.run?.ranks || [];
  if (planned.length === 0) return null;
  return h('section', {class: 'card', 'aria-label': 'Memory'}, h('h2', null, 'Memory'), h('p', {class: 'dim'}, 'Of the limit that a device\'s allocator keeps.'),
    table('Memory', ['Device', '', '#Predicted', '#Peak', '#Limit', '#Process'], planned.map((rank, index) => {
      const measured = ranks.find((each) => each.rank === (rank.rank ?? index))?.memory;
      return h('tr', {key: index}, h('td', null, rank.device), h('td', {class: 'progress'}, meter((measured?.peak_bytes || rank.memory_bytes) / rank.memory_limit_bytes, 'of its limit')),
        h('td', {class: 'number'}, bytes(rank.memory_bytes)), h('td', {class: 'number'}, bytes(measured?.peak_bytes)), h('td', {class: 'number'}, bytes(rank.memory_limit_bytes)), h('td', {class: 'number'}, bytes(measured?.vm_hwm_bytes)));
    })), purposes(planned));
}

// What the memory is for, where the plan says it.
function purposes(planned) {
  const rows = planned.filter((rank) => rank.memory && typeof rank.memory === 'object');
  return rows.map((rank) => h('p', {key: rank.device, class: 'dim'}, `${rank.device}: `, Object.entries(rank.memory).map(([name, size]) => `${name.replaceAll('_', ' ')} ${bytes(size)}`).join(', ')));
}

function samples(state) {
  const list = state.metrics.samples;
  if (list.length === 0) return null;
  return h('section', {class: 'card', 'aria-label': 'Samples'}, h('h2', null, 'Samples'), list[0].prompt && h('p', {class: 'dim'}, `Prompt: ${list[0].prompt}`),
    h('div', {class: 'samples', tabindex: 0, role: 'region', 'aria-label': 'Samples over steps'}, list.map((sample) => h('div', {key: sample.step}, h('h3', null, `after ${count(sample.step)} steps`), h('p', {class: 'said'}, sample.text ?? (sample.ids || []).join(' '))))));
}

// The plans that the first steps were run on, and what each took.
function trial(state) {
  const {trial} = state.job;
  if (!trial) return null;
  return h('section', {class: 'card', 'aria-label': 'Trial steps'}, h('h2', null, 'Trial steps'), h('p', {class: 'dim'}, trial.words ? sentence(trial.words) : 'The first steps run on these plans in turn; the fastest is kept.'),
    table('Trial steps', ['Plan', 'Devices', '#Predicted', '#Measured', ''], trial.plans.map((plan, index) => h('tr', {key: index},
      h('td', null, plan.placement), h('td', null, plan.devices.length > 2 ? h('span', {title: plan.devices.join(', ')}, `${plan.devices[0]} + ${plan.devices.length - 1}`) : plan.devices.join(', ')), h('td', {class: 'number'}, duration(plan.predicted_s)),
      h('td', {class: 'number'}, plan.measured_s ? duration(plan.measured_s) : '–'), h('td', null, trial.chosen === index ? 'kept' : trial.state === 'trying' && trial.at === index ? 'runs' : '')))));
}

function attempts(state) {
  if (state.runs.length === 0) return null;
  const newest = state.job.run;
  return h('section', {class: 'card', 'aria-label': 'Attempts'}, h('h2', null, 'Attempts and moves'),
    table('Attempts', ['#Attempt', 'State', '#From step', 'Began', 'Took', 'Devices', 'What ended it'], state.runs.map((run) => h('tr', {key: run.id},
      h('td', {class: 'number'}, run.attempt), h('td', null, run.state), h('td', {class: 'number'}, count(run.start_step)), h('td', null, time(run.started || run.created)), h('td', null, run.started && run.ended ? duration((Date.parse(run.ended) - Date.parse(run.started)) / 1000) : run.started ? h('span', {class: 'dim'}, `since ${when(run.started)}`) : '–'),
      h('td', null, devicesOfRun(run, newest)), h('td', {class: 'why'}, run.why || (run.ended ? '' : 'it runs'))))));
}

function devicesOfRun(run, newest) {
  const ranks = run.ranks || (run.id === newest?.id ? newest.ranks : null) || [];
  const names = [...new Set(ranks.map((rank) => rank.device).filter(Boolean))];
  return names.length > 2 ? h('span', {title: names.join(', ')}, `${names[0]} + ${names.length - 1}`) : names.join(', ') || '–';
}

function downloads(state) {
  const {job, artifacts} = state;
  const model = String(job.spec?.model || '');
  const base = /^[0-9a-f]{64}$|^$/.test(model) ? 'BASE' : model; // a model that was taken by its content has no name to load it by
  const has = (word) => artifacts.some((each) => each.name.startsWith(word));
  const lines = [];
  if (has('adapter/') || has('adapter_')) lines.push('from transformers import AutoModelForCausalLM', 'from peft import PeftModel', `base = AutoModelForCausalLM.from_pretrained(${JSON.stringify(base)})`, `model = PeftModel.from_pretrained(base, "job-${job.id}/adapter")`);
  else if (has('model/')) lines.push('from transformers import AutoModelForCausalLM', `model = AutoModelForCausalLM.from_pretrained("job-${job.id}/model")`);
  return h('section', {class: 'card', 'aria-label': 'Results'}, h('h2', null, 'Results'),
    artifacts.length === 0 ? h('p', {class: 'dim'}, 'Nothing yet. Checkpoints and what the job leaves appear here.')
      : [h('p', null, 'All of it: ', h('code', null, `motley get ${job.id} job-${job.id}`), lines.length > 0 && ', then', lines[3] && base === 'BASE' && [' (', h('code', null, 'BASE'), ': the folder of the model that it began with, or its name at Hugging Face)']), lines.length > 0 && h('pre', {tabindex: 0}, lines.join('\n')),
        table('Files', ['File', '#Size'], artifacts.map((each) => h('tr', {key: each.name}, h('td', null, h('a', {href: `/v1/jobs/${job.id}/artifacts/${segment(each.name)}`, download: each.name.split('/').pop()}, each.name)), h('td', {class: 'number'}, bytes(each.size)))))]);
}

function logBox(state) {
  return h('section', {class: 'card', 'aria-label': 'Log'}, h('h2', null, 'Log'),
    state.log.length === 0 ? h('p', {class: 'dim'}, state.loaded ? 'It has said nothing.' : 'Loading…')
      : h('div', {class: 'log', tabindex: 0, role: 'log', 'aria-label': 'Log', ref: (box) => requestAnimationFrame(() => { box.scrollTop = box.scrollHeight; })},
        state.log.map((line, index) => h('div', {key: line.id ?? index}, h('span', {class: 'dim'}, line.at ? when(line.at) : '', line.device ? ` ${line.device}` : ''), ' ', line.text ?? line.line ?? ''))));
}
