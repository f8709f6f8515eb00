/** What a lesson asks about one head: its scale, its matrices, its product and its positions. */

import type { Theme } from "../colors";
import { el } from "../dom";
import { softmax } from "../formula";
import { brief, literal } from "../text";
import { svg } from "../explorer/svg";
import { headOf, UNCHANGED } from "./bert";
import type { Engine } from "./engine";
import { small } from "./source";
import { largest, norms, product, rowsOf, scaleOf, table } from "./table";
import type { Data, Read } from "./worker";

/** What is shown: the text as the model reads it, and the chosen head and query. */
export interface Subject {
  base: Read;
  data: Data;
  layer: number;
  head: number;
  query: number;
  /** The scale that the reader has chosen. */
  scale: number;
  theme: Theme;
  engine: Engine;
}
type Lens = { name: string; about: string; draw(subject: Subject): Node[] | Promise<Node[]> };

const MOST = 24; // tokens of a table
const STEPS = 60;
const [LEAST, FACTOR] = [1 / 8, 8]; // ends of the scales

export const LENSES: Lens[] = [
  { name: "Scale", about: "Why divide by √dₖ?", draw: scaling },
  { name: "Three matrices", about: "Why Q, K and V, and not X alone?", draw: matrices },
  { name: "Dot product", about: "Is it a cosine?", draw: cosines },
  { name: "Positions", about: "What do positions add?", draw: positions },
];

/** Return the queries, keys and products of the head. */
function partsOf({ base, data, layer, head }: Subject) {
  const { hidden_size: size, num_attention_heads: heads } = data.config;
  const width = size / heads;
  const { input, ...found } = base.layers[layer];
  const [query, key] = [found.query, found.key].map((all) => headOf(all, head, width, size));
  return { query, key, input, width, size, tokens: base.ids.length, labels: base.axis.labels, products: product(query, key, width) };
}

const quoted = (label: string) => `“${literal(label)}”`;
const said = (...lines: string[]) => lines.map((line, n) => el("p", { class: n ? "" : "finding" }, line));
/** Return the first tokens of a map as a table. */
function map({ base, theme }: Subject, title: string, values: number[], { marked = [], signed = false }: { marked?: number[]; signed?: boolean } = {}): HTMLElement {
  const tokens = base.ids.length;
  const shown = Math.min(MOST, tokens);
  const labels = base.axis.labels.slice(0, shown);
  const cut = rowsOf(values, tokens).slice(0, shown).flatMap((row) => row.slice(0, shown));
  const marks = marked.map((at) => [Math.floor(at / tokens), at % tokens]).filter((place) => Math.max(...place) < shown).map(([i, j]) => i * shown + j);
  const name = shown < tokens ? `${title}, first ${shown} of ${tokens} tokens` : title;
  return table({ rows: labels, columns: labels, values: cut }, { title: name, scale: scaleOf(theme, cut, signed), marked: marks });
}
const pair = (...nodes: Node[]) => el("div", { class: "pair" }, ...nodes);
const weighted = (values: number[], columns: number, factor: number) => rowsOf(values, columns).flatMap((row) => [...softmax(Float64Array.from(row, (value) => value * factor))]);
/** The size of the gradient of a softmax: the Frobenius norm of diag(w) − w wᵀ. */
export const steepness = (row: ArrayLike<number>) => Math.sqrt(Array.from(row).reduce((sum, a, i, all) => sum + all.reduce((total, b, j) => total + ((i === j ? a : 0) - a * b) ** 2, 0), 0));

