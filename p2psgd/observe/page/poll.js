// Asks for the status about once a second, for ever, also while nobody answers.

const POLL_MS = 1000;
const POLL_SILENT_MS = 2000;
const ANSWER_MS = 4000;
const BANNER_MS = 15000;
const NOTED_MAX = 20;

const page = { status: null, answered: 0, silent: false, life: 0, noted: [], restarted: 0 };
const rates = new Rates();
const lossSeries = new Series();
const bitsSeries = new Series();
const charts = [new Chart("loss", lossSeries), new Chart("bits", bitsSeries)];

function note(words) {
  page.noted = [...page.noted, { time: new Date().toISOString(), kind: "page", words }].slice(-NOTED_MAX);
}

function contact(state, words) {
  byId("contact").className = `contact ${state}`;
  byId("contact").textContent = words;
  byId("main").className = state === "silent" ? "old" : "";
}

function banner(words) {
  const place = byId("banner");
  place.hidden = !words;
  if (place.textContent !== words) place.textContent = words;
}

function take(status) {
  const now = Date.now();
  const before = page.status;
  const again = before !== null && (before.incarnation !== status.incarnation || before.pid !== status.pid);
  if (again) {
    note("the daemon has been started again");
    page.restarted = now;
  } else if (page.silent) {
    note(`the daemon answers again, after ${duration((now - page.answered) / 1000)}`);
  }
  if (again || page.silent) page.life += 1;
  [page.status, page.answered, page.silent] = [status, now, false];
  rates.take(now, [
    ["sent", status.bytes.sent],
    ["received", status.bytes.received],
    ...(status.peers || []).flatMap((peer) => [
      [`sent ${peer.id || peer.address}`, peer.bytes_sent],
      [`received ${peer.id || peer.address}`, peer.bytes_received],
    ]),
  ]);
  lossSeries.add(now, status.trainer.loss, page.life);
  if (status.compression) bitsSeries.add(now, status.compression.recent.bits_per_index, page.life);
  contact("live", `live, ${clock(now)}`);
  banner(now - page.restarted < BANNER_MS ? `The daemon was started again at ${clock(page.restarted)}.` : "");
  draw();
}

function draw() {
  const status = page.status;
  if (status === null) return;
  showHeader(status);
  showTiles(status, rates);
  drawMap(status, rates);
  showWaits(status);
  showRing(status);
  showDense(status);
  showParts(status);
  showTensors(status);
  showPeers(status, rates);
  showEvents(status, page.noted);
  for (const chart of charts) chart.draw();
}

function silence() {
  if (!page.silent && page.status !== null) {
    note("the daemon does not answer");
    showEvents(page.status, page.noted);
  }
  page.silent = true;
  const since = page.answered ? ` for ${duration((Date.now() - page.answered) / 1000)}` : "";
  contact("silent", "no answer");
  banner(
    `No answer from the daemon${since}: it has ended, is being started again, or is out of reach. ` +
      "What is shown is old; this page goes on asking.",
  );
}

async function ask() {
  const limit = new AbortController();
  const timer = setTimeout(() => limit.abort(), ANSWER_MS);
  try {
    const answer = await fetch("status.json", { cache: "no-store", signal: limit.signal });
    return answer.ok ? await answer.json() : null;
  } catch {
    return null;
  } finally {
    clearTimeout(timer);
  }
}

async function poll() {
  const status = await ask();
  try {
    if (status === null) silence();
    else take(status);
  } finally {
    setTimeout(poll, page.silent ? POLL_SILENT_MS : POLL_MS);
  }
}

window.addEventListener("resize", draw);
poll();
