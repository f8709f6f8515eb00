/** A text of several sentences: written out with its strongest links, above how its sentences share their weight. */

import { color, type Theme } from "./colors";
import { matrix, type Matrix } from "./matrix";
import type { Side, Table } from "./maps";
import { measure, type Pen } from "./pen";
import type { Look } from "./reader";
import type { Box, Line } from "./scene";
import { clip, literal, share, weight as written } from "./text";

interface Link {
  query: number;
  key: number;
  weight: number;
}
interface Word {
  text: string;
  x: number;
  y: number;
  w: number;
}
export interface Paragraph {
  /** The lower edge. */
  end: number;
  /** `spot`: the word that is pointed at, with all its links; `marked`: whether the claim is; `cell`: the sentences that are pointed at. */
  draw(pen: Pen, spot: { row: number | null; column: number | null }, marked: boolean, cell?: [number, number]): void;
  /** The word at a place, by its number among the visible ones. */
  word(x: number, y: number): number | null;
  center(word: number): [number, number];
  /** The cell of two sentences at a place, its middle, and what it says. */
  cell(x: number, y: number): [number, number] | null;
  middle(cell: [number, number]): [number, number];
  say(cell: [number, number]): Line[];
}

export const MOST_WORDS = 40; // under arcs
const [SIZE, STEP, INDENT, BLANK] = [13, 28, 26, 5.5]; // pixels of letters, lines, and around them
const [MOST_LINKS, FAINTEST, SHORTEST] = [4, 0.12, 3]; // drawn while no word is pointed at
const [ABOVE, BELOW] = [10, 8]; // pixels of a box around the middle of its line

/** Whether a map shows a text that attends to itself, word by word. */
export function isWholeText({ stack, signed, cell, rows, columns }: Look): boolean {
  return !signed && cell === 1 && stack.queries === stack.keys && rows.from === columns.from && rows.to === columns.to;
}
/** Return where the sentences begin of a text that is written out beside its map. */
export function startsOf(look: Look): number[] | undefined {
  const isLong = look.columns.to - look.columns.from > MOST_WORDS;
  return isLong && isWholeText(look) ? look.result.axes[look.stack.queries].sentences : undefined;
}
function around({ x, y, w }: Word): Box {
  return { x: x - 2.5, y: y - ABOVE, w: w + 5, h: ABOVE + BELOW };
}
/** Return the boxes of the lines of a wire. */
function edges(way: [number, number][]): Box[] {
  return way.slice(1).map(([x, y], n) => ({ x: Math.min(x, way[n][0]) - 2, y: Math.min(y, way[n][1]) - 2, w: Math.abs(x - way[n][0]) + 4, h: Math.abs(y - way[n][1]) + 4 }));
}
function overlaps(a: Box, b: Box): boolean {
  return a.x < b.x + b.w && b.x < a.x + a.w && a.y < b.y + b.h && b.y < a.y + a.h;
}