function scaling(subject: Subject): Node[] {
  const { tokens, width, labels, products } = partsOf(subject);
  const factors = Array.from({ length: STEPS + 1 }, (_, n) => LEAST * (FACTOR / LEAST) ** (n / STEPS));
  const at = (factor: number) => {
    const rows = rowsOf(weighted(products, tokens, factor / Math.sqrt(width)), tokens);
    const mean = (of: (row: number[]) => number) => rows.reduce((sum, row) => sum + of(row), 0) / tokens;
    return { rows, top: mean((row) => Math.max(...row)), slope: mean(steepness) };
  };
  const none = Math.sqrt(width);
  const [usual, unscaled, own] = [at(1), at(none), at(subject.scale)];
  const { query } = subject;
  const bars = el("div", { class: "rows", role: "table", "aria-label": `Weights of ${labels[query]}` });
  labels.slice(0, MOST).forEach((label, j) => {
    const bar = (value: number, kind: string) => {
      const made = el("span", { class: `bar ${kind}` });
      made.style.width = `${100 * value}%`;
      return made;
    };
    bars.append(el("div", { role: "row" }, el("span", { role: "rowheader", class: "label" }, literal(label)),
      el("span", { class: "track", role: "cell" }, ...(subject.scale === 1 ? [] : [bar(usual.rows[query][j], "usual")]), bar(own.rows[query][j], "own")), el("span", { role: "cell", class: "number" }, brief(own.rows[query][j]))));
  });
  const name = `${Number(subject.scale.toPrecision(3))} / √dₖ`;
  return [
    ...said(
      `Without the scale the largest weight of a row is ${brief(unscaled.top)} on average instead of ${brief(usual.top)}, and the gradient of the softmax ${brief(unscaled.slope)} instead of ${brief(usual.slope)}.`,
      `Layer ${subject.layer}, head ${subject.head}, its queries and keys as the model computes them. Move the scale above: the dot follows, and so does the row of ${quoted(labels[query])}.`),
    pair(el("figure", {}, el("figcaption", {}, "Mean over the rows, by the scale"), curves(factors, factors.map(at), [subject.scale, own], none)),
      el("figure", {}, el("figcaption", {}, subject.scale === 1 ? `Weights of ${quoted(labels[query])} at 1/√dₖ` : `Weights of ${quoted(labels[query])}: gray at 1/√dₖ, blue at ${name}`), bars)),
  ];
}

function curves(factors: number[], points: { top: number; slope: number }[], [scale, own]: [number, { top: number; slope: number }], none: number): SVGElement {
  const [w, h, left, low, right] = [420, 210, 30, 30, 114];
  const x = (factor: number) => left + ((w - left - right) * Math.log(factor / LEAST)) / Math.log(FACTOR / LEAST);
  const y = (value: number) => 10 + (h - 10 - low) * (1 - value);
  const line = (of: "top" | "slope") => svg("path", { class: of, d: `M${points.map((point, n) => `${x(factors[n]).toFixed(1)},${y(point[of]).toFixed(1)}`).join("L")}` });
  const text = (x: number, y: number, words: string, anchor = "start", kind = "") => svg("text", { x, y, "text-anchor": anchor, class: kind }, words);
  const last = points[points.length - 1];
  const marks = [[1, "1/√dₖ"], [none, "1 (none)"], [LEAST, "⅛/√dₖ"]] as const;
  return svg("svg", { viewBox: `0 0 ${w} ${h}`, role: "img", "aria-label": "Largest weight and gradient of the softmax by the scale", class: "curves" },
    ...[0, 0.5, 1].flatMap((value) => [svg("path", { class: "rule", d: `M${left},${y(value)}H${w - right}` }), text(left - 6, y(value) + 4, brief(value), "end")]),
    ...marks.flatMap(([factor, label]) => [svg("path", { class: "rule", d: `M${x(factor)},${y(0)}v5` }), text(x(factor), h - 10, label, "middle")]),
    line("top"), line("slope"),
    text(w - right + 8, y(last.top) + 4, "largest weight", "start", "top"), text(w - right + 8, y(last.slope) + 4, "gradient", "start", "slope"),
    ...(["top", "slope"] as const).map((of) => svg("circle", { class: of, cx: x(Math.min(FACTOR, Math.max(LEAST, scale))), cy: y(own[of]), r: 5 })));
}

