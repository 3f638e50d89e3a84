// One event stream for all tabs of a browser. It runs in a SharedWorker, or in the tab that leads where there is none.
//
// A port says which topics it wants; the hub reads /v1/events for all of them at once, from the last event that it saw, and
// hands every port what is of its topics, ten times a second at most. When the stream is cut it comes again with the last
// id. Where no id is known, events may have been missed: ports hear of a `gap` and read again what they show. `begun` says that
// the stream has all of a port's topics: what is read of the past from then on joins what comes. A topic that the server
// refuses (a job that is not there, or not shared) is told to the ports that want it, and asked for again when one opens it
// anew; it is nothing to the others.

import {BASE} from './base.js';

const SILENCE_MS = 40000; // the server sends a comment every 15 s
const BATCH_MS = 100;
const LEAST_WAIT_MS = 500;
const MOST_WAIT_MS = 15000;
const JOBS_MAX = 16; // of one stream
const TOPIC = /^(queue|devices|job:[1-9]\d{0,17})$/; // a stream with another one is refused as a whole

export class Hub {
  constructor() {
    this.ports = new Map(); // each port's topics
    this.batches = new Map();
    this.last = null;
    this.wait = LEAST_WAIT_MS;
    this.state = 'idle';
    this.reader = null;
    this.glances = new Map(); // the newest whole of what has no ids
    this.refused = new Set(); // topics of the open stream that it has not
  }

  // Takes a port's topics. One that comes later gets the state of affairs that others got when the stream began.
  want(port, topics) {
    const had = this.ports.get(port) || new Set();
    this.ports.set(port, new Set(topics));
    this.send(port, {type: 'link', state: this.state});
    for (const [topic, event] of this.glances) if (topics.includes(topic) && !had.has(topic)) this.send(port, event);
    const missing = this.topics().some((topic) => !this.reading?.has(topic) || (this.refused.has(topic) && topics.includes(topic) && !had.has(topic)));
    if (missing) this.begin();
    else if (this.state === 'live') this.send(port, {type: 'begun'});
    if (this.ports.size === 0) this.end();
  }

  leave(port) {
    this.ports.delete(port);
    this.batches.delete(port);
    if (this.ports.size === 0) this.end();
  }

  topics() {
    const all = new Set();
    let jobs = 0;
    for (const topics of this.ports.values()) {
      for (const topic of topics) if (TOPIC.test(topic) && !all.has(topic) && (!topic.startsWith('job:') || jobs++ < JOBS_MAX)) all.add(topic);
    }
    return [...all].sort();
  }

  end() {
    this.reader?.abort();
    this.reader = this.reading = null;
    clearTimeout(this.timer);
  }

  // Begins again, with what is wanted now. Somebody signed in, or a topic came.
  begin() {
    this.end();
    const topics = this.topics();
    if (topics.length === 0) return;
    this.reading = new Set(topics);
    this.refused.clear();
    this.reader = new AbortController();
    this.read(topics, this.reader);
  }

  async read(topics, reader) {
    let status = 0;
    try {
      const after = this.last === null ? '' : `&after=${this.last}`;
      const answer = await fetch(`${BASE}/v1/events?topics=${topics.join(',')}${after}`, {signal: reader.signal, credentials: 'same-origin', cache: 'no-store', headers: {Accept: 'text/event-stream'}});
      status = answer.status;
      if (!answer.ok) throw new Error(`status ${status}`);
      this.wait = LEAST_WAIT_MS;
      this.say('live');
      if (this.cut && this.last === null) this.tell({type: 'gap'});
      this.cut = false;
      this.tell({type: 'begun'});
      await this.lines(answer.body.getReader(), reader);
    } catch {
      // Whatever ended it, it is tried again below.
    }
    if (reader.signal.aborted && this.reader !== reader) return;
    this.cut = true;
    this.reading = null;
    this.say(status === 401 ? 'signed-out' : 'cut');
    if (status === 401) return;
    this.timer = setTimeout(() => this.begin(), this.wait);
    this.wait = Math.min(2 * this.wait, MOST_WAIT_MS);
  }

  // Reads until the stream ends or is silent for too long.
  async lines(body, reader) {
    const decoder = new TextDecoder();
    let rest = '';
    for (;;) {
      const silence = setTimeout(() => reader.abort(), SILENCE_MS);
      const {value, done} = await body.read().finally(() => clearTimeout(silence));
      if (done) return;
      const blocks = (rest + decoder.decode(value, {stream: true})).split('\n\n');
      rest = blocks.pop();
      for (const block of blocks) this.take(block);
    }
  }

  take(block) {
    const event = {type: 'message', data: ''};
    for (const line of block.split('\n')) {
      const colon = line.indexOf(':');
      if (colon <= 0) continue;
      const value = line.slice(colon + (line[colon + 1] === ' ' ? 2 : 1));
      if (line.startsWith('event')) event.type = value;
      else if (line.startsWith('id')) event.id = Number(value);
      else if (line.startsWith('data')) event.data += value;
    }
    if (!event.data) return;
    try {
      event.data = JSON.parse(event.data);
    } catch {
      return;
    }
    if (event.id !== undefined) this.last = event.id;
    if (event.type === 'refused') this.refused.add(event.data.topic);
    this.glance(event);
    this.tell(event);
  }

  // Keeps the whole of `queue` and `devices` for ports that come later.
  glance(event) {
    if (event.type === 'queue') this.glances.set('queue', event);
    if (event.type !== 'devices') return;
    const states = new Map((this.glances.get('devices')?.data.devices || []).map((device) => [device.name, device]));
    for (const device of event.data.devices) states.set(device.name, device);
    this.glances.set('devices', {type: 'devices', data: {devices: [...states.values()].filter((device) => device.state !== 'gone')}});
  }

  tell(event) {
    for (const [port, topics] of this.ports) {
      const mine = ['gap', 'begun'].includes(event.type) || topics.has(event.data?.topic) || topics.has(`job:${event.data?.job}`) || (topics.has('queue') && ['state', 'queue'].includes(event.type)) || (topics.has('devices') && event.type === 'devices');
      if (mine) this.send(port, event);
    }
  }

  say(state) {
    this.state = state;
    for (const port of this.ports.keys()) this.send(port, {type: 'link', state});
  }

  send(port, event) {
    if (!this.batches.has(port)) {
      this.batches.set(port, []);
      setTimeout(() => {
        const batch = this.batches.get(port);
        this.batches.delete(port);
        if (batch && this.ports.has(port)) port.postMessage({events: batch});
      }, BATCH_MS);
    }
    this.batches.get(port).push(event);
  }

  // What a port sends: its topics, the name of its lock, or that somebody signed in.
  hear(port, message) {
    if (message.tab) navigator.locks.request(message.tab, () => this.leave(port)); // a tab holds its lock until it is gone
    if (message.topics) this.want(port, message.topics);
    if (message.forget) {
      this.last = null;
      this.glances.clear();
      this.begin();
    }
  }
}
