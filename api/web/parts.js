// What several views show alike: states, bars, troubles, actions on jobs.
import {ask, h, toast} from './dom.js';
import {call, may, post, session} from './api.js';
import {percent, plural} from './format.js';

export const ENDED = ['succeeded', 'failed', 'cancelled'];
export const RUNNING = ['starting', 'running', 'stopping'];
export const WAITING = ['queued', 'held'];
const BULK = 500; // jobs of one request

export const stateBadge = (state) => h('span', {class: `state ${state}`}, h('span', {class: 'dot', 'aria-hidden': 'true'}), state);

// A content id's beginning; long texts' too.
export const shorten = (text) => /^(sha256:)?[0-9a-f]{64}$/.test(text) ? `${text.replace('sha256:', '').slice(0, 12)}…` : text.length > 80 ? `${text.slice(0, 80)}…` : text;

// What is shown where something could not be read.
export function trouble(problem) {
  if (!problem) return null;
  const what = problem.status === 404 ? 'It is not there, or you may not see it.' : problem.message;
  return h('div', {class: 'notice bad', role: 'alert'}, h('p', null, what),
    problem.status === 0 || problem.status >= 500 ? h('p', {class: 'dim'}, 'It is tried again every few seconds.') : null);
}

export const empty = (title, ...words) => h('div', {class: 'empty'}, h('h2', null, title), h('p', null, words));

// A bar that is filled for some part, with what it says for screen readers.
export function meter(part, label, kind = '') {
  const width = Math.max(0, Math.min(1, Number.isFinite(part) ? part : 0));
  return h('span', {class: `meter ${kind}`, role: 'img', 'aria-label': `${label}: ${percent(part)}`, title: `${label}: ${percent(part)}`}, h('i', {style: {width: `${100 * width}%`}}));
}

// Bars of several parts behind each other: [[part, kind, words], …] of one whole.
export function stack(parts, label) {
  const words = parts.map(([part, , name]) => `${name} ${percent(part)}`).join(', ');
  return h('span', {class: 'stack', role: 'img', 'aria-label': `${label}: ${words}`, title: words},
    parts.map(([part, kind]) => h('i', {class: kind, style: {width: `${100 * Math.max(0, Math.min(1, part || 0))}%`}})));
}

// A table that scrolls by itself where it is too wide; its region can be focused by keys.
export const table = (label, heads, rows, props = {}) => h('div', {class: 'scroll', role: 'region', 'aria-label': label, tabindex: 0},
  h('table', props, h('thead', null, h('tr', null, heads.map((head) => h('th', {scope: 'col', class: head.startsWith('#') ? 'number' : null}, head.replace(/^#/, ''))))), h('tbody', null, rows)));

// ---- actions on jobs ----

export const ACTIONS = {
  hold: {name: 'Hold', done: 'held', states: ['queued', 'starting', 'running']},
  release: {name: 'Release', done: 'released', states: ['held']},
  cancel: {name: 'Cancel', done: 'cancelled', states: ['held', 'queued', 'starting', 'running', 'stopping'], danger: true},
  resume: {name: 'Resume', done: 'resumed', states: ['failed', 'cancelled']},
  priority: {name: 'Priority', done: 'given this priority', states: ['held', 'queued', 'starting', 'running']},
};

// Why somebody may not do this to a job; null when they may.
export function whyNot(action, job) {
  if (!may('jobs:write')) return 'Your session may only read (its token lacks the scope jobs:write).';
  if (job.name === null) return `It is ${job.owner}'s, and not shared with you.`;
  if (job.owner !== session.user && !may('admin')) return `Only ${job.owner}, whose job it is, and administrators may.`;
  if (!ACTIONS[action].states.includes(job.state)) return `It is ${job.state}.`;
  return null;
}

// Does it to all jobs that allow it, after asking where it ends something; says what came of it. Resolves to whether anything was done.
export async function act(action, jobs) {
  const able = jobs.filter((job) => !whyNot(action, job));
  const verb = ACTIONS[action];
  if (able.length === 0) {
    toast(jobs.length === 1 ? whyNot(action, jobs[0]) : `None of them can be: ${whyNot(action, jobs[0])}`, 'bad');
    return false;
  }
  const what = able.length === 1 ? `job ${able[0].id}${able[0].name ? ` (${able[0].name})` : ''}` : plural(able.length, 'job');
  let body;
  if (action === 'cancel' && !await ask({title: `Cancel ${what}?`, text: 'What runs writes a checkpoint first, so that it can be resumed.', action: 'Cancel it', danger: true})) return false;
  if (action === 'priority') {
    const text = await ask({title: `Priority of ${what}`, text: 'From −100 to 100; larger comes first among the jobs of one service and share.', action: 'Set it', field: {label: 'Priority', type: 'number', min: -100, max: 100, value: String(able[0].priority ?? 0)}});
    if (text === null) return false;
    body = {priority: Number(text)};
  }
  const refused = await tell(action, able.map((job) => job.id), body);
  const done = able.length - refused.length;
  if (done > 0) toast(able.length === 1 ? `${what[0].toUpperCase()}${what.slice(1)} is ${verb.done}.` : `${plural(done, 'job')} ${done === 1 ? 'is' : 'are'} ${verb.done}.`);
  for (const {id, detail} of refused.slice(0, 3)) toast(`Job ${id}: ${detail}`, 'bad');
  return done > 0;
}

// Tells the server; resolves to what it refused: [{id, detail}].
async function tell(action, ids, body) {
  const refused = [];
  if (ids.length > 1 && action !== 'priority') {
    for (let at = 0; at < ids.length; at += BULK) refused.push(...(await post(`/v1/jobs:${action}`, {ids: ids.slice(at, at + BULK)})).refused);
    return refused;
  }
  const answers = await Promise.allSettled(ids.map((id) => action === 'priority' ? call('PATCH', `/v1/jobs/${id}`, body) : post(`/v1/jobs/${id}/${action}`)));
  for (const [index, answer] of answers.entries()) if (answer.status === 'rejected') refused.push({id: ids[index], detail: answer.reason.message});
  return refused;
}

// The buttons of actions. One that is not allowed can be focused and says why.
export function actionButtons(names, jobs, done) {
  return names.map((name) => {
    const reasons = jobs.map((job) => whyNot(name, job));
    const reason = reasons.every((each) => each) ? reasons[0] : null;
    return h('button', {key: name, type: 'button', class: ACTIONS[name].danger ? 'danger' : '', 'aria-disabled': reason ? 'true' : null, title: reason,
      onclick: async () => {
        if (reason) toast(reason, 'bad');
        else if (await act(name, jobs)) done();
      }}, ACTIONS[name].name);
  });
}
