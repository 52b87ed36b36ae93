// The nodes and links that this node knows of: a star around it, or in ring mode the ring.

const NODES_DRAWN = 48;
const NODES_NAMED = 24;
const RATES_SHOWN = 9;
const WIDTH_OF_RATES = 480;
const MARKS = { ready: "\u2713", joining: "\u2026", late: "!", gone: "\u00d7", stopped: "\u25aa" };
const MEANINGS = {
  ready: "ready",
  joining: "linked, not ready",
  late: "late: linked and silent",
  gone: "gone or not reached",
  stopped: "stopped or not a member",
};

// One row for each node: {key, name, kind, words, own, linked, lag}; this node first.
function roster(status) {
  const rows = new Map();
  const view = status.view || { members: [], number: 0 };
  const own = status.ready ? "ready" : "joining";
  rows.set(status.id, { key: status.id, name: status.node, kind: own, words: status.state, own: true });
  for (const member of view.members) {
    if (member.own || rows.has(member.id)) continue;
    const heard = known(member.heard_s) ? `heard of ${duration(member.heard_s)} ago` : "never heard";
    rows.set(member.id, { key: member.id, name: member.node, kind: "gone", words: heard, lag: member.lag });
  }
  const members = new Map(view.members.map((member) => [member.id, member]));
  for (const peer of status.peers || []) {
    const key = peer.id || peer.address;
    const member = members.get(peer.id);
    const row = { key, name: peer.node, lag: peer.lag, linked: peer.state === "connected" };
    const since = duration(peer.since_s);
    if (peer.state === "connected") {
      row.kind = member && member.ready ? "ready" : "joining";
      row.words = status.ring ? "linked" : lagWords(peer.lag);
      if (!member && view.number > 0) [row.kind, row.words] = ["stopped", "not a member"];
    } else if (peer.state === "suspect") {
      [row.kind, row.words, row.linked] = ["late", `silent for ${since}`, true];
    } else if (peer.state === "stopped" || (peer.state === "lost" && !member && view.number > 0)) {
      [row.kind, row.words] = ["stopped", peer.state === "stopped" ? `stopped ${since} ago` : "not a member"];
    } else if (peer.through) {
      [row.kind, row.words] = ["late", `through ${peer.through}`];
    } else {
      [row.kind, row.words] = ["gone", peer.state === "lost" ? `gone for ${since}` : `not reached, ${since}`];
    }
    rows.set(key, row);
  }
  return [...rows.values()];
}

const lagWords = (lag) => (known(lag) ? (lag > 0 ? `lacks ${grouped(lag)}` : "up to date") : "linked");

function drawMap(status, rates) {
  const svg = byId("map");
  const all = roster(status);
  const order = (status.ring && status.ring.order) || [];
  const ring = order.length > 1;
  const others = all.filter((row) => !row.own);
  others.sort((one, other) => (one.name < other.name ? -1 : one.name > other.name ? 1 : 0));
  if (ring) others.sort((one, other) => place(order, one.name) - place(order, other.name));
  const rows = [all[0], ...others].slice(0, NODES_DRAWN);
  const width = svg.clientWidth || 340;
  const height = Math.round(Math.min(430, Math.max(290, width * 0.66)));
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  svg.setAttribute("aria-label", rows.map((row) => `${row.name}: ${row.kind}`).join(", "));
  const spots = fitted(ring ? ringSpots(rows, order) : starSpots(rows), width, height);
  const radius = rows.length > NODES_NAMED ? 8 : 13;
  const shapes = ring ? ringArrows(rows, order, spots, radius) : [];
  if (!ring) shapes.push(...starLinks(rows, spots, width < WIDTH_OF_RATES ? null : rates));
  for (const [number, row] of rows.entries()) {
    const named = row.own || rows.length <= NODES_NAMED;
    shapes.push(nodeShapes(row, spots[number], radius, named, spots[number].y < height / 3));
  }
  svg.replaceChildren(...shapes);
  const kinds = Object.keys(MEANINGS).filter((kind) => all.some((row) => row.kind === kind));
  const legend = kinds.map((kind) => {
    const count = all.filter((row) => row.kind === kind).length;
    return element("li", {}, element("i", { class: kind }), `${MARKS[kind]} ${MEANINGS[kind]}: ${count}`);
  });
  if (all.length > rows.length) legend.push(element("li", {}, `${all.length - rows.length} more not drawn`));
  byId("legend").replaceChildren(...legend);
}

function place(order, name) {
  const found = order.indexOf(name);
  return found < 0 ? order.length : found;
}

// Around the unit circle from its top, two of them side by side.
function around(number, count) {
  const angle = (2 * Math.PI * number) / count - (count < 3 ? 0 : Math.PI / 2);
  return { x: Math.cos(angle), y: Math.sin(angle) };
}

function starSpots(rows) {
  return rows.map((row, number) => (number === 0 ? { x: 0, y: 0 } : around(number - 1, rows.length - 1)));
}

