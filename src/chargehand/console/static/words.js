// Format numbers, sizes, durations and instants for people, with a no-break space between a number and its unit.

const NB = "\u00a0";
let offset = 0; // the server's clock minus the user's

export function setClock(serverNow) {
  offset = Date.parse(serverNow) - Date.now();
}

export function now() {
  return Date.now() + offset;
}

export function number(value) {
  return Number(value).toLocaleString("en");
}

export function length(seconds) {
  if (seconds === null || seconds === undefined || Number.isNaN(seconds)) return "";
  if (seconds < 0.9995) return `${Math.round(seconds * 1000)}${NB}ms`;
  if (seconds < 9.95) return `${seconds.toFixed(1)}${NB}s`;
  if (seconds < 59.5) return `${Math.round(seconds)}${NB}s`;
  const s = Math.round(seconds);
  if (s < 3600) return `${Math.floor(s / 60)}${NB}m${s % 60 ? ` ${s % 60}${NB}s` : ""}`;
  if (s < 86400) return `${Math.floor(s / 3600)}${NB}h ${Math.floor((s % 3600) / 60)}${NB}m`;
  return `${Math.floor(s / 86400)}${NB}d ${Math.floor((s % 86400) / 3600)}${NB}h`;
}

export function short(seconds) {
  const s = Math.max(0, Math.round(Math.abs(seconds)));
  if (s < 60) return `${s}${NB}s`;
  if (s < 3600) return `${Math.floor(s / 60)}${NB}m`;
  if (s < 86400) return `${Math.floor(s / 3600)}${NB}h`;
  return `${Math.floor(s / 86400)}${NB}d`;
}

export function percent(share) {
  const per = share * 100;
  // 99.97 must not be shown as 100: only all is 100.
  const text = per === 100 || per === 0 ? per.toFixed(0) : per > 99.9 ? "99.9" : per < 0.1 ? "0.1" : per.toFixed(1);
  return `${text}${NB}%`;
}

export function bytes(count) {
  if (!count) return `0${NB}B`;
  const units = ["B", "kB", "MB", "GB", "TB"];
  const power = Math.min(units.length - 1, Math.floor(Math.log10(count) / 3));
  const value = count / 1000 ** power;
  return `${power && value < 10 ? value.toFixed(1) : Math.round(value)}${NB}${units[power]}`;
}

export function utc(at) {
  const d = new Date(at);
  return (
    d.toLocaleString("en-GB", {
      weekday: "short",
      day: "numeric",
      month: "short",
      year: "numeric",
      hour: "2-digit",
      minute: "2-digit",
      second: "2-digit",
      timeZone: "UTC",
    }) + " UTC"
  );
}

export function clock(at) {
  return new Date(at).toISOString().slice(11, 19);
}

export function since(at) {
  return (now() - Date.parse(at)) / 1000;
}

// "3 m", or in a sentence ("ago") "3 m ago" and "in 3 m".
export function relative(at, rel) {
  const seconds = since(at);
  if (rel !== "ago") return short(seconds);
  return seconds < 0 ? `in ${short(seconds)}` : `${short(seconds)} ago`;
}

export function sum(list, of = (each) => each) {
  return list.reduce((total, each) => total + of(each), 0);
}

export function plural(count, one, many) {
  return `${number(count)} ${count === 1 ? one : many || `${one}s`}`;
}

// Quote a name for a shell command that is copied: it must stay one argument.
export function quoted(text) {
  return /^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`;
}

// Look up a name that others chose: "constructor" is not in the table.
export function own(table, name) {
  return Object.hasOwn(table, name) ? table[name] : undefined;
}

export function host(url) {
  try {
    return new URL(url).host;
  } catch (e) {
    return url;
  }
}