/** Lay out the visible words of a side. starts: the first positions of sentences. claim: the words that the title is about. */
export function paragraph(theme: Theme, side: Side, starts: number[], table: Table, place: { y: number; w: number }, claim: [number, number] | null): Paragraph {
  const { units, from, to } = side;
  const n = to - from;
  const numbers = Array.from({ length: n }, (_, m) => (units.special[from + m] ? -1 : starts.filter((start) => start <= units.positions[from + m][0]).length - 1));
  const words: Word[] = [];
  let [x, y] = [0, place.y - STEP / 2 + 6];
  for (let m = 0, before = -1; m < n; m++) {
    const label = literal(units.labels[from + m]);
    const text = clip(label, place.w - INDENT, (some) => measure(some, SIZE));
    const w = measure(text, SIZE);
    const isNew = numbers[m] >= 0 && numbers[m] !== before;
    if (numbers[m] >= 0) before = numbers[m];
    const isGlued = m > 0 && (!/[\p{L}\p{N}]/u.test(label) || /^[-–/(\[“‘]$/.test(words[m - 1].text));
    if (isNew || (x + w > place.w && !isGlued)) [x, y] = [INDENT, y + STEP];
    else if (isGlued) x -= BLANK;
    words.push({ text, x, y, w });
    if (numbers[m] >= 0) x += w + BLANK;
  }
  const links = strongest();
  const count = starts.length;
  const [shares, masked] = between();
  const most = shares.reduce((most, one, at) => (only(at) ? most : Math.max(most, one)), 0);
  const named = (s: number) => `${s + 1} ${words.filter((_, m) => numbers[m] === s).slice(0, 4).map(({ text }) => text).join(" ")}`;
  const first = units.generated === null ? null : units.generated - from;
  const part = first === null || numbers[first] === undefined ? null : numbers[first];
  const map: Matrix = matrix({
    values: shares, marks: { masked, uninformative: Uint8Array.from(shares, (_, at) => Number(only(at))) }, theme, threshold: 0,
    scale: { map: theme.weights, masked: theme.masked, low: 0, high: Math.max(most, 1e-9), log: false, label: "", neutral: { map: theme.neutral, low: 0, high: 1, log: false, label: "" } },
    rows: Array.from({ length: count }, (_, s) => named(s)), columns: Array.from({ length: count }, (_, s) => String(s + 1)),
    x: 0, y: y + STEP + 30, width: place.w, largest: 44, generated: { row: part, column: part },
    breaks: part === null ? [] : [part], splits: part === null ? [] : [part], xName: "sentence (attended to)", yName: "sentence (attending)",
  });

  function only(at: number): boolean {
    const row = Math.floor(at / count);
    return masked.slice(row * count, (row + 1) * count).filter((hidden) => !hidden).length === 1;
  }
  function strongest(): Link[] {
    const all = Array.from(table.values, (weight, at) => ({ query: Math.floor(at / n), key: at % n, weight }))
      .filter(({ query, key, weight }, at) => weight >= FAINTEST && !table.uninformative[at] && numbers[query] >= 0 && numbers[key] >= 0)
      .filter(({ query, key }) => Math.abs(query - key) > 2 && Math.min(words[query].text.length, words[key].text.length) >= SHORTEST)
      .sort((a, b) => b.weight - a.weight);
    const found: Link[] = claim ? [{ query: claim[0], key: claim[1], weight: table.values[claim[0] * n + claim[1]] }] : [];
    const pair = ({ query, key }: Link) => [words[query], words[key]].map(({ text }) => text.toLowerCase()).sort().join(" ");
    for (const link of all) {
      const isNew = found.every((other) => Math.abs(other.query - link.query) > 1 && pair(other) !== pair(link));
      if (isNew && found.length < MOST_LINKS) found.push(link);
    }
    return found;
  }
  /** Return how the words of each sentence share their weight between words, and what none of them may read. */
  function between(): [Float32Array, Uint8Array] {
    const [sums, hidden] = [new Float32Array(count ** 2), new Uint8Array(count ** 2).fill(1)];
    for (let at = 0; at < n * n; at++) {
      const [a, b] = [numbers[Math.floor(at / n)], numbers[at % n]];
      if (a < 0 || b < 0) continue;
      if (!table.masked[at]) hidden[a * count + b] = 0;
      if (!table.uninformative[at]) sums[a * count + b] += table.values[at] || 0;
    }
    for (let a = 0; a < count; a++) {
      const row = sums.subarray(a * count, (a + 1) * count);
      const whole = row.reduce((sum, one) => sum + one, 0);
      row.forEach((one, b) => (row[b] = whole ? one / whole : 0));
    }
    return [sums, hidden];
  }
  function draw(pen: Pen, { row, column }: { row: number | null; column: number | null }, marked: boolean, at?: [number, number]): void {
    const pointed = row ?? column;
    const ofWord = Array.from({ length: n }, (_, m): Link => (row !== null ? { query: row, key: m, weight: table.values[row * n + m] } : { query: m, key: column!, weight: table.values[m * n + column!] }))
      .filter(({ query, key, weight }) => query !== key && numbers[query] >= 0 && numbers[key] >= 0 && weight >= 2 / n);
    const shown = pointed === null ? links : ofWord.sort((a, b) => b.weight - a.weight).slice(0, 2 * MOST_LINKS);
    const top = Math.max(1e-9, ...shown.map(({ weight }) => weight));
    const wires = shown.map((link, lane) => wire(link, (lane % 3) * 3 - 3));
    const inks = shown.map(({ weight }, l) => (marked && l === 0 ? theme.claim : color({ map: theme.weights, low: 0, high: 1, log: false, label: "" }, 0.25 + 0.55 * (weight / top))));
    const last = [...shown.keys()].reverse(); // the claim is drawn on top
    for (const l of last) follow(pen, wires[l], inks[l], 0.8 + 3 * shown[l].weight);
    for (const l of last) {
      const { query, key } = shown[l];
      box(pen, words[key], inks[l], false);
      box(pen, words[query], inks[l], true);
    }
    const boxed = new Set(shown.flatMap(({ query, key }) => [query, key]));
    words.forEach(({ text, x, y, w }, m) => {
      if (numbers[m] < 0) return;
      if (!boxed.has(m)) pen.rect(x - 1, y - 8, w + 2, 15, theme.ground, 0.8);
      pen.text(text, x, y, { size: SIZE, fill: theme.ink, bold: m === pointed });
      if (m === numbers.indexOf(numbers[m])) pen.text(String(numbers[m] + 1), 0, y, { size: 11, fill: theme.muted });
    });
    const taken: Box[] = [...[...boxed].map((m) => around(words[m])), ...wires.flatMap(edges)];
    for (const [l, { query, weight }] of (row === null ? shown : []).entries()) {
      const { x, y, w, h } = around(words[query]);
      const wide = measure(share(weight), 10.5, true);
      const spots = [y - 9, y + h + 1].flatMap((top) => [x + w + 1, x + w - wide, x, x - wide - 1].map((left): Box => ({ x: left, y: top, w: wide, h: 8 })));
      const spot = spots.find((one) => one.x >= 0 && one.x + wide <= place.w && !taken.some((other) => overlaps(one, other)));
      if (!spot) continue;
      taken.push(spot);
      pen.text(share(weight), spot.x, spot.y + 4, { size: 10.5, bold: true, fill: marked && l === 0 ? theme.claim : theme.muted });
    }
    if (part !== null) {
      const above = words[first!].y - STEP / 2;
      pen.line(INDENT, above, place.w - 62, above, theme.muted, 0.75);
      pen.text("generated", place.w, above, { size: 11, fill: theme.muted, align: "right" });
    }
    const head = map.box.y - 26;
    pen.text("Where the words of each sentence look", 0, head, { size: 13, bold: true, fill: theme.ink });
    pen.text("Rows look at columns: share of the weight between words", 0, head + 17, { size: 11, fill: theme.muted });
    const cell = claim && marked ? claim.map((m) => numbers[m]) as [number, number] : null;
    map.draw(pen, at?.[0] ?? null, at?.[1] ?? null, 0, cell && Math.min(...cell) < 0 ? null : cell);
  }
  /** Lead from a dashed box to a solid one: between lines, then across them. */
  function wire({ query, key }: Link, lane: number): [number, number][] {
    const [from, to] = [words[query], words[key]];
    const [x1, x2] = [from.x + from.w / 2, to.x + to.w / 2];
    const down = to.y > from.y;
    const gap = from.y + (down ? STEP / 2 : -STEP / 2) + lane;
    return [[x1, from.y + (down ? BELOW : -ABOVE)], [x1, gap], [x2, gap], [x2, to.y + (to.y < from.y ? BELOW : -ABOVE)]];
  }
  function follow(pen: Pen, way: [number, number][], ink: string, wide: number): void {
    way.slice(1).forEach(([x, y], n) => pen.line(...way[n], x, y, ink, wide));
    const [[, gap], [x, end]] = way.slice(2);
    const back = end < gap ? 5 : -5;
    pen.area([[x, end], [x - 4, end + back], [x + 4, end + back]], ink);
  }
  function box(pen: Pen, word: Word, ink: string, dashed: boolean): void {
    const { x: left, y: top, w: wide, h: high } = around(word);
    pen.rect(left, top, wide, high, theme.ground);
    if (!dashed) return pen.frame(left, top, wide, high, ink, 1.5);
    for (let at = 0; at < wide; at += 5) for (const edge of [top, top + high]) pen.line(left + at, edge, left + Math.min(at + 3, wide), edge, ink, 1);
    for (let at = 0; at < high; at += 5) for (const edge of [left, left + wide]) pen.line(edge, top + at, edge, top + Math.min(at + 3, high), ink, 1);
  }
  return {
    end: map.box.y + map.box.h,
    draw,
    word: (px, py) => {
      const found = words.findIndex(({ x, y, w }, m) => numbers[m] >= 0 && px >= x - 2 && px < x + w + 2 && Math.abs(py - y) < STEP / 2);
      return found < 0 ? null : found;
    },
    center: (m) => [words[m].x + words[m].w / 2, words[m].y],
    cell: (px, py) => {
      const { row, column } = map.at(px, py) ?? {};
      return row === undefined || column === undefined ? null : [row, column];
    },
    middle: ([a, b]) => map.center(a, b),
    say: ([a, b]) => [[{ token: named(a) }, " → ", { token: named(b) }, `  ${masked[a * count + b] ? written(0, 0) : share(shares[a * count + b])}`], ["of the weight between words"]],
  };
}
