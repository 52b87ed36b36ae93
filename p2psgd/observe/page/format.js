// Elements and figures. Whatever comes out of a status becomes text, never markup.

const byId = (id) => document.getElementById(id);

function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

function drawn(tag, attributes = {}, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

const UNKNOWN = "\u2013";
const known = (value) => typeof value === "number" && Number.isFinite(value);
const plural = (count, one) => `${grouped(count)} ${one}${count === 1 ? "" : "s"}`;

function grouped(value) {
  return known(value) ? Math.round(value).toLocaleString("en-US") : UNKNOWN;
}

// Three digits that matter: 0.00287, 2.31, 421, 12.3 k.
function figure(value) {
  if (!known(value)) return UNKNOWN;
  for (const [unit, size] of [["G", 1e9], ["M", 1e6], ["k", 1e4]]) {
    if (Math.abs(value) >= size) return `${digits(value / (unit === "k" ? 1e3 : size))} ${unit}`;
  }
  return digits(value);
}

function digits(value) {
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1000) return Math.round(value).toLocaleString("en-US");
  return size < 1e-4 ? value.toExponential(1) : String(Number(value.toPrecision(3)));
}

function bytes(value) {
  if (!known(value)) return UNKNOWN;
  let unit = 0;
  let size = value;
  while (size >= 1000 && unit < 5) {
    size /= 1000;
    unit += 1;
  }
  return `${unit === 0 ? Math.round(size) : digits(size)} ${["B", "kB", "MB", "GB", "TB", "PB"][unit]}`;
}

const rate = (value) => (known(value) ? `${bytes(value)}/s` : UNKNOWN);
const percent = (value) => (known(value) ? `${digits(100 * value)} %` : UNKNOWN);
const times = (value) => (known(value) ? `${figure(value)}\u00d7` : UNKNOWN);

function duration(seconds) {
  if (!known(seconds)) return UNKNOWN;
  if (seconds < 120) return `${Math.round(seconds)} s`;
  if (seconds < 7200) return `${Math.floor(seconds / 60)} min`;
  if (seconds < 172800) return `${Math.floor(seconds / 3600)} h ${Math.floor((seconds % 3600) / 60)} min`;
  return `${Math.floor(seconds / 86400)} days`;
}

const clock = (moment) => new Date(moment).toLocaleTimeString("en-GB");
