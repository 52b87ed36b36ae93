// The parts of the page that are lists, tables and bars.

const ROWS_MAX = 64;
const EVENTS_MAX = 60;
const BAD_EVENTS = new Set(["alarm", "quarantine", "lost", "abandoned", "given up"]);
const WARNING_EVENTS = new Set(["stall", "unready", "evicted", "left", "removed", "refused", "page"]);
const PARTS_OF_BITS = ["remainder", "quotient", "sign", "header", "dense"];
const MEANING_OF_BITS = {
  remainder: "where (remainder)",
  quotient: "where (quotient)",
  sign: "signs",
  header: "headers",
  dense: "dense payloads",
};

// What has not changed is left as it is, so that text can be selected and lists do not jump.
const shownBefore = new Map();
function show(id, children) {
  const content = element("div", {}, ...children);
  if (shownBefore.get(id) === content.innerHTML) return;
  shownBefore.set(id, content.innerHTML);
  byId(id).replaceChildren(...content.childNodes);
}

function showHeader(status) {
  byId("node").textContent = status.node;
  const state = byId("state");
  state.textContent = status.state;
  state.className = `pill ${status.ready ? "good" : "warn"}`;
  byId("plaintext").hidden = !status.plaintext;
  const run = status.run;
  byId("run").textContent = run
    ? [
        run.label,
        run.mode,
        `${plural(run.weights, "weight")} in ${plural(run.tensors, "tensor")}`,
        `quantum 2^${run.quantum_log2}`,
        `view ${status.view ? status.view.number : 0}`,
        `up for ${duration(status.uptime_s)}`,
      ].filter(Boolean).join(" \u00b7 ")
    : "no run yet: the first trainer brings it";
  byId("version").textContent = `p2psgd ${status.version}${status.digest ? `, digest ${status.digest}` : ""}`;
  document.title = `${status.node}: ${status.state}`;
  const dense = Boolean(status.ring && status.ring.payload.startsWith("dense"));
  for (const card of document.querySelectorAll(".sparse")) card.hidden = dense;
}

function showTiles(status, rates) {
  const { trainer, ring, compression } = status;
  const lags = (status.peers || []).map((peer) => peer.lag).filter(known);
  const tiles = [
    ["loss", figure(trainer.loss)],
    known(trainer.test_accuracy) && ["test accuracy", percent(trainer.test_accuracy)],
    ["samples/s", figure(trainer.samples_per_s)],
    ring ? ["round", grouped(ring.round)] : ["mini-batches", grouped(trainer.mini_batches)],
    known(trainer.epoch) && ["epoch", known(trainer.epoch) ? trainer.epoch.toFixed(2) : UNKNOWN],
    compression && ["compression", times(smaller(status, compression.total))],
    compression && ["bits/index", digitsOr(compression.recent.bits_per_index)],
    ["sent", rate(rates.get("sent"))],
    ["received", rate(rates.get("received"))],
    !ring && ["largest lag", lags.length ? grouped(Math.max(...lags)) : UNKNOWN],
    ["loop lag", known(status.loop_lag_ms) ? `${digits(status.loop_lag_ms)} ms` : UNKNOWN],
  ];
  show("tiles", tiles.filter(Boolean).map(([label, value]) =>
    element("div", { class: "tile" }, element("span", {}, label), element("b", {}, value)),
  ));
}

const digitsOr = (value) => (known(value) ? digits(value) : UNKNOWN);

const sentBytes = (part) => Object.values(part.bits).reduce((sum, bits) => sum + bits, 0) / 8;
const denseBytes = (status, part) => 4 * status.run.weights * part.mini_batches;

function smaller(status, part) {
  return status.run && sentBytes(part) > 0 ? denseBytes(status, part) / sentBytes(part) : undefined;
}

