/** What the pictures of a word share: layers across, paths through them, and their ends, which lead into words. */

import { DARK, LIGHT } from "./colors";
import { el } from "./dom";
import { svg } from "./explorer/svg";
import { measure } from "./pen";
import { brief } from "./text";

export type Point = [x: number, y: number];

/** The width of a picture, and the sizes that follow from it. */
export interface Sizes { width: number; wide: boolean; text: number; small: number }
const WIDE = 620; // pixels
const WIDEST = 1000;
export function sizes(box: HTMLElement): Sizes {
  const width = Math.min(box.clientWidth, WIDEST);
  return width >= WIDE ? { width, wide: true, text: 13, small: 12 } : { width, wide: false, text: 11.5, small: 11 };
}

/** Set the colors of the sides, for both themes. */
export function paint(node: HTMLElement): void {
  const set = (name: string, light: string, dark: string) => node.style.setProperty(name, `light-dark(${light}, ${dark})`);
  LIGHT.sides.forEach((_, n) => {
    set(`--side-${n}`, LIGHT.sides[n], DARK.sides[n]);
    set(`--text-${n}`, LIGHT.sideText[n], DARK.sideText[n]);
    set(`--pale-${n}`, LIGHT.sidePale[n], DARK.sidePale[n]);
  });
  set("--claim", LIGHT.claim, DARK.claim);
  set("--gray", LIGHT.gray, DARK.gray);
  set("--masked", ...([LIGHT, DARK].map(({ masked }) => `rgb(${masked.slice(0, 3).join(" ")})`) as [string, string]));
}

/** Format a part of a whole, as the figures do: .34, −.05, 0. */
export function fraction(value: number): string {
  const written = brief(value);
  return /^−?\.00$/.test(written) ? "0" : written;
}

/** Return the middles of labels in a range: as near as possible to what is wanted, in the same order and without overlap. */
export function apart(wanted: number[], size: number, low: number, high: number): number[] {
  const order = wanted.map((_, n) => n).sort((a, b) => wanted[a] - wanted[b]);
  const pools: { sum: number; count: number }[] = []; // isotonic regression: neighbors that overlap move together
  const mean = ({ sum, count }: (typeof pools)[number]) => sum / count;
  order.forEach((n, k) => {
    pools.push({ sum: wanted[n] - size * k, count: 1 });
    while (pools.length > 1 && mean(pools[pools.length - 2]) > mean(pools[pools.length - 1])) {
      const { sum, count } = pools.pop()!;
      pools[pools.length - 1].sum += sum;
      pools[pools.length - 1].count += count;
    }
  });
  const lowest = low + size / 2;
  const highest = Math.max(lowest, high - size * (order.length - 1) - size / 2);
  const middles = pools.flatMap((pool) => Array.from({ length: pool.count }, () => Math.min(highest, Math.max(lowest, mean(pool)))));
  const places: number[] = [];
  order.forEach((n, k) => (places[n] = middles[k] + size * k));
  return places;
}

export function polyline(points: Point[]): string {
  return points.map(([x, y], n) => `${n ? "L" : "M"}${x.toFixed(1)},${y.toFixed(1)}`).join("");
}
/** A curve with horizontal ends. */
export function lead([a, b]: Point, [c, d]: Point): string {
  const middle = ((a + c) / 2).toFixed(1);
  return `M${a.toFixed(1)},${b.toFixed(1)}C${middle},${b.toFixed(1)} ${middle},${d.toFixed(1)} ${c.toFixed(1)},${d.toFixed(1)}`;
}
export function line(name: string, [x1, y1]: Point, [x2, y2]: Point): SVGElement {
  return svg("line", { class: name, x1, y1, x2, y2 });
}
export function area(name: string, x: number, y: number, width: number, height: number): SVGElement {
  return svg("rect", { class: name, x, y, width: Math.max(0, width), height: Math.max(0, height) });
}
/** A text, centered on y. */
export function word(text: string, x: number, y: number, size: number, name = "", anchor: "start" | "middle" | "end" = "start"): SVGElement {
  return svg("text", { class: name, x, y: y + 0.36 * size, "font-size": size, "text-anchor": anchor }, text);
}

