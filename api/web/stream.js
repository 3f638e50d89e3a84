// What a tab hears of the cluster: events by topic, over the one stream that all tabs share.
import {Hub} from './hub.js';

const NAME = 'motley-stream';
const listeners = new Set(); // {topics, hear}
let line = null; // {post}: to the hub
let state = 'idle';
const watchers = new Set();

// Hears events of these topics until the function that it returns is called. `hear` gets lists of {type, id, data}; `gap`
// among them means that something may have been missed, `refused` that the server has not {topic}, and why: {code, detail}.
export function subscribe(topics, hear) {
  const listener = {topics: new Set(topics), hear};
  listeners.add(listener);
  tell();
  return () => {
    listeners.delete(listener);
    tell();
  };
}

// Calls `watch` with the state of the stream: live, cut, signed-out or idle; now and whenever it changes.
export function watchLink(watch) {
  watchers.add(watch);
  watch(state);
  return () => watchers.delete(watch);
}

// Somebody signed in: the stream begins anew, with what they may see.
export function restart() {
  tell();
  line?.post({forget: true});
}

function tell() {
  line ||= connect();
  const topics = new Set();
  for (const listener of listeners) for (const topic of listener.topics) topics.add(topic);
  line.post({topics: [...topics]});
}

function hear(events) {
  for (const event of events) {
    if (event.type !== 'link' || event.state === state) continue;
    state = event.state;
    for (const watch of watchers) watch(state);
  }
  for (const listener of listeners) {
    const mine = events.filter((event) => ['gap', 'begun'].includes(event.type) || concerns(listener.topics, event));
    if (mine.length > 0) listener.hear(mine);
  }
}

function concerns(topics, event) {
  if (event.type === 'link') return false;
  if (event.type === 'devices') return topics.has('devices');
  if (event.type === 'refused') return topics.has(event.data.topic);
  return topics.has(`job:${event.data.job}`) || (topics.has('queue') && ['state', 'queue'].includes(event.type));
}

function connect() {
  if (window.SharedWorker) {
    const worker = new SharedWorker(scriptUrl('worker.js'), {type: 'module', name: NAME});
    worker.port.onmessage = (message) => hear(message.data.events);
    const post = (message) => worker.port.postMessage(message);
    holdLock(crypto.randomUUID(), post);
    return {post};
  }
  if (navigator.locks && window.BroadcastChannel) return connectByLeader();
  return connectAlone();
}

// Trusted Types: the only script address that is ever made here is of a file beside this one.
function scriptUrl(name) {
  const url = new URL(name, import.meta.url).href;
  if (!window.trustedTypes) return url;
  const policy = window.trustedTypes.createPolicy('motley', {createScriptURL: (text) => {
    if (text !== url) throw new TypeError(`no script of ours: ${text}`);
    return text;
  }});
  return policy.createScriptURL(url);
}

// Holds a lock for as long as this tab lives, and names it to the hub, which so learns that the tab is gone.
function holdLock(name, post) {
  navigator.locks?.request(name, () => {
    post({tab: name});
    return new Promise(() => {});
  });
}

function connectAlone() {
  const hub = new Hub();
  const port = {postMessage: (message) => hear(message.events)};
  return {post: (message) => hub.hear(port, message)};
}

// Without SharedWorker one tab, which holds a lock, has the hub; the others speak to it over a channel. When it is closed the
// lock goes to the next, and all say their topics again.
function connectByLeader() {
  const channel = new BroadcastChannel(NAME);
  const me = crypto.randomUUID();
  let hub = null;
  const ports = new Map();
  const port = (id) => {
    if (!ports.has(id)) ports.set(id, {postMessage: (message) => id === me ? hear(message.events) : channel.postMessage({to: id, ...message})});
    return ports.get(id);
  };
  channel.onmessage = ({data}) => {
    if (data.to === me) hear(data.events);
    else if (data.from && hub) hub.hear(port(data.from), data.message);
    else if (data.led) tell();
  };
  navigator.locks.request(NAME, () => {
    hub = new Hub();
    channel.postMessage({led: true});
    setTimeout(tell);
    return new Promise(() => {});
  });
  const post = (message) => hub ? hub.hear(port(me), message) : channel.postMessage({from: me, message});
  holdLock(me, post);
  return {post};
}
