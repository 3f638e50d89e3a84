// /me: who is signed in, sessions and tokens, what one used, and signing out.
import {ask, h, toast} from './dom.js';
import {all, call, get, session} from './api.js';
import {signOut} from './app.js';
import {away, duration, time} from './format.js';
import {table, trouble} from './parts.js';

export function open(frame) {
  const state = {tokens: null, usage: null, me: null};
  frame.title('Me');
  frame.draw = () => draw(frame, state);
  state.poke = frame.repeat(async () => {
    const options = {signal: frame.signal};
    const [me, tokens, usage, devices] = await Promise.all([get('/v1/whoami', options), all('/v1/tokens', 'tokens', 1000, options), get('/v1/usage?by=user', options), get('/v1/usage?by=device', options)]);
    Object.assign(state, {me, tokens: tokens.filter((token) => (token.user ?? token.owner ?? me.name) === me.name), usage: usage.usage, devices: devices.usage});
  }, 30000);
}

function draw(frame, state) {
  if (!state.me) return [trouble(frame.trouble) || h('p', {class: 'loading'}, 'Loading…')];
  return [
    h('div', {class: 'head'}, trouble(frame.trouble), h('div', {class: 'row between wrap'}, h('h1', null, session.user), h('button', {type: 'button', onclick: signOut}, 'Sign out')),
      h('p', {class: 'dim'}, `May: ${state.me.scopes.join(', ')}.`, state.me.expires && [' This session ends ', time(state.me.expires, away(state.me.expires)), '.'])),
    h('div', {class: 'columns'}, tokens(state), used('Used in the last 30 days, by everybody', state.usage, session.user), used('By device', state.devices, null)),
  ];
}

function tokens(state) {
  const revoke = async (token) => {
    if (!await ask({title: `Revoke token ${token.id}?`, text: 'Within 5 seconds it stops working everywhere, with all sessions that began with it.', action: 'Revoke it', danger: true})) return;
    try {
      await call('DELETE', `/v1/tokens/${token.id}`);
      toast('It is revoked.');
      state.poke();
    } catch (problem) {
      toast(problem.message, 'bad');
    }
  };
  return h('section', {class: 'card', 'aria-label': 'Tokens and sessions'}, h('h2', null, 'Tokens and sessions'), h('p', {class: 'dim'}, 'A new one: ', h('code', null, 'motley token make'), '.'),
    table('Tokens', ['Token', 'Note', 'May', 'Made', 'Last used', 'Ends', ''], state.tokens.filter((token) => !token.revoked).map((token) => h('tr', {key: token.id}, h('td', null, token.id), h('td', {class: 'why'}, token.note || (token.parent ? `session of token ${token.parent}` : '')), h('td', {class: 'why'}, (token.scopes || []).join(', ')),
      h('td', null, time(token.created)), h('td', null, token.used ? time(token.used, away(token.used)) : '–'), h('td', null, token.expires ? time(token.expires, away(token.expires)) : 'never'), h('td', null, h('button', {type: 'button', class: 'danger', onclick: () => revoke(token)}, 'Revoke'))))));
}

function used(title, rows, mine) {
  return h('section', {class: 'card', 'aria-label': title}, h('h2', null, title),
    !rows || rows.length === 0 ? h('p', {class: 'dim'}, 'Nothing yet.') : table(title, ['Name', '#Held', '#Charged', '#Jobs'], rows.map((row) => h('tr', {key: row.name, class: row.name === mine ? 'mine' : null}, h('td', null, row.name ?? 'no group'), h('td', {class: 'number'}, duration(row.held_s)), h('td', {class: 'number'}, duration(row.charged_s)), h('td', {class: 'number'}, row.jobs)))));
}