/** Label as many layers as fit on the axis, and always `claimed`. `below` holds further lines of each label. */
export function layers(xs: number[], top: number, size: number, claimed: number | null = null, below: string[][] = []): SVGElement[] {
  const last = xs.length - 1;
  const lines = (n: number) => [stateName(n, last, false), ...below.map((row) => row[n])];
  const half = (n: number) => Math.max(...lines(n).map((text) => measure(text, size, n === claimed))) / 2 + 2;
  const fits = (n: number, other: number) => n === other || Math.abs(xs[n] - xs[other]) >= half(n) + half(other);
  const isFree = (n: number) => claimed === null || fits(n, claimed);
  let placed: number[] = [];
  for (const step of [1, 2, 5, 10, 20, 50, last].slice(last > 12 ? 2 : 0)) {
    const between = [...xs.keys()].filter((n) => n % last && n % step === 0 && isFree(n) && (step === 1 || fits(n, last)));
    placed = [...new Set([...[0, last].filter(isFree), ...(claimed === null ? [] : [claimed]), ...between])].sort((a, b) => a - b);
    if (placed.every((n, k) => !k || fits(n, placed[k - 1]))) break;
  }
  return [
    line("axis", [xs[0], top], [xs[last], top]),
    ...placed.flatMap((n) => [
      line("axis", [xs[n], top], [xs[n], top + 3]),
      ...lines(n).map((text, row) => word(text, xs[n], top + 12 + 1.3 * size * row, size, n === claimed ? "claim" : row ? "muted" : "", "middle")),
    ]),
  ];
}
export function stateName(n: number, last: number, isLong = true): string {
  return n === 0 ? "static" : n === last ? "output" : isLong ? `layer ${n}` : String(n);
}

/** Lines that say what is pointed at. Their height stays, so that nothing moves below them. */
export function readout(plain: string): { node: HTMLElement; fit(width: number, texts: string[]): void; say(first?: string, then?: string): void } {
  const node = el("output", { class: "read" }, plain);
  return {
    node,
    fit: (width, texts) => {
      const longest = Math.max(...[plain, ...texts].map((text) => measure(text, 13.5)));
      node.style.setProperty("--lines", String(Math.min(3, Math.ceil((1.05 * longest) / width))));
    },
    say: (first, then = "") => node.replaceChildren(...(first === undefined ? [plain] : [el("b", {}, first), " ", el("bdi", {}, then)])),
  };
}

/** Tell when a pointer is over a node and when it leaves; what a finger has touched stays chosen. */
export function pointAt(node: Element, choose: (event: PointerEvent) => void, leave: () => void): void {
  for (const event of ["pointerenter", "pointerdown", "pointermove"]) node.addEventListener(event, (event) => choose(event as PointerEvent));
  node.addEventListener("pointerleave", (event) => (event as PointerEvent).pointerType !== "touch" && leave());
}
/** Move between the nodes with the arrow keys; Tab stops at one of them. Calls `choose` with the node that has the focus, or null. */
export function walk(nodes: (HTMLElement | SVGElement)[], choose: (at: number | null) => void, across: (step: number) => void = () => undefined): void {
  nodes.forEach((node, n) => {
    node.setAttribute("tabindex", n ? "-1" : "0");
    node.addEventListener("focus", () => {
      nodes.forEach((other) => other.setAttribute("tabindex", other === node ? "0" : "-1"));
      choose(n);
    });
    node.addEventListener("blur", (event) => nodes.includes((event as FocusEvent).relatedTarget as typeof node) || choose(null));
    node.addEventListener("keydown", (event) => {
      const { key } = event as KeyboardEvent;
      const next = { ArrowDown: n + 1, ArrowUp: n - 1, Home: 0, End: nodes.length - 1 }[key];
      const step = { ArrowLeft: -1, ArrowRight: 1 }[key];
      if (next === undefined && step === undefined) return;
      event.preventDefault();
      if (step !== undefined) across(step);
      else nodes[Math.min(nodes.length - 1, Math.max(0, next!))].focus({ preventScroll: false });
    });
  });
}
