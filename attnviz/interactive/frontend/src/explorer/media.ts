/** Examples in images and sounds: a picture with its patches shaded, an outline with its frames. */

import { el } from "../dom";
import { share, type Axis, type Example, type Medium } from "./data";
import { svg } from "./svg";

const FULL = 1000; // a weight of 1, in an example of an image or a sound
const SHADE = 0.75; // opacity of the key with most weight
const FAINTEST = 0.03; // share of that weight, below which nothing is drawn
const [WIDE, HIGH] = [1000, 40]; // of the outline of a sound, in its own units

/** Return the rows and columns of an axis of patches. */
function sizeOf({ patches }: Axis): [rows: number, columns: number] {
  const known = patches.filter((patch) => patch !== null);
  return [0, 1].map((side) => 1 + Math.max(0, ...known.map((patch) => patch[side]))) as [number, number];
}

/** Return a picture with the query outlined and the keys shaded by weight, and its special tokens. */
export function pictureOf({ row, key, weights }: Example, medium: Medium, queries: Axis, keys: Axis): HTMLElement {
  const [rows, columns] = sizeOf(keys);
  const most = Math.max(1, ...weights.filter((_, n) => keys.patches[n]));
  const plot = svg("svg", { viewBox: `0 0 ${columns} ${rows}`, role: "img", "aria-label": `${medium.name}: from ${nameOf(queries, row)} to ${nameOf(keys, key)}` },
    svg("image", { href: medium.image, width: columns, height: rows, preserveAspectRatio: "none" }));
  weights.forEach((weight, n) => {
    const patch = keys.patches[n];
    if (!patch || weight < FAINTEST * most) return;
    plot.append(svg("rect", { class: "key", x: patch[1], y: patch[0], width: 1, height: 1, opacity: ((SHADE * weight) / most).toFixed(2) }));
  });
  const query = queries.patches[row];
  if (query) plot.append(svg("rect", { class: "query", x: query[1], y: query[0], width: 1, height: 1 }));
  const others = keys.specials.flatMap((name, n) => (name && weights[n] >= 5 ? [{ name, weight: weights[n], isKey: n === key }] : []))
    .sort((a, b) => b.weight - a.weight).slice(0, 2);
  return el("figure", { title: medium.name }, plot as unknown as HTMLElement,
    ...(others.length ? [el("small", {}, ...others.flatMap(({ name, weight, isKey }, n) => [n ? ", " : "", el(isKey ? "b" : "span", {}, `${name} ${share(weight / FULL)}`)]))] : []));
}

/** Return the outline of a sound with the key frames shaded by weight, and the frame of the query. */
export function outlineOf({ row, weights, rest }: Example, medium: Medium, queries: Axis, keys: Axis): HTMLElement {
  const { seconds, outline } = medium;
  const plot = svg("svg", { viewBox: `0 0 ${WIDE} ${HIGH}`, preserveAspectRatio: "none", role: "img", "aria-label": `${medium.name}, ${seconds.toFixed(2)} seconds` });
  const right = (second: number) => (WIDE * Math.min(second, seconds)) / seconds;
  const most = Math.max(1, ...weights);
  weights.forEach((weight, n) => {
    if (weight < FAINTEST * most) return;
    const [from, to] = [right(n * keys.step), right((n + 1) * keys.step)];
    plot.append(svg("rect", { class: "key", x: from.toFixed(1), y: 0, width: Math.max(0.5, to - from).toFixed(1), height: HIGH, opacity: ((SHADE * weight) / most).toFixed(2) }));
  });
  const loudest = Math.max(1e-9, ...outline.flatMap(([low, high]) => [-low, high]));
  const down = (sample: number) => ((HIGH / 2) * (1 - (0.92 * sample) / loudest)).toFixed(1);
  const across = (n: number) => ((WIDE * (n + 0.5)) / outline.length).toFixed(1);
  const edge = (side: 0 | 1) => outline.map((sample, n) => `${across(n)} ${down(sample[side])}`);
  plot.append(svg("path", { class: "wave", d: `M${[...edge(1), ...edge(0).reverse()].join("L")}Z` }));
  if (queries.kind === "frames" && row * queries.step < seconds) {
    const x = right((row + 0.5) * queries.step).toFixed(1);
    plot.append(svg("path", { class: "query", d: `M${x} 0V${HIGH}` }));
  }
  const after = rest ?? 0;
  return el("div", { class: "sound", title: medium.name }, plot as unknown as HTMLElement,
    el("small", {}, el("span", {}, "0"), ...(after >= 0.005 ? [el("span", {}, `after the sound ${share(after)}`)] : []), el("span", {}, `${seconds.toFixed(1)} s`)));
}

/** Return what a position is called. */
export function nameOf({ kind, patches, specials, step }: Axis, n: number): string {
  if (kind === "patches") return specials[n] || `row ${patches[n]?.[0]}, column ${patches[n]?.[1]}`;
  return kind === "frames" ? `${(n * step).toFixed(2)} s` : `token ${n}`;
}
