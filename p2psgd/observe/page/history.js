// What the page has seen, bounded: when it is full every other point goes, so that older times stay, coarser.

const POINTS_MAX = 600;

class Series {
  constructor() {
    this.points = [];
    this.last = null;
    this.count = 0;
    this.stride = 1;
  }

  // `life` changes with each silence or restart of the daemon, over which no curve is drawn.
  add(moment, value, life) {
    if (!known(value)) return;
    this.last = { moment, value, life };
    if (this.count++ % this.stride === 0) this.points.push(this.last);
    if (this.points.length >= POINTS_MAX) {
      this.points = this.points.filter((_, place) => place % 2 === 0);
      this.stride *= 2;
    }
  }

  get all() {
    if (this.last === null || this.points.at(-1) === this.last) return this.points;
    return [...this.points, this.last];
  }
}

// How fast a count grows, from one status to the next.
class Rates {
  constructor() {
    this.before = new Map();
    this.now = new Map();
  }

  take(moment, counts) {
    const rates = new Map();
    for (const [name, count] of counts) {
      const old = this.before.get(name);
      if (old && moment > old.moment && count >= old.count) {
        rates.set(name, (1000 * (count - old.count)) / (moment - old.moment));
      }
    }
    this.before = new Map(counts.map(([name, count]) => [name, { moment, count }]));
    this.now = rates;
  }

  get(name) {
    return this.now.get(name);
  }
}
