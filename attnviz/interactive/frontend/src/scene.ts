/** The interface of all views: a drawing that maps points to places and describes them. */

import { index, palette, type Scale, type Theme } from "./colors";
import type { Look } from "./reader";
import type { Marks, Side, Table } from "./maps";
import { measure, wrap, type Pen } from "./pen";
import type { State } from "./state";
import { literal, tick } from "./text";

/** A place in a view: a head, a row or a column (in units), or a cell. */
export interface Spot {
  layer?: number;
  head?: number;
  row?: number;
  column?: number;
  dimension?: number;
  /** The sentence that looks, and the one it looks at. */
  sentences?: [number, number];
  /** The drawing of the view that contains it. */
  part?: string;
}
/** A line of a tooltip: tokens are isolated, because they may run from right to left. */
export type Line = (string | { token: string })[];

export interface Scene {
  height: number;
  label: string;
  /** `above`: the height of what has scrolled out of the window; labels stay below it. */
  draw(pen: Pen, at: Spot | null, above: number): void;
  hit(x: number, y: number): Spot | null;
  /** The next place for an arrow key. */
  move(at: Spot | null, right: number, down: number): Spot;
  say(at: Spot): Line[];
  /** The state change of a click. */
  press(at: Spot): Partial<State>;
  /** The center of a place in the drawing. */
  place(at: Spot): [number, number] | null;
  /** The cell area of a map that can be zoomed. */
  map?: Box;
}
export interface Setting {
  look: Look;
  theme: Theme;
  width: number;
  /** The height that a view should not exceed, if its cells allow it. */
  height: number;
  /** Rows and columns that match the search. */
  found: (label: string) => boolean;
  /** Whether a reader has pointed at this head: its claim is then no longer marked. */
  touched?: () => boolean;
}
export interface Box {
  x: number;
  y: number;
  w: number;
  h: number;
}

export function inside({ x, y, w, h }: Box, px: number, py: number): boolean {
  return px >= x && px < x + w && py >= y && py < y + h;
}

/** Frame a place; a gap in the color of the ground keeps the frame apart from dark cells. */
export function outline(pen: Pen, { ground, ink }: Theme, { x, y, w, h }: Box, width = 1.5, color = ink): void {
  pen.frame(x, y, w, h, ground, width + 2);
  pen.frame(x, y, w, h, color, width);
}

export function clamp(value: number, low: number, high: number): number {
  return Math.max(low, Math.min(value, high));
}

const CLEAR = [0, 0, 0, 0];

/** Paint numbers as a picture, one pixel each; values below the threshold stay blank. */
export function paint(values: ArrayLike<number>, rows: number, columns: number, scale: Scale, threshold = 0, marks?: Marks): HTMLCanvasElement {
  const picture = document.createElement("canvas");
  [picture.width, picture.height] = [columns, rows];
  const context = picture.getContext("2d")!;
  const pixels = context.createImageData(columns, rows);
  fill(pixels, values, rows, columns, scale, threshold, 0, 0, marks);
  context.putImageData(pixels, 0, 0);
  return picture;
}

export function fill(
  { data, width }: ImageData, values: ArrayLike<number>, rows: number, columns: number, scale: Scale,
  threshold: number, left: number, top: number, marks?: Marks,
): void {
  for (let r = 0, n = 0; r < rows; r++) {
    for (let c = 0, to = 4 * ((top + r) * width + left); c < columns; c++, n++, to += 4) {
      const value = values[n];
      if (marks?.masked[n]) {
        data.set(scale.masked ?? CLEAR, to);
        continue;
      }
      if (Number.isNaN(value) || Math.abs(value) < Math.max(threshold, scale.blank ?? 0)) continue;
      const own = scaleAt(scale, marks, n);
      const [table, from] = [palette(own.map), 3 * index(own, value)];
      data[to] = table[from];
      data[to + 1] = table[from + 1];
      data[to + 2] = table[from + 2];
      data[to + 3] = 255;
    }
  }
}

