// The error over steps, or over runs, with its interval.
import { svg } from "./dom.js";

const HEIGHT = 230,
  LEFT = 44,
  RIGHT = 16,
  TOP = 14,
  BOTTOM = 34;

function ticks(top) {
  const step = [1, 2, 5, 10, 20, 25].find((each) => top / each <= 5) ?? 25;
  return Array.from({ length: Math.floor(top / step) + 1 }, (_, i) => i * step);
}

// points: [{x, error, low, high}]; `name(x)` is the text below a point.
export function chart(points, { label, unit, name = String }) {
  const width = Math.max(320, Math.min(640, document.documentElement.clientWidth - 60)); // letters keep their size on a phone
  const most = Math.min(100, Math.max(5, ...points.map((point) => point.high ?? point.error)) * 1.08);
  const xs = points.map((point) => point.x);
  const [first, last] = [Math.min(0, ...xs), Math.max(...xs)];
  const x = (value) => LEFT + ((width - LEFT - RIGHT) * (value - first)) / (last - first || 1);
  const y = (value) => HEIGHT - BOTTOM - ((HEIGHT - TOP - BOTTOM) * value) / most;
  const at = (point, value) => `${x(point.x).toFixed(1)},${y(value).toFixed(1)}`;
  const drawn = svg("svg", { class: "chart", viewBox: `0 0 ${width} ${HEIGHT}`, role: "img", "aria-label": label });
  for (const tick of ticks(most)) {
    drawn.append(
      svg("line", { class: "rule", x1: LEFT, x2: width - RIGHT, y1: y(tick), y2: y(tick) }),
      svg("text", { x: LEFT - 8, y: y(tick) + 4, "text-anchor": "end" }, `${tick} %`),
    );
  }
  const banded = points.filter((point) => point.low !== undefined && point.low !== null);
  if (banded.length > 1) {
    const outline = [
      ...banded.map((point) => at(point, point.high)),
      ...[...banded].reverse().map((point) => at(point, point.low)),
    ];
    drawn.append(svg("polygon", { class: "area", points: outline.join(" ") }));
  }
  drawn.append(svg("polyline", { class: "line", points: points.map((point) => at(point, point.error)).join(" ") }));
  for (const point of points.length < 30 ? points : points.slice(-1))
    drawn.append(svg("circle", { class: "point", cx: x(point.x), cy: y(point.error), r: 3.5 }));
  if (banded.length === 1)
    drawn.append(
      svg("line", {
        class: "whisker",
        x1: x(banded[0].x),
        x2: x(banded[0].x),
        y1: y(banded[0].low),
        y2: y(banded[0].high),
      }),
    );
  const shown = points.length <= 6 ? points : [points[0], points[Math.floor(points.length / 2)], points.at(-1)];
  for (const point of shown)
    drawn.append(
      svg(
        "text",
        { x: x(point.x), y: HEIGHT - 12, "text-anchor": point === shown.at(-1) && shown.length > 1 ? "end" : "middle" },
        name(point.x),
      ),
    );
  if (unit) drawn.append(svg("text", { x: LEFT, y: HEIGHT - 12, "text-anchor": "end" }, unit));
  return drawn;
}
