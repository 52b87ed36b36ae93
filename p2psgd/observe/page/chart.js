// One curve over time in an <svg>; what is under the pointer is read out beside the heading.

const CHART = { left: 54, right: 10, top: 8, bottom: 20 };

class Chart {
  constructor(id, series) {
    this.svg = byId(id);
    this.read = byId(`${id}-read`);
    this.series = series;
    this.pointed = null;
    this.svg.addEventListener("pointermove", (event) => this.point(event.offsetX));
    this.svg.addEventListener("pointerleave", () => this.point(null));
  }

  point(x) {
    this.pointed = x;
    this.draw();
  }

  draw() {
    const points = this.series.all;
    const width = this.svg.clientWidth || 300;
    const height = this.svg.clientHeight || 190;
    this.svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    if (points.length < 2) {
      const words = drawn("text", { x: width / 2, y: height / 2, "text-anchor": "middle", class: "faint" });
      words.append(points.length ? "the curve begins now" : "nothing known yet");
      this.svg.replaceChildren(words);
      return;
    }
    const scale = verticalScale(points.map((point) => point.value));
    const first = points[0].moment;
    const span = Math.max(1, points.at(-1).moment - first);
    const x = (moment) => CHART.left + ((moment - first) / span) * (width - CHART.left - CHART.right);
    const y = (value) => CHART.top + (1 - scale.place(value)) * (height - CHART.top - CHART.bottom);
    const shapes = scale.ticks.flatMap((tick) => [
      drawn("line", { x1: CHART.left, x2: width - CHART.right, y1: y(tick), y2: y(tick), class: "grid" }),
      drawn("text", { x: CHART.left - 7, y: y(tick) + 4, "text-anchor": "end", class: "faint" }, figure(tick)),
    ]);
    shapes.push(
      drawn("text", { x: CHART.left, y: height - 4, class: "faint" }, clock(first)),
      drawn(
        "text",
        { x: width - CHART.right, y: height - 4, "text-anchor": "end", class: "faint" },
        clock(points.at(-1).moment),
      ),
    );
    if (scale.logarithmic) {
      shapes.push(
        drawn(
          "text",
          { x: (CHART.left + width) / 2, y: height - 4, "text-anchor": "middle", class: "faint" },
          "logarithmic",
        ),
      );
    }
    const steps = points.map((point, place) => {
      const joined = place > 0 && points[place - 1].life === point.life;
      return `${joined ? "L" : "M"}${x(point.moment).toFixed(1)} ${y(point.value).toFixed(1)}`;
    });
    shapes.push(drawn("path", { d: steps.join(""), class: "curve" }));
    const shown = this.pointed === null ? points.at(-1) : nearest(points, x, this.pointed);
    if (this.pointed !== null) {
      const at = x(shown.moment);
      shapes.push(
        drawn("line", { x1: at, x2: at, y1: CHART.top, y2: height - CHART.bottom, class: "cross" }),
      );
    }
    shapes.push(drawn("circle", { cx: x(shown.moment), cy: y(shown.value), r: 4, class: "dot" }));
    this.svg.replaceChildren(...shapes);
    const when = this.pointed === null ? "" : ` at ${clock(shown.moment)}`;
    this.read.textContent = `${digits(shown.value)}${when}`;
  }
}

function nearest(points, x, pointed) {
  return points.reduce((best, point) =>
    Math.abs(x(point.moment) - pointed) < Math.abs(x(best.moment) - pointed) ? point : best,
  );
}

// Logarithmic where values span more than a factor of 20.
function verticalScale(values) {
  const least = Math.min(...values);
  const most = Math.max(...values);
  if (least > 0 && most / least > 20) {
    const low = Math.log10(least);
    const high = Math.log10(most);
    const ticks = [];
    for (let power = Math.ceil(low); power <= high; power += 1) ticks.push(10 ** power);
    return {
      logarithmic: true,
      ticks: ticks.slice(-6),
      place: (value) => (Math.log10(value) - low) / (high - low),
    };
  }
  const room = most - least || Math.abs(most) || 1;
  const step = niceStep(room / 3);
  const low = Math.max(Math.floor(least / step) * step, least >= 0 ? 0 : -Infinity);
  const high = Math.max(Math.ceil(most / step) * step, low + step);
  const ticks = [];
  for (let tick = low; tick <= high + step / 2; tick += step) ticks.push(Number(tick.toPrecision(12)));
  return { logarithmic: false, ticks, place: (value) => (value - low) / (high - low) };
}

function niceStep(rough) {
  const power = 10 ** Math.floor(Math.log10(rough));
  return [1, 2, 5, 10].map((factor) => factor * power).find((step) => step >= rough * 0.999);
}