/** Return the scale of a cell: uninformative ones may have their own. */
export function scaleAt(scale: Scale, marks: Marks | undefined, n: number): Scale {
  return (marks?.uninformative[n] && scale.neutral) || scale;
}

/** Return the color scale of some maps, up to a quantile of their weights; as in attnviz.figures.cells, special tokens have a scale of their own. */
export function scaleOf({ signed, differs, cell, columns, scale: rule, units }: Look, theme: Theme, tables: Table[], share = 1): Scale {
  const keys = columns.to - columns.from;
  const log = cell > 1 || keys >= rule.logarithmicFrom;
  const apart = !signed && !log && tables.some(({ uninformative }) => uninformative.includes(0));
  const weights = (some: 0 | 1) => tables.map(({ values, uninformative }) => (apart ? values.filter((_, n) => uninformative[n] === some) : values));
  const informative = weights(0);
  const high = Math.max(quantile(joined(informative), share), 1e-9);
  const over = Math.max(...informative.map((values) => quantile(values, 1))) > 1.005 * high;
  const { masked } = theme;
  if (signed) return { masked, map: theme.signed, low: -high, high, log: false, over, blank: high / 100, label: differs ? "weight in 1 − weight in 2" : "weight (signed)" };
  const even = 1 / keys;
  if (log) return { masked, map: theme.weights, low: even / rule.belowEven, high: Math.max(high, rule.belowEven * even), log, over, label: "attention weight (log)" };
  const gray = apart ? joined(weights(1)) : [];
  if (!gray.length) return { masked, map: theme.weights, low: 0, high, log, over, label: "attention weight" };
  const kinds = [units.some(({ special }) => special.includes(true)) && "special tokens", units.some(({ unknown }) => unknown.includes(true)) && "[UNK]"];
  const label = `of ${kinds.filter(Boolean).join(" and ") || "the first word"}`;
  const neutral: Scale = { map: theme.neutral, low: 0, high: Math.max(quantile(gray, 1), 1e-9), log, label };
  return { masked, map: theme.weights, low: 0, high, log, over, label: "between words", neutral };
}

function joined(parts: Float32Array[]): Float32Array {
  const whole = new Float32Array(parts.reduce((sum, { length }) => sum + length, 0));
  parts.reduce((at, values) => (whole.set(values, at), at + values.length), 0);
  return whole;
}

function largest(values: ArrayLike<number>): number {
  let most = 0;
  for (let n = 0; n < values.length; n++) most = Math.max(most, Math.abs(values[n]));
  return most;
}

/** Return a quantile of the absolute values. */
export function quantile(values: ArrayLike<number>, share: number): number {
  if (share === 1) return largest(values);
  const step = Math.max(1, Math.floor(values.length / 20000));
  const some = Float32Array.from({ length: Math.ceil(values.length / step) }, (_, n) => Math.abs(values[n * step])).sort();
  return some.length ? some[Math.floor(share * (some.length - 1))] : 0;
}

const [TITLE, LINE] = [34, 19];

/** Draw a view's title with a line below it, and its color scales to the right or, if narrow, below. */
export function heading(pen: Pen, setting: Setting, title: string, scale: Scale | null, under = ""): void {
  const { theme, width } = setting;
  const lines = wrap(title, width, 15, true);
  lines.forEach((line, n) => pen.text(line, 0, 12 + n * LINE, { size: 15, bold: true, fill: theme.ink }));
  const below = (lines.length - 1) * LINE + (under ? LINE - 1 : 0);
  if (under) pen.text(under, 0, 12 + below, { size: 12, fill: theme.muted });
  if (!scale) return;
  const narrow = isNarrow(setting, title, scale);
  const bar = barOf(setting, scale);
  let x = width - 8;
  for (const [label, each] of labelsOf(scale, narrow).reverse()) {
    drawBar(pen, theme, each, label, [(x -= bar), narrow ? 30 + below : 6, bar]);
    x -= measure(label, 11) + 10 + BETWEEN;
  }
}

