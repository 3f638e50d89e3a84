// /jobs/N/why: why a job waits, or runs where it runs: alternatives as bars, who is left out, and what would help.
import {h} from './dom.js';
import {get} from './api.js';
import {bytes, count, duration, figure, percent, sentence, time} from './format.js';
import {empty, stateBadge, trouble} from './parts.js';
import {subscribe} from './stream.js';

export function open(frame) {
  const id = Number(frame.place.id);
  const state = {id, job: null, why: null};
  frame.title(`Why job ${id} is there`);
  frame.draw = () => draw(frame, state);
  const poke = frame.repeat(async () => {
    const options = {signal: frame.signal};
    [state.job, state.why] = await Promise.all([get(`/v1/jobs/${id}`, options), get(`/v1/jobs/${id}/why`, options)]);
  }, 20000, 1500);
  frame.atEnd(subscribe([`job:${id}`], (events) => events.some((event) => event.type !== 'step' && event.type !== 'ranks') && poke()));
}

function draw(frame, state) {
  const {job, why} = state;
  if (!job) return [trouble(frame.trouble) || h('p', {class: 'loading'}, 'Loading…')];
  const answer = job.run?.plan_answer;
  return [
    h('div', {class: 'head'}, trouble(frame.trouble), h('h1', null, sentence(why.why)), h('p', {class: 'row wrap'}, h('a', {href: `/jobs/${job.id}`}, job.name), h('span', {class: 'dim'}, `#${job.id}`), stateBadge(job.state), why.starts && h('span', null, 'starts about ', time(why.starts)), why.place && h('span', null, `place ${why.place}`))),
    !answer && empty('It has no plan yet', 'Its alternatives are shown when it has been placed. What it would do now: ', h('a', {href: `/plan?job=${job.id}`}, 'plan it'), '.'),
    answer && [h('p', {class: 'notice'}, answer.words), plan(answer), h('div', {class: 'columns'}, leftOut(answer), helps(answer), rests(answer))],
  ];
}

// The plans that were looked at, the chosen one first, as bars of their step's time.
export function plan(answer) {
  const chosen = {...answer, chosen: true, device: answer.ranks?.length === 1 ? answer.ranks[0].device : null};
  const list = [...(answer.verdict === 'fits' ? [chosen] : []), ...(answer.alternatives || [])];
  if (list.length === 0) return null;
  const most = Math.max(...list.map((each) => each.step_s || 0));
  return h('section', {class: 'card', 'aria-label': 'Alternatives'}, h('h2', null, 'What a step would take'), h('p', {class: 'dim'}, 'Shorter is better. What does not fit says how much it lacks.'),
    h('div', {class: 'bars'}, list.map((each, index) => [
      h('span', {key: `n${index}`}, each.chosen && h('strong', null, 'chosen: '), nameOf(each)),
      h('span', {key: `b${index}`, class: `bar ${each.chosen ? 'chosen' : ''}`}, each.step_s > 0 && h('i', {style: {width: `${100 * each.step_s / most}%`}})),
      h('span', {key: `v${index}`, class: 'number'}, each.step_s > 0 ? duration(each.step_s) : 'does not fit'),
      h('span', {key: `r${index}`, class: 'reason dim'}, reasonOf(each, answer))])));
}

function nameOf(each) {
  const where = each.device || (each.devices || []).join(', ') || (each.ranks ? each.ranks.map((rank) => rank.device).join(', ') : '');
  return [each.placement, where && h('span', {class: 'dim'}, ` on ${where}`)];
}

function reasonOf(each, answer) {
  if (each.chosen) return `${count(answer.tokens_per_s)} tokens a second; no plan can take less than ${duration(answer.lower_bound_s)}.`;
  if (each.why || each.words) return each.why || each.words;
  if (each.verdict && each.verdict !== 'fits') return each.needs_bytes ? `It needs ${bytes(each.needs_bytes)} and has ${bytes(each.has_bytes)}.` : each.verdict;
  const parts = [];
  if (each.step_s && answer.step_s) parts.push(`${figure(each.step_s / answer.step_s)} times the chosen one`);
  if (each.needs_bytes) parts.push(`needs ${bytes(each.needs_bytes)} of ${bytes(each.has_bytes)}`);
  if (each.runnable === false) parts.push('workers of this release cannot run it');
  return `${parts.join('; ')}.`;
}

function leftOut(answer) {
  const list = answer.left_out || [];
  return h('section', {class: 'card', 'aria-label': 'Left out'}, h('h2', null, 'Who is left out'),
    list.length === 0 ? h('p', {class: 'dim'}, 'Nobody: every device that may be used works.')
      : h('ul', null, list.map((each) => h('li', {key: each.device}, h('strong', null, each.device), `: ${each.why}`, each.step_s_with > 0 && h('span', {class: 'dim'}, ` (a step with it would take ${duration(each.step_s_with)})`)))));
}

function helps(answer) {
  const list = answer.improvements || [];
  if (list.length === 0) return null;
  return h('section', {class: 'card', 'aria-label': 'What would save most'}, h('h2', null, 'What would save most'), h('ul', null, list.map((each, index) => h('li', {key: index}, each.words, h('span', {class: 'dim'}, ` (saves ${percent(each.saves)}: ${duration(each.step_s)})`)))));
}

function rests(answer) {
  return h('section', {class: 'card', 'aria-label': 'What the prediction rests on'}, h('h2', null, 'What the prediction rests on'), h('p', null, answer.basis || '–'),
    answer.uncertainty > 0 && h('p', null, `A step may take ${percent(answer.uncertainty)} more or less.`), (answer.warnings || []).map((words, index) => h('p', {key: index, class: 'notice warn'}, words)));
}