// Whom and what this node waits for, the gravest first: [class, words].
function waiting(status) {
  const said = [];
  const say = (grade, words, since) => {
    if (!words || said.some(([, other]) => other.startsWith(words))) return;
    said.push([grade, known(since) ? `${words} (since ${duration(since)})` : words]);
  };
  const { stall, ring, trainer } = status;
  for (const alarm of [...(status.alarms || [])].reverse()) say("bad", `alarm: ${alarm}`);
  if (stall) say("warn", stall.words, stall.since_s);
  say("warn", status.not_ready);
  say("warn", status.waits);
  if (ring && ring.since_s >= 1) say("warn", ring.waiting_for, ring.since_s);
  say("warn", status.view && status.view.waits && `the next view: ${status.view.waits}`);
  say("warn", trainer.waits && `the trainer: ${trainer.waits}`);
  say("bad", trainer.crash && !trainer.attached && `the trainer: ${trainer.crash}`);
  for (const row of roster(status)) {
    if (row.kind === "late" || row.kind === "gone") say("warn", `${row.name}: ${row.words}`);
  }
  for (const link of status.slow_links || []) {
    say("warn", `${link.node} takes ${rate(link.available)} of the ${rate(link.needed)} that are made`);
  }
  if (status.log && status.log.pressure > 0.8) {
    const holders = status.log.holders.map((row) => `${row.node} (${bytes(row.bytes)})`).join(", ");
    say("bad", `the log is ${percent(status.log.pressure)} full of what others lack: ${holders}`);
  }
  say("bad", status.checkpoint && status.checkpoint.trouble);
  say("bad", status.scrub && status.scrub.clean === false && "the last scrub found damage in the weights");
  say("warn", status.events && status.events.trouble);
  return said;
}

function showWaits(status) {
  const rows = waiting(status).slice(0, 20).map(([grade, words]) => element("li", { class: grade }, words));
  show("waits", rows.length ? rows : [element("li", { class: "good" }, "nobody")]);
}

function showRing(status) {
  const ring = status.ring;
  byId("ring").hidden = !ring;
  if (!ring) return;
  const facts = [
    ["round", `${grouped(ring.round)} is complete`],
    ["payload", ring.payload],
    ["attempt", ring.attempt ? `${ring.attempt} of this view, ${ring.running ? "under way" : "ended"}` : "none yet"],
    ["waits for", ring.waiting_for && ring.since_s >= 1 ? `${ring.waiting_for} (${duration(ring.since_s)})` : "nobody"],
  ];
  show("ring-facts", facts.flatMap(([term, words]) => [element("dt", {}, term), element("dd", {}, words)]));
  show("ring-order", ring.order.slice(0, ROWS_MAX).map((name) =>
    element("li", {}, element("span", name === status.node ? { class: "self-name" } : {}, name)),
  ));
}

function showDense(status) {
  const total = status.compression && status.compression.total;
  if (!total || !status.run || !total.mini_batches) {
    show("dense", [element("p", { class: "muted" }, "no update has been made yet")]);
    return;
  }
  const [dense, sent] = [denseBytes(status, total), sentBytes(total)];
  const bar = (label, size, kind) => {
    const fill = element("i", { class: kind });
    fill.style.width = `${(100 * size) / Math.max(dense, sent)}%`;
    const heading = element("div", { class: "row" }, element("span", {}, label), element("b", {}, bytes(size)));
    return [heading, element("div", { class: "bar" }, fill)];
  };
  const recent = smaller(status, status.compression.recent);
  show("dense", [
    ...bar(`gradients of ${plural(total.mini_batches, "mini-batch").replace("batchs", "batches")} as float32`, dense, "all"),
    ...bar(`sent ${status.ring ? "around the ring" : "to each peer"} instead, headers included`, sent, "sent"),
    element("span", { class: "big" }, times(smaller(status, total))),
    element("span", { class: "muted" }, ` smaller; of late ${times(recent)}`),
  ]);
}

function showParts(status) {
  const recent = status.compression && status.compression.recent;
  const sum = recent && recent.indices ? sentBytes(recent) * 8 : 0;
  if (!sum) {
    show("parts", []);
    show("parts-legend", [element("li", {}, "no index has been sent yet")]);
    return;
  }
  const parts = PARTS_OF_BITS.map((name, place) => [name, recent.bits[name], place]).filter(([, bits]) => bits);
  show("parts", parts.map(([name, bits, place]) => {
    const part = element("i", { class: `part${place}`, title: MEANING_OF_BITS[name] });
    part.style.width = `${(100 * bits) / sum}%`;
    return part;
  }));
  const per = (bits) => `${digits(bits / recent.indices)} bits/index, ${percent(bits / sum)}`;
  show("parts-legend", parts.map(([name, bits, place]) =>
    element("li", {}, element("i", { class: `part${place}` }), `${MEANING_OF_BITS[name]}: ${per(bits)}`),
  ));
}

