// The path before the page's addresses and the API's: a web server may serve both below one, such as /motley. "" for none.
export const BASE = new URL('../..', import.meta.url).pathname.slice(0, -1);

// What follows it in a path of this page.
export const withoutBase = (path) => path.slice(BASE.length) || '/';