// Members in the ring's order; whoever is not in it stands in the middle.
function ringSpots(rows, order) {
  const outside = rows.filter((row) => !order.includes(row.name));
  return rows.map((row) => {
    const at = order.indexOf(row.name);
    if (at >= 0) return around(at, order.length);
    return { x: (outside.indexOf(row) + 1) / (outside.length + 1) - 0.5, y: 0 };
  });
}

// The same spots so that they fill the picture, with room for names above and below.
function fitted(spots, width, height) {
  const fit = (values, from, to) => {
    const [least, most] = [Math.min(...values), Math.max(...values)];
    if (most - least < 1e-6) return values.map(() => (from + to) / 2);
    return values.map((value) => from + ((value - least) / (most - least)) * (to - from));
  };
  const x = fit(spots.map((spot) => spot.x), 60, width - 60);
  const y = fit(spots.map((spot) => spot.y), 54, height - 52);
  return spots.map((_, number) => ({ x: x[number], y: y[number] }));
}

// `rates`: null where there is no room for them.
function starLinks(rows, spots, rates) {
  const shapes = [];
  const labels = [];
  for (const [number, row] of rows.entries()) {
    if (row.own || row.kind === "stopped") continue;
    const [from, to] = [spots[0], spots[number]];
    const [sent, received] = ["sent", "received"].map((way) => rates?.get(`${way} ${row.key}`));
    const flow = (sent || 0) + (received || 0);
    const kind = row.linked ? (row.kind === "late" ? "late" : "up") : "gone";
    const thick = kind === "up" ? 1.5 + Math.min(5, Math.log10(1 + flow / 100)) : 2;
    shapes.push(
      drawn("line", { x1: from.x, y1: from.y, x2: to.x, y2: to.y, class: `link ${kind}`, "stroke-width": thick }),
    );
    if (row.linked && rows.length <= RATES_SHOWN && known(sent) && known(received)) {
      const at = { x: (from.x + to.x) / 2, y: (from.y + to.y) / 2 };
      const text = drawn("text", { x: at.x, y: at.y, "text-anchor": "middle", class: "halo" });
      text.append(
        drawn("tspan", { x: at.x, dy: -3 }, `\u2191 ${rate(sent)}`),
        drawn("tspan", { x: at.x, dy: 15 }, `\u2193 ${rate(received)}`),
      );
      labels.push(text);
    }
  }
  return [...shapes, ...labels];
}

function ringArrows(rows, order, spots, radius) {
  const at = new Map(rows.map((row, number) => [row.name, { spot: spots[number], row }]));
  return order.flatMap((name, number) => {
    const [from, to] = [at.get(name), at.get(order[(number + 1) % order.length])];
    if (!from || !to) return [];
    const gone = [from.row, to.row].some((row) => row.kind === "gone" || row.kind === "stopped");
    const [dx, dy] = [to.spot.x - from.spot.x, to.spot.y - from.spot.y];
    const length = Math.hypot(dx, dy) || 1;
    const [ux, uy] = [dx / length, dy / length];
    const start = { x: from.spot.x + ux * (radius + 5), y: from.spot.y + uy * (radius + 5) };
    const tip = { x: to.spot.x - ux * (radius + 6), y: to.spot.y - uy * (radius + 6) };
    const wing = (side) =>
      `${(tip.x - 10 * ux - side * 5 * uy).toFixed(1)},${(tip.y - 10 * uy + side * 5 * ux).toFixed(1)}`;
    const ends = { x1: start.x, y1: start.y, x2: tip.x, y2: tip.y };
    const line = drawn("line", { ...ends, class: `link ${gone ? "gone" : "up"}`, "stroke-width": 2 });
    if (gone) return [line];
    return [line, drawn("polygon", { points: `${tip.x},${tip.y} ${wing(1)} ${wing(-1)}`, class: "head" })];
  });
}

function nodeShapes(row, spot, radius, named, above) {
  const group = drawn("g", {}, drawn("title", {}, `${row.name}: ${MEANINGS[row.kind]}, ${row.words}`));
  if (row.own) group.append(drawn("circle", { cx: spot.x, cy: spot.y, r: radius + 5, class: "self" }));
  group.append(drawn("circle", { cx: spot.x, cy: spot.y, r: radius, class: `body ${row.kind}` }));
  const middle = { x: spot.x, "text-anchor": "middle" };
  if (radius > 10) {
    group.append(drawn("text", { ...middle, y: spot.y + 5, class: "mark" }, MARKS[row.kind]));
  }
  if (named) {
    const gap = radius + (row.own ? 20 : 15);
    const first = above ? spot.y - gap - 3 : spot.y + gap;
    const name = row.name.length > 18 ? `${row.name.slice(0, 17)}\u2026` : row.name;
    group.append(
      drawn("text", { ...middle, y: first, class: "halo" }, row.own ? `${name} (this node)` : name),
      drawn("text", { ...middle, y: first + 14, class: "halo faint" }, row.words),
    );
  }
  return group;
}
