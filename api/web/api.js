// Requests to the API by the session's cookie. Errors are Problems, whose message is the server's sentence.
import {BASE} from './base.js';
import {noteServerTime} from './format.js';

export class Problem extends Error {
  constructor(status, document) {
    super(document.detail || document.title || `The server answered with status ${status}.`);
    this.status = status;
    this.code = document.code || '';
    this.document = document;
  }
}

// Called when a request finds that nobody is signed in any more.
export const session = {user: null, scopes: [], lost: () => {}};

export const may = (scope) => session.scopes.includes(scope) || session.scopes.includes('admin');

export async function call(method, path, body, {signal, quiet} = {}) {
  const headers = {Accept: 'application/json'};
  if (method !== 'GET') headers['X-Motley'] = '1';
  if (body !== undefined) headers['Content-Type'] = 'application/json';
  let answer;
  try {
    answer = await fetch(BASE + path, {method, headers, signal, body: body === undefined ? undefined : JSON.stringify(body), credentials: 'same-origin'});
  } catch (error) {
    if (error.name === 'AbortError') throw error;
    throw new Problem(0, {detail: 'The server does not answer. The page tries again by itself.', code: 'network'});
  }
  noteServerTime(answer.headers.get('Date'));
  const text = await answer.text();
  let document = {};
  try {
    document = text ? JSON.parse(text) : {};
  } catch {
    throw new Problem(answer.status, {detail: 'The server sent something that is not JSON.'});
  }
  if (answer.status === 401 && !quiet) session.lost();
  if (!answer.ok) throw new Problem(answer.status, document);
  return document;
}

export const get = (path, options) => call('GET', path, undefined, options);
export const post = (path, body, options) => call('POST', path, body, options);

// The value of a route that this server may not have: null then.
export async function getOrNull(path, options) {
  try {
    return await get(path, options);
  } catch (problem) {
    if (problem instanceof Problem && [400, 404, 405].includes(problem.status)) return null;
    throw problem;
  }
}

// Every item of a list, page by page, at most `most` of them.
export async function all(path, member, most = 10000, options = {}) {
  const items = [];
  const join = path.includes('?') ? '&' : '?';
  for (let after = null; items.length < most;) {
    const page = await get(after ? `${path}${join}after=${encodeURIComponent(after)}` : path, options);
    items.push(...page[member]);
    after = page.next;
    if (!after) break;
  }
  return items;
}

export const segment = encodeURIComponent;
