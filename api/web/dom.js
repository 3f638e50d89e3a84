// Draws descriptions of elements into the document and changes only what differs, so that focus, selection and scrolling
// stay. Texts become text nodes: nothing here reads a text as HTML.
import {BASE} from './base.js';

const SVG = 'http://www.w3.org/2000/svg';
const DRAWN_MAX = 5000;
// These are set as properties, because their attributes only say what a field begins with.
const PROPERTIES = new Set(['value', 'checked', 'disabled', 'indeterminate', 'open', 'hidden', 'selected']);

// Describes an element. Children are texts, numbers, descriptions, or lists of them; null, undefined and false are left out.
// Of its properties, `key` finds the same child again, `style` is an object of CSS properties, `on…` are functions, `ref` is called once with the
// new element, and `own: true` leaves the children to whoever got it by `ref`.
export function h(tag, props, ...children) {
  return {tag, props: props || {}, children: children.flat(Infinity).filter((c) => c !== null && c !== undefined && c !== false && c !== true)};
}

// Makes `parent` show these children.
export function render(parent, ...children) {
  patchChildren(parent, h('', null, ...children).children);
}

// Keeps descriptions by key: equal facts give the description of before, which `render` then leaves as it is drawn.
export class Drawn {
  constructor() {
    this.kept = new Map();
  }

  of(key, facts, make) {
    const text = JSON.stringify(facts);
    const had = this.kept.get(key);
    if (had?.text === text) return had.made;
    if (this.kept.size > DRAWN_MAX) this.kept.clear();
    const made = make();
    this.kept.set(key, {text, made});
    return made;
  }
}

function patchChildren(parent, wanted) {
  const keyed = new Map();
  const free = [];
  for (const node of parent.childNodes) {
    if (node.motleyKey !== undefined) keyed.set(node.motleyKey, node);
    else free.push(node);
  }
  let at = parent.firstChild;
  for (const child of wanted) {
    let node = reuse(child, keyed, free);
    if (node) patch(node, child);
    else node = create(child, parent);
    if (node === at) at = at.nextSibling;
    else parent.insertBefore(node, at);
  }
  for (const node of keyed.values()) node.remove();
  for (const node of free) node.remove();
}

function reuse(child, keyed, free) {
  const key = child.props?.key;
  if (key !== undefined) {
    const node = keyed.get(String(key));
    if (!node || node.localName !== child.tag) return null;
    keyed.delete(String(key));
    return node;
  }
  const index = free.findIndex((node) => typeof child === 'object' ? node.localName === child.tag && !node.motleyOwn === !child.props.own : node.nodeType === 3);
  if (index !== 0) return index > 0 && typeof child === 'object' ? free.splice(index, 1)[0] : null;
  return free.shift();
}

function create(child, parent) {
  if (typeof child !== 'object') return document.createTextNode(String(child));
  const svg = child.tag === 'svg' || (parent.namespaceURI === SVG && parent.localName !== 'foreignObject');
  const node = svg ? document.createElementNS(SVG, child.tag) : document.createElement(child.tag);
  if (child.props.key !== undefined) node.motleyKey = String(child.props.key);
  if (child.props.own) node.motleyOwn = true;
  patch(node, child);
  child.props.ref?.(node);
  return node;
}

function patch(node, child) {
  if (typeof child !== 'object') {
    if (node.data !== String(child)) node.data = String(child);
    return;
  }
  if (node.motleyDrawn === child) return;
  node.motleyDrawn = child;
  const before = node.motleyProps || {};
  node.motleyProps = child.props;
  if (!child.props.own) patchChildren(node, child.children);
  for (const name of Object.keys(before)) if (!(name in child.props)) setProperty(node, name, null, before[name]);
  for (const [name, value] of Object.entries(child.props)) setProperty(node, name, value, before[name]);
}

function setProperty(node, name, value, before) {
  if (name === 'key' || name === 'ref' || name === 'own') return;
  if (name === 'href' && value?.startsWith('/')) value = BASE + value;
  if (name.startsWith('on')) node[name] = value;
  else if (name === 'style') setStyle(node, value || {}, before || {});
  else if (PROPERTIES.has(name)) {
    if (node[name] !== (value ?? false)) node[name] = value ?? false;
  } else if (value === null || value === undefined || value === false) node.removeAttribute(name);
  else if (node.getAttribute(name) !== String(value === true ? '' : value)) node.setAttribute(name, value === true ? '' : value);
}

function setStyle(node, style, before) {
  for (const name of Object.keys(before)) if (!(name in style)) node.style.removeProperty(name);
  for (const [name, value] of Object.entries(style)) if (before[name] !== value) node.style.setProperty(name, value);
}

// Says a sentence to whoever listens with a screen reader.
export function speak(text) {
  document.getElementById('spoken').textContent = text;
}

// Shows a sentence for some seconds; one of `kind` 'bad' stays until it is closed.
export function toast(text, kind = 'good') {
  const box = document.createElement('div');
  const close = () => box.remove();
  box.className = `toast ${kind}`;
  render(box, h('span', null, text), h('button', {type: 'button', class: 'quiet', 'aria-label': 'Close', onclick: close}, '×'));
  document.getElementById('toasts').append(box);
  if (kind !== 'bad') setTimeout(close, 6000);
}

// Asks a question in a dialog. Resolves to true, or to the text of its field where there is one; to null when it is left.
export function ask({title, text, action, field, danger}) {
  return new Promise((resolve) => {
    const dialog = document.createElement('dialog');
    const value = {text: field?.value ?? ''};
    const leave = (answer) => {
      dialog.close();
      dialog.remove();
      resolve(answer);
    };
    dialog.setAttribute('aria-label', title);
    dialog.oncancel = () => leave(null);
    render(dialog, h('form', {method: 'dialog', onsubmit: (event) => {
      event.preventDefault();
      leave(field ? value.text : true);
    }},
    h('h2', null, title), text && h('p', null, text),
    field && h('label', {class: 'field'}, h('span', null, field.label),
      h('input', {type: field.type || 'text', value: value.text, min: field.min, max: field.max, required: true, placeholder: field.placeholder, autocomplete: 'off', oninput: (event) => { value.text = event.target.value; }})),
    h('div', {class: 'row end'}, h('button', {type: 'button', onclick: () => leave(null)}, 'Leave it'),
      h('button', {type: 'submit', class: danger ? 'danger' : 'primary'}, action))));
    document.body.append(dialog);
    dialog.showModal();
  });
}

const colours = new Map();

function forgetColours() {
  colours.clear();
}
window.addEventListener('theme', forgetColours);
matchMedia('(prefers-color-scheme: dark)').addEventListener('change', forgetColours);

// The document's colour of this name, as canvases want it.
export function colour(name) {
  if (colours.has(name)) return colours.get(name);
  const probe = document.createElement('i');
  probe.style.color = `var(--${name})`;
  document.body.append(probe);
  colours.set(name, getComputedStyle(probe).color);
  probe.remove();
  return colours.get(name);
}
