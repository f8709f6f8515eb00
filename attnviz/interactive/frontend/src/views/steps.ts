/** How an output is computed, for one query: q, k, their product, the score, the softmax and what follows. */

import { afterWeights, ROW } from "./mix";
import { color, type Scale } from "../colors";
import { isHidden, scores } from "../formula";
import { measure, wrap, type Pen } from "../pen";
import type { Rule } from "../data";
import type { Look } from "../reader";
import type { State } from "../state";
import { clip, literal, number } from "../text";
import { clamp, heading, headroom, inside, paint, quantile, type Line, type Scene, type Setting, type Spot } from "../scene";

const MOST_KEYS = 64;

export function steps(setting: Setting): Scene | null {
  const { look, theme, width, found } = setting;
  const { state, rows, columns } = look;
  const head = look.layers[0].heads[0];
  const vectors = look.vectors(state.layer, head);
  if (!vectors) return null;
  const { key, d, rule, error } = vectors;
  const i = rows.from; // pieces: each unit is one position
  const q = vectors.query.subarray(i * d, (i + 1) * d);
  const all = scores(q, key, rule, i);
  const weights = vectors.weights(i);
  const keys = chosenKeys(weights, columns.from, columns.to);
  const k = keys.map((j) => key.subarray(j * d, (j + 1) * d));
  const product = k.map((vector) => q.map((value, c) => value * vector[c]));
  const top = Math.max(quantile(q, 1), quantile(key, 0.998));
  const signed = (high: number, label: string): Scale => ({ map: theme.signed, low: -high, high, log: false, label });
  const values = signed(top, "entries of q and k");
  const products = signed(Math.max(...product.map((each) => quantile(each, 1)), 1e-9), "q × k");
  const title = `Layer ${state.layer}, head ${head}: how “${literal(rows.units.labels[i])}” ${look.mix(state.layer, head, i) ? "reads" : "weighs"} the keys`;
  const upper = headroom(setting, title, values);
  const said = wrap(formula(rule, d), width, 12);

  const narrow = width < 620;
  const labels = narrow ? 62 : 110;
  const numbers = narrow ? 46 : 62;
  const bars = narrow ? 40 : 120;
  const gap = narrow ? 6 : 14;
  const mix = look.mix(state.layer, head, i);
  const strips = mix ? 3 : 2;
  const strip = Math.max(narrow ? 40 : 48, (width - labels - 2 * numbers - bars - (strips + 2) * gap) / strips);
  const score = labels + 2 * strip + 3 * gap + numbers;
  const bar = score + gap;
  const x = [labels + gap, labels + strip + 2 * gap, bar + bars + numbers];
  const y = upper + said.length * 17 + 26;
  const first = y + ROW + 26;
  const few = keys.length < columns.to - columns.from ? 24 : 6;
  const after = first + keys.length * ROW + few; // where the rows begin that follow from the weights
  const mixed = mix && afterWeights(setting, mix, keys, weights, layerHeads(look), head, { x: x[2], strip, first, after, labels });
  const height = mixed ? mixed.height : after;
  const pictures = {
    query: paint(q, 1, d, values),
    key: paint(join(k, d), keys.length, d, values),
    product: paint(join(product, d), keys.length, d, products),
  };
  const label = (j: number) => columns.units.labels[j];

  function draw(pen: Pen, at: Spot | null): void {
    heading(pen, setting, title, values);
    said.forEach((line, n) => pen.text(line, 0, upper + 8 + n * 17, { size: 12, fill: theme.ink }));
    const muted = { size: 11, fill: theme.muted };
    pen.text("q", x[0], y - 9, muted);
    pen.image(pictures.query, [0, 0, d, 1], x[0], y, strip, ROW - 4);
    write(pen, rows.units.labels[i], y + ROW / 2 - 2, false);
    pen.text("k", x[0], first - 11, muted);
    pen.text("q × k", x[1], first - 11, muted);
    pen.text("score", score, first - 11, { ...muted, align: "right" });
    pen.text("weight", bar, first - 11, muted);
    keys.forEach((j, n) => drawKey(pen, j, n, at?.column === j));
    mixed?.draw(pen, at);
    if (at?.dimension !== undefined) drawDimension(pen, at.dimension);
    if (keys.length < columns.to - columns.from) {
      pen.text(`the ${keys.length} of ${columns.to - columns.from} keys with the largest weights`, 0, after - 12, muted);
    }
  }
  function drawKey(pen: Pen, j: number, n: number, pointed: boolean): void {
    const at = first + n * ROW;
    if (pointed) pen.rect(0, at - 1, width, ROW - 1, theme.ink, 0.07);
    write(pen, label(j), at + ROW / 2 - 2, pointed);
    pen.image(pictures.key, [0, n, d, 1], x[0], at + 1, strip, ROW - 5);
    pen.image(pictures.product, [0, n, d, 1], x[1], at + 1, strip, ROW - 5);
    const hidden = all[j] === -Infinity || (rule.added && weights[j] === 0);
    pen.text(hidden ? "masked" : fixed(all[j]), score, at + ROW / 2 - 2, { size: 11, fill: hidden ? theme.muted : theme.ink, align: "right" });
    const wide = bars * weights[j];
    pen.rect(bar, at + 2, Math.max(wide, 0.5), ROW - 7, color({ map: theme.weights, low: 0, high: 1, log: false, label: "" }, 0.35 + 0.45 * weights[j]));
    pen.text(weights[j] === 0 ? "0" : number(weights[j], Math.max(1e-4, error)), bar + wide + 4, at + ROW / 2 - 2, { size: 11, fill: theme.ink, bold: pointed });
  }
  function write(pen: Pen, token: string, at: number, pointed: boolean): void {
    const shown = clip(literal(token), labels - 4, (some) => measure(some, 12, pointed));
    pen.text(shown, labels, at, { size: 12, fill: theme.ink, align: "right", bold: pointed || found(token) });
  }
  function drawDimension(pen: Pen, c: number): void {
    const w = strip / d;
    pen.frame(x[0] + c * w, y - 1, w, ROW - 2, theme.ink);
    for (const left of x) pen.frame(left + c * w, first, w, keys.length * ROW - 3, theme.ink);
  }
  function hit(px: number, py: number): Spot | null {
    const isQuery = inside({ x: 0, y, w: x[0] + strip, h: ROW }, px, py);
    const n = Math.floor((py - first) / ROW);
    const beyond = mixed?.hit(px, py);
    if (beyond) return beyond.row === undefined ? { ...beyond, row: i } : beyond;
    if (!isQuery && (n < 0 || n >= keys.length || px > width)) return null;
    const column = isQuery ? undefined : keys[n];
    for (const [part, left] of [[isQuery ? "query" : "key", x[0]], ["product", x[1]]] as const) {
      if (px < left || px >= left + strip || (isQuery && part === "product")) continue;
      return { part, row: i, column, dimension: Math.floor(((px - left) / strip) * d) };
    }
    return { part: "score", row: i, column };
  }
  function say({ part, column, dimension: c }: Spot): Line[] {
    const told = mixed?.say(part, column, c);
    if (told) return told;
    const query = { token: literal(rows.units.labels[i]) };
    if (column === undefined) return [["q of ", query], ...(c === undefined ? [] : [[`dimension ${c}: ${fixed(q[c])}`]])];
    const names: Line = [query, " → ", { token: literal(label(column)) }];
    const entry = key[column * d + (c ?? 0)];
    if (c !== undefined) return [names, [`dimension ${c}: q ${fixed(q[c])} × k ${fixed(entry)} = ${fixed(q[c] * entry)}`]];
    const why = isHidden(rule, i, column) ? "masked: hidden from this query" : `score ${fixed(all[column])}, weight ${number(weights[column], error)}`;
    return [names, [why]];
  }
  function press({ column }: Spot): Partial<State> {
    return column === undefined ? {} : { key: columns.units.positions[column][0], query: rows.units.positions[i][0], lock: true };
  }
  return {
    height, draw, hit, say, press,
    label: `${title}: of the token ${literal(rows.units.labels[i])}, ${keys.length} keys`,
    place: ({ part, column, dimension }) => {
      const beyond = mixed?.place(part, column, dimension, keys.indexOf(column ?? -1));
      if (beyond) return beyond;
      const across = dimension === undefined ? score - 10 : x[part === "product" ? 1 : 0] + ((dimension + 0.5) / d) * strip;
      if (column === undefined) return [across, y + ROW / 2 - 2];
      return keys.includes(column) ? [across, first + keys.indexOf(column) * ROW + ROW / 2 - 2] : null;
    },
    move: (at, right, down) => {
      const n = clamp(keys.indexOf(at?.column ?? -1) + (at?.column === undefined ? 1 : down), 0, keys.length - 1);
      const c = at?.dimension === undefined ? (right ? 0 : undefined) : clamp(at.dimension + right, 0, d - 1);
      return { part: c === undefined ? "score" : "product", row: i, column: keys[n], dimension: c };
    },
  };
}