function matrices(subject: Subject): Node[] {
  const { tokens, width, size, labels, products, input } = partsOf(subject);
  const alike = weighted(product(input, input, size), tokens, 1 / Math.sqrt(size));
  const weights = weighted(products, tokens, 1 / Math.sqrt(width));
  const itself = (values: number[]) => rowsOf(values, tokens).filter((row, i) => largest(row) === i).length;
  const turned = weights.map((weight, at) => weight - weights[(at % tokens) * tokens + Math.floor(at / tokens)]);
  const [i, j] = [Math.floor(largest(turned) / tokens), largest(turned) % tokens];
  return [
    ...said(
      `With X alone, ${itself(alike)} of ${tokens} tokens weigh themselves most, with Q and K ${itself(weights)} of ${tokens}.`,
      `x·y is y·x, so the scores of X Xᵀ are the same both ways. Q and K tell apart who looks: ${quoted(labels[i])} gives ${quoted(labels[j])} ${brief(weights[i * tokens + j])}, and ${quoted(labels[j])} gives ${quoted(labels[i])} ${brief(weights[j * tokens + i])}. V is what is then passed on.`),
    pair(map(subject, `softmax(X Xᵀ / √${size})`, alike), map(subject, `softmax(Q Kᵀ / √${width})`, weights, { marked: [i * tokens + j, j * tokens + i] })),
  ];
}

function cosines(subject: Subject): Node[] {
  const { tokens, width, labels, products, query, key } = partsOf(subject);
  const [q, k] = [norms(query, width), norms(key, width)];
  const cosine = products.map((value, at) => value / (q[Math.floor(at / tokens)] * k[at % tokens]));
  const scores = products.map((value) => value / Math.sqrt(width));
  const best = [scores, cosine].map((values) => rowsOf(values, tokens).map(largest));
  const differing = labels.flatMap((_, i) => (best[0][i] === best[1][i] ? [] : [i]));
  const i = differing.includes(subject.query) ? subject.query : (differing.find((n) => !subject.base.axis.special.includes(n)) ?? differing[0]);
  const of = (title: string, values: number[], marks: number[]) => map(subject, title, values, { signed: true, marked: i === undefined ? [] : [i * tokens + marks[i]] });
  const [a, b] = i === undefined ? [0, 0] : [best[0][i], best[1][i]];
  return [
    ...said(
      i === undefined ? "In this head both choose the same key for every token."
        : `No: in ${differing.length} of ${tokens} rows they choose another key. For ${quoted(labels[i])} the dot product is largest with ${quoted(labels[a])}, and the cosine with ${quoted(labels[b])}.`,
      i === undefined ? "The cosine is the dot product divided by both lengths."
        : `The cosine divides by both lengths, |q| |k|. The key of ${quoted(labels[a])} has length ${k[a].toFixed(1)}, that of ${quoted(labels[b])} ${k[b].toFixed(1)}. At the same angle a longer key gets more weight.`),
    pair(of(`Dot product q·k / √${width}`, scores, best[0]), of("Cosine q·k / |q| |k|", cosine, best[1])),
  ];
}

async function positions(subject: Subject): Promise<Node[]> {
  const { base, engine, data, layer, head } = subject;
  const { hidden_size: size } = data.config;
  const without = { ...UNCHANGED, positions: "none" as const };
  const order = base.ids.map((_, n) => (n === 0 || n === base.ids.length - 1 ? n : base.ids.length - 1 - n));
  const turned = order.map((n) => base.ids[n]);
  const [plain, reversed, plainReversed] = [await engine.read(base.text, without), await engine.read(base.text, UNCHANGED, turned), await engine.read(base.text, without, turned)];
  const moved = (one: Read, other: Read) => order.reduce((most, from, to) => {
    for (let c = 0; c < size; c++) most = Math.max(most, Math.abs(one.output[from * size + c] - other.output[to * size + c]));
    return most;
  }, 0);
  const tokens = base.ids.length;
  const long = norms(base.positions, size);
  const alike = product(base.positions, base.positions, size).map((value, at) => value / (long[Math.floor(at / tokens)] * long[at % tokens]));
  const weights = [...plain.layers[layer].weights.subarray(head * tokens ** 2, (head + 1) * tokens ** 2)];
  const mean = (values: number[]) => values.reduce((sum, value) => sum + value, 0) / values.length;
  return [
    ...said(
      `The order. With the words reversed, the output moves by up to ${moved(base, reversed).toFixed(2)} with positions, and by ${small(moved(plain, plainReversed))} without them.`,
      `The model adds a vector for each place, of length ${mean(long).toFixed(2)} on average, to that of the token, of length ${mean(norms(base.words, size)).toFixed(2)}. Vectors of near places are alike (left). The right map is layer ${layer}, head ${head} without them.`),
    pair(map(subject, "Cosine of the vectors of places", alike, { signed: true }), map(subject, "Weights without positions", weights)),
  ];
}
