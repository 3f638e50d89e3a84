// A job's measured steps: read once, then joined by what the stream tells. A step that comes twice counts once; where steps
// are missing, they are read again.
import {all, get} from './api.js';

const BUCKETS = 1200;
const PACE_STEPS = 10; // of which the median is taken
const KEYS = ['loss', 'grad_norm', 'learning_rate', 'tokens_per_s', 'seconds'];

export function median(values) {
  if (values.length === 0) return NaN;
  const sorted = [...values].sort((a, b) => a - b);
  const middle = sorted.length >> 1;
  return sorted.length % 2 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
}

export class Metrics {
  constructor(id, signal) {
    Object.assign(this, {id, signal, evals: [], samples: [], ranks: new Map(), gaps: 0});
    this.clear();
  }

  clear() {
    this.steps = {x: []};
    this.inBuckets = this.buckets = 0;
    for (const key of KEYS) this.steps[key] = {y: [], least: null, most: null};
  }

  // How many steps the curves stand for.
  get count() {
    return this.inBuckets + this.steps.x.length - this.buckets;
  }

  get last() {
    return this.steps.x.length > 0 ? this.steps.x[this.steps.x.length - 1] : -1;
  }

  async load() {
    const options = {signal: this.signal};
    const path = `/v1/jobs/${this.id}/metrics`;
    const [buckets, evals, samples, ranks] = await Promise.all([
      get(`${path}?kind=step&buckets=${BUCKETS}`, options), all(`${path}?kind=eval&limit=10000`, 'lines', 20000, options),
      all(`${path}?kind=sample&limit=1000`, 'lines', 2000, options), get(`${path}?kind=ranks&limit=10000`, options)]);
    this.clear();
    this.takeBuckets(buckets.buckets, buckets.width);
    this.evals = evals;
    this.samples = samples;
    this.ranks.clear();
    if (!ranks.next) for (const line of ranks.lines) this.rank(line); // of a long job, what the ranks do now comes with the stream
    this.missing = false;
  }

  // Buckets of steps: each value's least, mean and most. Where a bucket is a step, these are one.
  takeBuckets(buckets, width) {
    if (width > 1) for (const key of KEYS) this.steps[key] = {y: [], least: [], most: []};
    for (const bucket of buckets) {
      this.buckets++;
      this.inBuckets += bucket.steps;
      this.steps.x.push(bucket.last);
      for (const key of KEYS) {
        const value = bucket[key] || {};
        this.steps[key].y.push(value.mean ?? NaN);
        this.steps[key].least?.push(value.least ?? NaN);
        this.steps[key].most?.push(value.most ?? NaN);
      }
    }
  }

  step(line) {
    const values = {...line, tokens_per_s: line.seconds > 0 ? line.tokens / line.seconds : NaN};
    let at = this.steps.x.length;
    if (line.step <= this.last) at = this.steps.x.indexOf(line.step);
    if (at < 0) return; // it is inside of a bucket
    if (this.last >= 0 && line.step > this.last + 1) this.missing = true;
    this.steps.x[at] = line.step;
    for (const key of KEYS) {
      const series = this.steps[key];
      series.y[at] = values[key] ?? NaN;
      if (series.least) series.least[at] = series.most[at] = series.y[at];
    }
  }

  rank(line) {
    const rank = this.ranks.get(line.rank) || {device: line.device, lines: []};
    this.ranks.set(line.rank, rank);
    rank.device = line.device || rank.device;
    if (rank.lines.length > 0 && rank.lines[rank.lines.length - 1].step >= line.step) rank.lines = rank.lines.filter((each) => each.step < line.step);
    rank.lines.push(line);
    if (rank.lines.length > 200) rank.lines.splice(0, 100);
  }

  // Takes events of the stream; true when something is missing and must be read again.
  take(events) {
    for (const {type, data} of events) {
      if (type === 'gap') this.missing = true;
      else if (type === 'step') this.step(data);
      else if (type === 'ranks') this.rank(data);
      else if (type === 'eval' && !this.evals.some((each) => each.step === data.step && each.eval === data.eval)) this.evals.push(data);
      else if (type === 'sample' && !this.samples.some((each) => each.step === data.step)) this.samples.push(data);
    }
    return this.missing;
  }

  // The median of the last steps' seconds.
  pace() {
    return median(this.steps.seconds.y.slice(-PACE_STEPS).filter(Number.isFinite));
  }

  // What each rank did in its last steps, beside what the plan predicts: [{rank, device, compute, wait, send, wall, predicted, ratio}].
  devices(answer) {
    const now = answer?.ranks?.length ?? Infinity; // an earlier run may have had more ranks
    return [...this.ranks].filter(([rank]) => rank < now).sort(([a], [b]) => a - b).map(([rank, {device, lines}]) => {
      const last = lines.slice(-PACE_STEPS);
      const of = (key) => median(last.map((line) => line[key]).filter(Number.isFinite));
      const planned = answer?.ranks?.find((each) => each.rank === rank) || answer?.ranks?.[rank];
      const compute = of('compute_s');
      return {rank, device: device || planned?.device || `rank ${rank}`, compute, wait: of('wait_s'), send: of('send_s'), wall: of('wall_s'), predicted: planned?.busy_s, ratio: planned?.busy_s > 0 ? compute / planned.busy_s : NaN};
    });
  }
}

// A finer look at a part of the steps.
export async function closer(id, from, to, signal) {
  const document = await get(`/v1/jobs/${id}/metrics?kind=step&buckets=${BUCKETS}&from=${from}&to=${to}`, {signal});
  return document;
}

export const readJob = (id, signal) => get(`/v1/jobs/${id}`, {signal});
