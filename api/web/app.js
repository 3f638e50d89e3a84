// The page's frame: who is signed in, which view is shown, the bar above it, and keys that hold everywhere.
import {h, render, speak, toast} from './dom.js';
import {call, get, getOrNull, Problem, session} from './api.js';
import {BASE, withoutBase} from './base.js';
import {trouble} from './parts.js';
import {restart, subscribe, watchLink} from './stream.js';

const VIEWS = [
  [/^\/(queue)?$/, 'queue.js'], [/^\/cluster$/, 'cluster.js'], [/^\/jobs$/, 'compare.js'], [/^\/jobs\/(\d+)$/, 'job.js'],
  [/^\/jobs\/(\d+)\/why$/, 'why.js'], [/^\/jobs\/(\d+)\/lanes$/, 'lanes.js'], [/^\/plan$/, 'plan.js'], [/^\/me$/, 'me.js'],
];
const TABS = [['/queue', 'Queue', 'q'], ['/cluster', 'Cluster', 'c'], ['/plan', 'Plan', 'p'], ['/me', 'Me', 'm']];
const THEMES = ['auto', 'light', 'dark'];
const KEYS = [
  ['g q, g c, g p, g m', 'go to the queue, the cluster, a plan, yourself'], ['/', 'filter'], ['j, k', 'next row, row before'],
  ['x', 'choose the row, for an action on many'], ['Enter', 'open the row'], ['Esc', 'close what is open'],
  ['←, →', 'in a chart: one step on or back'], ['+, −, 0', 'in a chart or lanes: closer, wider, all'], ['t', 'light, dark or as the system has it'], ['?', 'this list'],
];
const main = document.getElementById('main');
const bar = document.getElementById('bar');
let shown = null; // the open view's frame
let link = 'idle';

// What a view gets: where to draw, its place in the address, and what ends with it.
class Frame {
  constructor(place) {
    this.main = main;
    this.place = place;
    this.ending = new AbortController();
    this.signal = this.ending.signal;
    this.painting = false;
  }

  get open() {
    return !this.signal.aborted;
  }

  // Calls `end` when the view is left.
  atEnd(end) {
    this.signal.addEventListener('abort', end);
  }

  title(text) {
    document.title = `${text} · Motley`;
  }

  // Draws soon what `draw` describes; many calls cost one drawing.
  paint() {
    if (this.painting) return;
    this.painting = true;
    requestAnimationFrame(() => {
      this.painting = false;
      if (this.open) render(main, this.draw());
    });
  }

  // Calls `work` now and so many milliseconds after it has ended; sooner when `poke` asks, but never more often than `least`.
  repeat(work, every, least = 1000) {
    let timer;
    let began = 0;
    let running = false;
    let again = false;
    const run = async () => {
      if (running) {
        again = true;
        return;
      }
      running = true;
      again = false;
      began = performance.now();
      clearTimeout(timer);
      try {
        await work();
        this.trouble = null;
      } catch (problem) {
        if (problem.name !== 'AbortError') this.trouble = problem;
        if (!(problem instanceof Problem) && problem.name !== 'AbortError') console.error(problem);
      }
      running = false;
      if (!this.open) return;
      this.paint();
      timer = setTimeout(run, again ? least : this.trouble ? Math.min(every, 5000) : every);
    };
    this.atEnd(() => clearTimeout(timer));
    run();
    return () => {
      if (running) {
        again = true;
        return;
      }
      clearTimeout(timer);
      timer = setTimeout(run, Math.max(0, least - (performance.now() - began)));
    };
  }

  // Changes the query in the address without a new entry in the history; null takes a name out.
  setQuery(changes) {
    const query = new URLSearchParams(location.search);
    for (const [name, value] of Object.entries(changes)) value === null || value === '' ? query.delete(name) : query.set(name, value);
    const text = query.toString();
    history.replaceState(null, '', location.pathname + (text ? `?${text}` : ''));
    this.place.query = query;
    this.paint();
  }

  go(address) {
    go(address);
  }
}

// Shows the view of an address of this page.
export function go(address) {
  if (BASE + address !== location.pathname + location.search) history.pushState(null, '', BASE + address);
  show();
}

