// Calls of the server's API with the user's token. No cookie is involved: requests that another site makes this browser send have no
// token.

const KEY = "chargehand.token";
// In this API a 401 may also mean that a valid token lacks a scope. An invalid one is noticed by the other calls of every page.
const LACKS_A_RIGHT = "/v1/codeq/";
let onSignedOut = () => {};

function storages() {
  const found = [];
  for (const name of ["sessionStorage", "localStorage"]) {
    try {
      found.push(window[name]);
    } catch (e) {
      /* a private window */
    }
  }
  return found;
}

let memory = "";
export function token() {
  for (const storage of storages()) {
    const kept = storage.getItem(KEY);
    if (kept) return kept;
  }
  return memory;
}

export function keepToken(value, long) {
  forgetToken();
  const [session, local] = storages();
  const storage = long ? local : session;
  if (storage) storage.setItem(KEY, value);
  else memory = value; // not in addition to storage: signing out in another tab would not clear it
}

export function forgetToken() {
  memory = "";
  for (const storage of storages()) storage.removeItem(KEY);
}

export function whenSignedOut(act) {
  onSignedOut = act;
}

export class ApiError extends Error {
  constructor(status, message, body) {
    super(message);
    this.status = status;
    this.body = body;
  }
}

// There was no answer. The browser throws a TypeError then, as it does for a bug of ours.
export class NoAnswer extends Error {}

// Only URLs of this server, since the token is sent: `//elsewhere/x` looks like a path, but names another host.
export async function ask(path, options) {
  if (new URL(path, location.href).origin !== location.origin) throw new Error("this is no address of this server");
  try {
    return await fetch(path, options);
  } catch (error) {
    if (error instanceof TypeError) throw new NoAnswer("no answer from the server");
    throw error;
  }
}

export function headers(more = {}) {
  const held = token();
  return held ? { ...more, authorization: `Bearer ${held}` } : more;
}

// The error text of the server, in whichever format the door has.
function said(body, status) {
  if (body && typeof body === "object") {
    const error = body.error;
    if (typeof body.message === "string" && body.message) return body.message;
    if (typeof error === "string") return body.detail ? `${error}: ${body.detail}` : error;
    if (error && typeof error === "object") return error.message || error.detail || JSON.stringify(error);
    if (body.detail || body.title) return body.detail || body.title;
  }
  return `the server answered ${status}`;
}

const PAGES = 10;

// A page of a list of jobs may be short, even empty, and not be the last: the server searches 10,000 jobs for each. Goes on for a while.
export async function getJobs(path) {
  const url = new URL(path, location.href);
  const limit = Number(url.searchParams.get("limit"));
  const jobs = [];
  let next = null;
  for (let page = 0; page < PAGES; page++) {
    url.searchParams.set("limit", limit - jobs.length);
    if (next) url.searchParams.set("cursor", next);
    const found = await get(url.pathname + url.search);
    jobs.push(...found.jobs);
    next = found.next;
    if (!next || jobs.length >= limit) break;
  }
  return { jobs, next };
}

export async function call(method, path, body, { signal, quiet } = {}) {
  const options = {
    method,
    headers: headers(body === undefined ? {} : { "content-type": "application/json" }),
    signal,
    cache: "no-store",
  };
  if (body !== undefined) options.body = JSON.stringify(body);
  const answer = await ask(path, options);
  const text = await answer.text();
  let read = null;
  try {
    read = text ? JSON.parse(text) : null;
  } catch (e) {
    read = text;
  }
  if (answer.status === 401 && !quiet && !path.startsWith(LACKS_A_RIGHT)) onSignedOut();
  if (!answer.ok) throw new ApiError(answer.status, said(read, answer.status), read);
  return read;
}

export const get = (path, options) => call("GET", path, undefined, options);
export const put = (path, body) => call("PUT", path, body);

// A part of a page whose door is off, or whose scope the token lacks, is left out and not an error.
export async function getOr(path, instead, options) {
  try {
    return await get(path, options);
  } catch (error) {
    if (error instanceof ApiError && [401, 403, 404].includes(error.status)) return instead;
    throw error;
  }
}

// Server-sent events by fetch, because an EventSource cannot send a token. Ends when the stream does; the caller reconnects.
export async function stream(path, { signal, lastId, onEvent, onOpen, onBytes = () => {} }) {
  const more = { accept: "text/event-stream" };
  if (lastId) more["last-event-id"] = lastId;
  const answer = await ask(path, { headers: headers(more), signal, cache: "no-store" });
  if (answer.status === 401) onSignedOut();
  if (!answer.ok) throw new ApiError(answer.status, `the server answered ${answer.status}`, null);
  if (onOpen) onOpen();
  const reader = answer.body.getReader();
  const decoder = new TextDecoder();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    onBytes();
    rest += decoder.decode(value, { stream: true }).replace(/\r\n?/g, "\n");
    for (let end = rest.indexOf("\n\n"); end >= 0; end = rest.indexOf("\n\n")) {
      const event = parse(rest.slice(0, end));
      rest = rest.slice(end + 2);
      if (event) onEvent(event);
    }
  }
}

function parse(block) {
  const event = { name: "message", id: "", data: "" };
  let any = false;
  for (const line of block.split("\n")) {
    if (line.startsWith(":")) continue;
    const colon = line.indexOf(":");
    const field = colon < 0 ? line : line.slice(0, colon);
    const value = colon < 0 ? "" : line.slice(colon + 1).replace(/^ /, "");
    if (field === "data") {
      event.data += (event.data ? "\n" : "") + value;
      any = true;
    } else if (field === "event") event.name = value;
    else if (field === "id") event.id = value;
  }
  return any ? event : null;
}
