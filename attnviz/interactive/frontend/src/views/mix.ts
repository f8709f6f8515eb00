/** What follows from the weights of one query: weight × v of each key, their sum, all heads side by side, the output. */

import type { Scale } from "../colors";
import type { Pen } from "../pen";
import type { Mix } from "../reader";
import { inside, paint, quantile, type Box, type Line, type Setting, type Spot } from "../scene";
import { number } from "../text";

export const ROW = 20;

interface Place {
  /** Where the strips of the keys begin, and how wide each is. */
  x: number;
  strip: number;
  /** Where the first key and the rows after the last key begin. */
  first: number;
  after: number;
  labels: number;
}
export interface After {
  height: number;
  draw(pen: Pen, at: Spot | null): void;
  hit(x: number, y: number): Spot | null;
  say(part: string | undefined, key: number | undefined, dimension: number | undefined): Line[] | null;
  place(part: string | undefined, key: number | undefined, dimension: number | undefined, row: number): [number, number] | null;
}

export function afterWeights(
  { look, theme, width }: Setting, { value, d, heads, output, errors }: Mix, keys: number[], weights: Float64Array, numbers: number[], head: number,
  { x, strip, first, after, labels }: Place,
): After {
  const scale = (values: Float32Array): Scale => ({ map: theme.signed, low: -Math.max(quantile(values, 1), 1e-9), high: Math.max(quantile(values, 1), 1e-9), log: false, label: "" });
  const part = Float32Array.from({ length: keys.length * d }, (_, n) => weights[keys[Math.floor(n / d)]] * value[keys[Math.floor(n / d)] * d + (n % d)]);
  const n = numbers.indexOf(head);
  const sum = heads.slice(n * d, (n + 1) * d);
  const left = labels + 14;
  const wide = width - left;
  const parts = scale(Float32Array.from([...part, ...sum]));
  const bands: { part: string; name: string; values: Float32Array; box: Box }[] = [
    { part: "sum", name: "sum: αV", values: sum, box: { x, y: after + 6, w: strip, h: ROW - 4 } },
    { part: "heads", name: "all heads", values: heads, box: { x: left, y: after + ROW + 36, w: wide, h: ROW - 4 } },
    ...(output ? [{ part: "output", name: "output", values: output, box: { x: left, y: after + 2 * ROW + 66, w: wide, h: ROW - 4 } }] : []),
  ];
  const pictures = bands.map(({ part, values }) => paint(values, 1, values.length, part === "sum" ? parts : scale(values)));
  const cells = paint(part, keys.length, d, parts);
  const muted = { size: 11, fill: theme.muted };
  const rows: Box = { x, y: first, w: strip, h: keys.length * ROW };

  function draw(pen: Pen, at: Spot | null): void {
    pen.text("weight × v", x + strip, first - 11, { ...muted, align: "right" });
    keys.forEach((_, row) => pen.image(cells, [0, row, d, 1], x, first + row * ROW + 1, strip, ROW - 5));
    bands.forEach(({ name, values, box }, at) => {
      pen.image(pictures[at], [0, 0, values.length, 1], box.x, box.y, box.w, box.h);
      pen.text(name, at ? labels : x - 8, box.y + box.h / 2, { size: 12, fill: theme.ink, align: "right" });
    });
    const [sums, side, out] = bands.map(({ box }) => box);
    const each = side.w / numbers.length;
    const from = side.x + n * each;
    for (const [a, b] of [[sums.x, from], [sums.x + strip, from + each]]) pen.line(a, sums.y + sums.h + 1, b, side.y - 1, theme.faint);
    numbers.forEach((number, at) => {
      const own = number === head;
      if (each > 16) pen.text(String(number), side.x + (at + 0.5) * each, side.y + side.h + 8, { ...muted, align: "center", bold: own, fill: own ? theme.ink : theme.muted });
      if (at) pen.line(side.x + at * each, side.y, side.x + at * each, side.y + side.h, theme.ground, 1.5);
    });
    pen.frame(from, side.y - 1, each, side.h + 2, theme.ink, 1.5);
    if (out) pen.text(`the heads through W_O: ${output!.length} numbers`, left, out.y - 9, muted);
    const pointed = bands.find(({ part }) => part === at?.part);
    if (!pointed || at?.dimension === undefined) return;
    const w = pointed.box.w / pointed.values.length;
    pen.frame(pointed.box.x + at.dimension * w, pointed.box.y - 1, w, pointed.box.h + 2, theme.ink);
  }
  const last = bands[bands.length - 1].box;
  return {
    height: last.y + last.h + (output ? 8 : 22),
    draw,
    hit(px, py) {
      if (inside(rows, px, py)) return { part: "weighted", column: keys[Math.floor((py - first) / ROW)], dimension: Math.floor(((px - x) / strip) * d) };
      const band = bands.find(({ box }) => inside(box, px, py));
      return band ? { part: band.part, dimension: Math.floor(((px - band.box.x) / band.box.w) * band.values.length) } : null;
    },
    say(name, key, c) {
      if (c === undefined) return null;
      if (name === "weighted" && key !== undefined) {
        const entry = value[key * d + c];
        return [[{ token: look.columns.units.labels[key] }, `, dimension ${c}`], [`weight ${number(weights[key], 5e-4)} × v ${number(entry, errors[0])} = ${number(weights[key] * entry, errors[0])}`]];
      }
      const band = bands.find(({ part }) => part === name);
      if (!band) return null;
      const which = name === "heads" ? `head ${numbers[Math.floor(c / d)]}, dimension ${c % d}` : `${band.name}, dimension ${c}`;
      return [[which], [number(band.values[c], errors[Number(name === "output")])]];
    },
    place(name, _, c = 0, row) {
      if (name === "weighted" && row >= 0) return [x + ((c + 0.5) / d) * strip, first + (row + 0.5) * ROW];
      const band = bands.find(({ part }) => part === name);
      return band ? [band.box.x + ((c + 0.5) / band.values.length) * band.box.w, band.box.y + band.box.h / 2] : null;
    },
  };
}