function layerHeads({ state, stack }: Look): number[] {
  return stack.layers.find(({ layer }) => layer === state.layer)!.heads;
}

/** Return the formula with the numbers of this head. */
function formula({ scale, softCap, sink, before, after, added }: Rule, d: number): string {
  const root = Math.abs(scale * Math.sqrt(d) - 1) < 1e-4;
  const factor = root ? `/ √${d}` : `× ${Number(scale.toPrecision(4))}`;
  const scored = softCap === null ? `q·k ${factor}` : `${softCap} tanh(q·k ${factor} / ${softCap})`;
  const said = [
    sink === null ? "" : "a sink absorbs part of the weight",
    after === 0 ? "causal" : "",
    before === null ? "" : `no key more than ${before} back`,
  ].filter(Boolean);
  const more = said.length ? ` (${said.join(", ")})` : "";
  return `weight = softmax(${scored}${added ? " + position bias" : ""})${more}; word pieces are not merged`;
}

/** Return the keys to show: all, or those with the largest weights. */
function chosenKeys(weights: Float64Array, from: number, to: number): number[] {
  const keys = Array.from({ length: to - from }, (_, n) => from + n);
  if (keys.length <= MOST_KEYS) return keys;
  return keys.sort((a, b) => weights[b] - weights[a]).slice(0, MOST_KEYS).sort((a, b) => a - b);
}

function join(vectors: Float32Array[], d: number): Float32Array {
  const joined = new Float32Array(vectors.length * d);
  vectors.forEach((vector, n) => joined.set(vector, n * d));
  return joined;
}

function fixed(value: number): string {
  const size = Math.abs(value);
  return (value < 0 ? "−" : "") + (size < 1e-3 && size > 0 ? size.toExponential(1) : size.toFixed(size < 10 ? 3 : 2));
}