const BETWEEN = 20; // pixels between two color scales

function barOf({ width }: Setting, { neutral }: Scale): number {
  return neutral ? clamp((width - 240) / 2, 44, 130) : Math.min(170, width * 0.36);
}
/** Return the color scales of a heading, each with its label. */
function labelsOf(scale: Scale, narrow: boolean): [string, Scale][] {
  const { neutral, label } = scale;
  const weight = narrow || !neutral ? "" : "attention weight ";
  return neutral ? [[`${weight}${label}`, scale], [neutral.label, neutral]] : [[label, scale]];
}
function drawBar(pen: Pen, theme: Theme, scale: Scale, label: string, [x, y, bar]: [number, number, number]): void {
  const height = 8;
  const table = paint(Float32Array.from({ length: 256 }, (_, n) => n), 1, 256, { ...scale, low: 0, high: 255, log: false });
  pen.image(table, [0, 0, 256, 1], x, y, bar, height);
  pen.frame(x, y, bar, height, theme.faint, 0.5);
  pen.text(label, x - 10, y + 4, { size: 11, fill: theme.muted, align: "right" });
  const middle = scale.log ? Math.sqrt(scale.low * scale.high) : (scale.low + scale.high) / 2;
  for (const [share, value] of [[0, scale.low], [0.5, middle], [1, scale.high]]) {
    if (share === 0.5 && bar < 90) continue;
    const align = share === 0 ? "left" : share === 1 ? "right" : "center";
    const beyond = scale.over && share === 1 ? "≥ " : scale.over && share === 0 && value < 0 ? "≤ " : "";
    pen.text(beyond + tick(value), x + share * bar, y + 17, { size: 10, fill: theme.muted, align });
  }
}

function isNarrow(setting: Setting, title: string, scale: Scale): boolean {
  const bars = labelsOf(scale, false).map(([label]) => measure(label, 11) + barOf(setting, scale) + BETWEEN + 10);
  return bars.reduce((sum, wide) => sum + wide, measure(title, 15, true) + 20) > setting.width;
}

/** Return the height of a heading. */
export function headroom(setting: Setting, title: string, scale: Scale | null, under = ""): number {
  const more = (wrap(title, setting.width, 15, true).length - 1) * LINE + (under ? LINE - 1 : 0);
  return (scale && isNarrow(setting, title, scale) ? TITLE + 26 : TITLE + 4) + more;
}

/** Return how much weight removed special tokens have taken, if any: special tokens had 61 %. */
export function removed(look: Look, kept: Float32Array[]): string {
  if (look.state.special !== "remove" || look.cell > 1) return "";
  const sum = kept.reduce((sum, rows) => sum + rows.reduce((a, b) => a + b, 0), 0);
  const count = kept.reduce((count, rows) => count + rows.length, 0);
  return `special tokens had ${Math.round(100 * (1 - sum / count))} %`;
}

/** Return the tooltip line of a weight. */
export function pair(look: Look, row: number, column: number): Line {
  const token = (label: string) => ({ token: literal(label) });
  return [token(look.rows.units.labels[row]), " → ", token(look.columns.units.labels[column])];
}

/** Return the visible units at which a second text or the generated text begins. */
export function splits({ units, from, to }: Side): number[] {
  return [units.second, units.generated].flatMap((unit) => (unit !== null && unit > from && unit < to ? [unit - from] : []));
}
/** Return the first visible unit that was generated, if any. */
export function generated({ units, from, to }: Side): number | null {
  return units.generated !== null && units.generated < to ? Math.max(units.generated - from, 0) : null;
}

export function span(positions: number[]): string {
  const [first, last] = [positions[0], positions[positions.length - 1]];
  return first === last ? `${first}` : `${first}–${last}`;
}