async function show() {
  shown?.ending.abort();
  if (!session.user) return signIn();
  const found = VIEWS.map(([pattern, file]) => [pattern.exec(withoutBase(location.pathname)), file]).find(([match]) => match);
  const frame = shown = new Frame({id: found?.[0][1], query: new URLSearchParams(location.search)});
  drawBar();
  if (!found) {
    frame.title('Not found');
    render(main, h('section', {class: 'empty'}, h('h1', null, 'There is no such page'), h('p', null, 'Perhaps you look for ', h('a', {href: '/queue'}, 'the queue'), '.')));
    return;
  }
  render(main, h('p', {class: 'loading'}, 'Loading…'));
  try {
    const view = await import(`./${found[1]}`);
    if (frame.open) {
      main.className = found[1].replace('.js', '');
      view.open(frame);
      speak(document.title);
    }
  } catch (error) {
    console.error(error);
    if (frame.open) render(main, trouble(error));
  }
}

function theme() {
  let kept = null;
  try {
    kept = localStorage.getItem('theme');
  } catch {
    // Without storage the system's choice holds.
  }
  return THEMES.includes(kept) ? kept : 'auto';
}

function setTheme(name) {
  document.documentElement.dataset.theme = name;
  try {
    localStorage.setItem('theme', name);
  } catch {
    // It holds until the page is left.
  }
  drawBar();
  window.dispatchEvent(new Event('theme'));
}

const nextTheme = () => setTheme(THEMES[(THEMES.indexOf(theme()) + 1) % THEMES.length]);

function drawBar() {
  const words = {live: 'live', cut: 'connecting again', 'signed-out': 'signed out', idle: 'connecting'}[link];
  const place = withoutBase(location.pathname);
  const here = (address) => place.startsWith(address) || (address === '/queue' && ['/', '/jobs'].some((path) => place === path || (path !== '/' && place.startsWith(path))));
  render(bar, h('a', {class: 'brand', href: '/queue', 'aria-label': 'Motley, the queue'}, h('span', {class: 'mark', 'aria-hidden': 'true'}), h('span', {class: 'wide'}, 'Motley')),
    session.user && h('nav', {'aria-label': 'Views'}, TABS.map(([address, name]) => h('a', {key: address, href: address, 'aria-current': here(address) ? 'page' : null}, name))),
    h('div', {class: 'row end'},
      session.user && h('span', {class: `link ${link}`, title: `The stream of events: ${words}`}, h('span', {class: 'dot', 'aria-hidden': 'true'}), h('span', {class: 'wide'}, words)),
      h('button', {type: 'button', class: 'quiet', title: 'Light, dark, or as the system has it (t)', 'aria-label': `Colours: ${theme()}`, onclick: nextTheme}, {auto: '◐', light: '☀', dark: '☾'}[theme()]),
      h('button', {type: 'button', class: 'quiet', title: 'Keys (?)', 'aria-label': 'Keys', onclick: showKeys}, '?')));
}

function showKeys() {
  if (document.querySelector('dialog')) return;
  const dialog = document.createElement('dialog');
  dialog.setAttribute('aria-label', 'Keys');
  dialog.onclose = () => dialog.remove();
  render(dialog, h('h2', null, 'Keys'), h('dl', {class: 'keys'}, KEYS.map(([key, what]) => [h('dt', null, h('kbd', null, key)), h('dd', null, what)])),
    h('form', {method: 'dialog', class: 'row end'}, h('button', {class: 'primary'}, 'Close')));
  document.body.append(dialog);
  dialog.showModal();
}

// ---- signing in ----

async function enter(proof, path = '/v1/session') {
  await call('POST', path, proof, {quiet: true});
  await whoAmI();
  restart();
}

// Where a browser comes back to from the OpenID provider, and where in this page it left.
const CALLBACK = '/oidc/callback';
const kept = {
  set place(address) {
    try {
      sessionStorage.setItem('place', address);
    } catch {
      // It comes back to the queue.
    }
  },
  get place() {
    try {
      return sessionStorage.getItem('place') ?? `${BASE}/`;
    } catch {
      return `${BASE}/`;
    }
  },
};

async function leave(event) {
  event.target.disabled = true;
  try {
    const {location: address} = await call('POST', '/v1/oidc/login', {}, {quiet: true});
    kept.place = location.pathname + location.search;
    location.assign(address);
  } catch (problem) {
    signIn(problem.message);
  }
}

// Takes what the provider gave out of the address and shows it to the server.
async function comeBack() {
  const given = Object.fromEntries(new URLSearchParams(location.search));
  history.replaceState(null, '', kept.place.startsWith(BASE + CALLBACK) ? `${BASE}/` : kept.place);
  if (given.error) throw new Problem(403, {detail: `The provider signed nobody in (${given.error.replace(/[^a-z_]/g, '').slice(0, 40)}).`});
  await enter({code: given.code ?? '', state: given.state ?? '', iss: given.iss}, '/v1/oidc/session');
}

let following = false; // every view hears the queue, so that the bar can say whether the stream lives