function showTensors(status) {
  const every = (status.compression && status.compression.tensors) || [];
  const largest = [...every].sort((one, other) => other.weights - one.weights).slice(0, ROWS_MAX);
  const shown = every.filter((row) => largest.includes(row));
  const quantum = status.run ? 2 ** status.run.quantum_log2 : NaN;
  const most = Math.max(...shown.map((row) => row.recent_density || 0), 1e-12);
  const head = ["tensor", "weights", "tau", "density, recent", "over all", "share of indices"];
  const asides = new Set([1, 4, 5]);
  const cell = (place, content) => element("td", asides.has(place) ? { class: "aside" } : {}, content);
  const rows = shown.map((row) => {
    const fill = element("i");
    fill.style.width = `${(100 * (row.recent_density || 0)) / most}%`;
    const bar = element("span", { class: "bar thin" }, fill);
    const density = element("span", { class: "density" }, bar, element("span", {}, percent(row.recent_density)));
    const tau = row.step ? digits(row.step * quantum) : UNKNOWN;
    const contents = [row.name, grouped(row.weights), tau, density, percent(row.density), percent(row.share)];
    return element("tr", {}, ...contents.map((content, place) => cell(place, content)));
  });
  const heading = head.map((words, place) => element("th", asides.has(place) ? { class: "aside" } : {}, words));
  show("tensors", [element("tr", {}, ...heading), ...rows]);
  const total = status.compression ? status.compression.tensors_total || every.length : 0;
  byId("tensors-more").textContent = total > shown.length ? `and ${total - shown.length} smaller` : "";
}

const peerTrouble = (peer) =>
  peer.through
    ? `not reached directly${peer.error ? ` (${peer.error})` : ""}, its updates come through ${peer.through}`
    : peer.error;

function showPeers(status, rates) {
  const peers = (status.peers || []).slice(0, ROWS_MAX);
  const ring = Boolean(status.ring);
  const troubled = peers.some(peerTrouble);
  const grade = { connected: "good", suspect: "warn", lost: "bad", dialling: "warn", stopped: "idle" };
  const rows = [...peers].sort((one, other) => (one.node < other.node ? -1 : 1)).map((peer) => {
    const key = peer.id || peer.address;
    const name = element("span", { title: peer.address }, peer.node);
    const cells = [
      element("td", {}, name),
      element("td", { class: grade[peer.state] || "" }, peer.state),
      element("td", { class: "aside" }, duration(peer.since_s)),
      ...(ring ? [] : [element("td", {}, grouped(peer.lag))]),
      element("td", {}, rate(rates.get(`sent ${key}`))),
      element("td", {}, rate(rates.get(`received ${key}`))),
      element("td", { class: "aside" }, bytes(peer.bytes_sent + peer.bytes_received)),
      ...(troubled ? [element("td", { class: "words muted" }, peerTrouble(peer))] : []),
    ];
    return element("tr", {}, ...cells);
  });
  const heading = element(
    "tr",
    {},
    ...["peer", "link"].map((words) => element("th", {}, words)),
    element("th", { class: "aside" }, "for"),
    ...[...(ring ? [] : ["lacks"]), "sent", "received"].map((words) => element("th", {}, words)),
    element("th", { class: "aside" }, "in all"),
    ...(troubled ? [element("th", { class: "words" }, "last words")] : []),
  );
  show("peers", rows.length ? [heading, ...rows] : [element("tr", {}, element("td", { class: "muted" }, "none"))]);
}

// `noted`: what the page itself has seen, in the same form.
function showEvents(status, noted) {
  const events = [...(status.latest_events || []), ...noted];
  events.sort((one, other) => new Date(other.time) - new Date(one.time) || (other.count || 0) - (one.count || 0));
  const grade = (kind) => (BAD_EVENTS.has(kind) ? "bad" : WARNING_EVENTS.has(kind) ? "warn" : "");
  show("events", events.slice(0, EVENTS_MAX).map((event) => {
    const who = event.node && !event.words.includes(event.node) ? `${event.node}: ` : "";
    const time = element("time", { datetime: event.time, title: event.time }, clock(event.time));
    return element("li", { class: grade(event.kind) }, time, element("b", {}, event.kind), who + event.words);
  }));
  const count = status.events ? status.events.count : events.length;
  byId("events-total").textContent = `${grouped(count)} so far`;
}
