/** The plane in which the queries and the keys of a head differ most. */

import { el } from "../dom";
import { measure } from "../pen";
import { percent } from "../text";
import { visible, type Axis, type Medium, type Place, type Plane } from "./data";
import { patchOf } from "./media";
import { fit, nearest, svg } from "./svg";

const [EDGE, SIZE, REACH] = [16, 12, 18]; // pixels: around the points, of letters, to the pointer
const [FLATTEST, TALLEST] = [190, 330]; // pixels of height
const LONGEST = 16; // characters of a label
const [PATCH, LARGE] = [15, 84]; // pixels of a patch, and of one that is pointed at

interface Dot {
  side: "query" | "key";
  word: string;
  /** Its direction, and its place on the screen. */
  x: number;
  y: number;
  left: number;
  top: number;
  node: SVGGElement;
  /** Draw its patch of an image, if it is one. */
  patch: (side: number) => SVGElement | null;
}
interface Box { x: number; y: number; w: number; h: number }

export function planeOf({ queries, keys, explained }: Plane, media: Record<string, Medium> = {}, axes: Axis[] | null = null): HTMLElement {
  const plot = svg("svg", { role: "img" });
  const box = el("div", { class: "plot" }, plot as unknown as HTMLElement);
  const said = el("output", { class: "said" });
  const large = el("div", { class: "large", hidden: true });
  box.append(large);
  // Only directions and relative lengths matter: a score keeps its order if all queries are scaled.
  const unit = (places: Plane["queries"]) => Math.max(1e-9, ...places.map(([, x, y]) => Math.hypot(x, y)));
  const [ofQueries, ofKeys] = [unit(queries), unit(keys)];
  const make = (side: Dot["side"], size: number) => (place: Place): Dot => {
    const [word, x, y] = place;
    const axis = axes?.[side === "query" ? 0 : 1];
    return { side, word: visible(word), x: x / size, y: y / size, left: 0, top: 0, node: svg("g", { class: side }), patch: (wide) => (axis ? patchOf(place, media, axis, wide) : null) };
  };
  const dots = [...queries.map(make("query", ofQueries)), ...keys.map(make("key", ofKeys))];
  const hasPatches = dots.some(({ patch }) => patch(1));
  const sides = ([0, 1] as const).map((axis) => dots.map(({ x, y }) => (axis ? y : x)).concat(0));
  const [[west, east], [south, north]] = sides.map((all) => [Math.min(...all), Math.max(...all)]);
  const label = `${queries.length} queries and ${keys.length} keys as points of a plane`;
  plot.setAttribute("aria-label", `${label}. Queries: ${dots.filter(({ side }) => side === "query").map(({ word }) => word).join(", ")}. Keys: ${dots.filter(({ side }) => side === "key").map(({ word }) => word).join(", ")}.`);

  const aim = svg("path", { class: "aim" });
  let middle = [0, 0];

  function draw(): void {
    const wide = box.clientWidth;
    if (!wide) return;
    const room = wide - 2 * EDGE;
    const high = Math.round(Math.min(TALLEST, Math.max(FLATTEST, (room * (north - south)) / (east - west || 1) + 2 * EDGE)));
    const scale = Math.min(room / (east - west || 1), (high - 2 * EDGE) / (north - south || 1));
    const right = (x: number) => wide / 2 + scale * (x - (west + east) / 2);
    const down = (y: number) => high / 2 - scale * (y - (south + north) / 2);
    plot.setAttribute("width", String(wide));
    plot.setAttribute("height", String(high));
    const boxes: Box[] = [];
    for (const dot of dots) {
      [dot.left, dot.top] = [right(dot.x), down(dot.y)];
      const patch = dot.patch(PATCH);
      if (!patch) {
        dot.node.replaceChildren(svg("circle", { cx: dot.left.toFixed(1), cy: dot.top.toFixed(1), r: 3 }));
        continue;
      }
      const corner = { x: (dot.left - PATCH / 2).toFixed(1), y: (dot.top - PATCH / 2).toFixed(1) };
      for (const [name, value] of Object.entries(corner)) patch.setAttribute(name, value);
      dot.node.replaceChildren(patch, svg("rect", { ...corner, width: PATCH, height: PATCH }));
    }
    // The farthest from the middle get their labels first; one that would cover another is left out.
    for (const dot of hasPatches ? [] : [...dots].sort((a, b) => Math.hypot(b.x, b.y) - Math.hypot(a.x, a.y))) {
      const letters = [...dot.word];
      const text = letters.length > LONGEST ? `${letters.slice(0, LONGEST - 1).join("")}…` : dot.word;
      const w = measure(text, SIZE) + 2;
      const { left, top } = dot;
      const free = [[left + 5, top - 8], [left - 5 - w, top - 8], [left - w / 2, top - 20], [left - w / 2, top + 4]]
        .map(([x, y]): Box => ({ x, y, w, h: 15 }))
        .find((place) => place.x >= 0 && place.x + w <= wide && place.y >= 0 && place.y + 15 <= high && !boxes.some((other) => overlap(place, other))
          && !dots.some((other) => other !== dot && overlap(place, { x: other.left - 2, y: other.top - 2, w: 4, h: 4 })));
      if (!free) continue;
      boxes.push(free);
      dot.node.append(svg("text", { x: (free.x + 1).toFixed(1), y: (free.y + 12).toFixed(1) }, text));
    }
    const [x, y] = (middle = [right(0), down(0)]);
    plot.replaceChildren(svg("path", { class: "cross", d: `M0 ${y}H${wide}M${x} 0V${high}` }), aim, ...dots.map(({ node }) => node));
  }
  /** Fade what a query scores low with, or the queries that score low with a key. */
  function mark(n: number | null): void {
    const one = n === null ? null : dots[n];
    const scores = dots.map(({ side, x, y }) => (one && side !== one.side ? x * one.x + y * one.y : 0));
    const most = Math.max(1e-9, ...scores);
    dots.forEach(({ node, side }, k) => {
      node.style.opacity = !one || k === n ? "" : side === one.side ? "0.12" : String(0.12 + 0.88 * Math.max(0, scores[k] / most));
    });
    aim.setAttribute("d", one ? `M${one.left} ${one.top}L${middle[0]} ${middle[1]}` : "");
    const patch = hasPatches && one ? one.patch(LARGE) : null;
    large.hidden = !patch;
    large.replaceChildren(...(patch ? [patch] : []));
    large.style.left = one && one.left < box.clientWidth / 2 ? "auto" : "6px";
    said.textContent = one ? `${one.side} ${hasPatches ? one.word : `“${one.word}”`}` : "";
  }
  const at = (event: PointerEvent) => {
    const { left, top } = plot.getBoundingClientRect();
    return nearest(dots.map((dot) => [dot.left, dot.top]), event.clientX - left, event.clientY - top, REACH);
  };
  for (const name of ["pointermove", "pointerdown"] as const) plot.addEventListener(name, (event) => mark(at(event)));
  plot.addEventListener("pointerleave", () => mark(null));
  fit(box, draw);
  return el("section", { class: "meet" }, el("h3", {}, "Where queries and keys meet"),
    el("p", { class: "note" }, el("i", { class: "mark query" }), "queries ", el("i", { class: "mark key" }), "keys", said),
    box,
    el("p", { class: "note" }, `A query scores high with keys in its direction. This plane explains ${percent(explained)} of the variance of the scores.`));
}

function overlap(a: Box, b: Box): boolean {
  return a.x < b.x + b.w && b.x < a.x + a.w && a.y < b.y + b.h && b.y < a.y + a.h;
}