async function whoAmI() {
  const me = await get('/v1/whoami', {quiet: true});
  session.user = me.name;
  session.scopes = me.scopes;
  session.expires = me.expires;
  if (!following) subscribe(['queue'], () => {});
  following = true;
}

function signIn(words) {
  document.title = 'Sign in · Motley';
  drawBar();
  main.className = 'signin';
  let token = '';
  let provider = null;
  const draw = (problem) => render(main, h('form', {class: 'card', onsubmit: async (event) => {
    event.preventDefault();
    try {
      await enter({token: token.trim()});
      show();
    } catch (error) {
      draw(error.status === 401 ? 'This token is not valid: it was revoked, has expired, or is not whole.' : error.message);
    }
  }},
  h('h1', null, 'Sign in'),
  (problem || words) && h('p', {class: 'notice bad', role: 'alert'}, problem || words),
  provider?.issuer && h('p', null, h('button', {type: 'button', class: 'primary', title: provider.issuer, onclick: leave}, `Sign in with ${provider.name}`)),
  h('p', null, 'On a machine where you use Motley, this prints an address that signs you in:'), h('pre', null, 'motley web'),
  h('label', {class: 'field'}, h('span', null, 'Or paste a token (', h('code', null, 'motley token make'), ')'),
    h('input', {type: 'password', autocomplete: 'off', required: true, spellcheck: 'false', name: 'token', oninput: (event) => { token = event.target.value; }})),
  h('div', {class: 'row end'}, h('button', {type: 'submit', class: 'primary'}, 'Sign in'))));
  draw();
  main.querySelector('input').focus();
  getOrNull('/v1/oidc', {quiet: true}).catch(() => null).then((found) => {
    provider = found;
    if (provider?.issuer && main.className === 'signin') draw();
  });
}

// A code in the address's fragment signs in once; it is taken out of the address at once.
async function begin() {
  document.documentElement.dataset.theme = theme();
  const code = /^#code=([0-9A-Za-z_.-]+)$/.exec(location.hash)?.[1];
  if (code) history.replaceState(null, '', location.pathname + location.search);
  try {
    if (withoutBase(location.pathname) === CALLBACK) {
      const back = await comeBack().then(() => null, (problem) => problem);
      if (back) return signIn(back.message);
    } else if (code) await enter({code});
    else await whoAmI();
  } catch (problem) {
    if (problem.code === 'proxy-user') return enter({}).then(show, (refused) => signIn(refused.message));
    if (problem.status === 401) return signIn(code ? 'This address was used already, or is older than ten minutes. The command below prints a new one.' : '');
    render(main, trouble(problem));
    return setTimeout(begin, 3000);
  }
  show();
}

export async function signOut() {
  await call('DELETE', '/v1/session', undefined, {quiet: true}).catch(() => {});
  session.user = null;
  restart();
  shown?.ending.abort();
  signIn();
}

session.lost = () => {
  if (!session.user) return;
  session.user = null;
  shown?.ending.abort();
  signIn('You are signed out: the session is over or was revoked.');
};

// ---- keys and links ----

let prefix = false; // `g` was pressed

document.addEventListener('keydown', (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest('input:not([type=checkbox]), textarea, select, dialog')) return;
  if (prefix) {
    prefix = false;
    const tab = TABS.find(([, , key]) => key === event.key);
    if (tab && session.user) go(tab[0]);
    return;
  }
  if (event.key === 'g') prefix = true;
  else if (event.key === '?') showKeys();
  else if (event.key === 't') nextTheme();
  else if (event.key === '/' && document.querySelector('[data-filter]')) {
    event.preventDefault();
    document.querySelector('[data-filter]').focus();
  }
});

document.addEventListener('click', (event) => {
  const anchor = event.target.closest('a[href]');
  if (!anchor || event.defaultPrevented || event.button !== 0 || event.ctrlKey || event.metaKey || event.shiftKey || anchor.target || anchor.hasAttribute('download')) return;
  const url = new URL(anchor.href);
  if (url.origin !== location.origin || !url.pathname.startsWith(`${BASE}/`) || withoutBase(url.pathname).startsWith('/v1/') || url.hash) return;
  event.preventDefault();
  go(withoutBase(url.pathname) + url.search);
  window.scrollTo(0, 0);
});

window.addEventListener('popstate', show);
watchLink((state) => {
  link = state;
  if (state === 'signed-out' && session.user) whoAmI().catch((problem) => problem.status === 401 && session.lost());
  drawBar();
});
window.addEventListener('unhandledrejection', (event) => {
  if (event.reason instanceof Problem) {
    event.preventDefault();
    toast(event.reason.message, 'bad');
  }
});
begin();
