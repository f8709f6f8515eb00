/** A matrix of cells with labels: the map of one head, or the rows of one token in all heads. */

import { isDark, type Scale, type Theme } from "./colors";
import type { Marks } from "./maps";
import { measure, type Pen } from "./pen";
import { clamp, inside, outline, paint, scaleAt, type Box } from "./scene";
import { brief, clip, literal } from "./text";

export interface Plan {
  values: ArrayLike<number>;
  marks: Marks;
  rows: string[];
  columns: string[];
  scale: Scale;
  theme: Theme;
  threshold: number;
  x: number;
  y: number;
  width: number;
  /** Largest cell size; cells are square unless `flat` is given. */
  largest: number;
  flat?: number;
  /** Largest height with labels, if cells are square. */
  tallest?: number;
  xName: string;
  yName: string;
  found?: { row(r: number): boolean; column(c: number): boolean };
  /** Rows above which, and columns before which, a line is drawn. */
  breaks?: number[];
  /** Names of blocks of rows, for rows too low for labels of their own. */
  blocks?: { name: string; from: number; to: number }[];
  splits?: number[];
  /** The first generated row and column. */
  generated?: { row: number | null; column: number | null };
  /** Height of the arcs above the labels of the columns, in place of their name. */
  crown?: number;
}
export interface Matrix {
  cells: Box;
  /** Including labels. */
  box: Box;
  /** `above`: the height of what has scrolled out of the window. `claim`: the row and the column that the title is about. */
  draw(pen: Pen, row: number | null, column: number | null, above: number, claim?: [row: number, column: number] | null): void;
  at(x: number, y: number): { row?: number; column?: number } | null;
  center(row: number | null, column: number | null): [number, number];
  /** The top of the label of a column. */
  top(column: number): [number, number];
}

const NAME = 18; // pixels of height of the name of the columns
const SMALLEST = 8; // px; smallest cell with a label: below, some labels are left out
export const LOWEST = 5.5; // px; smallest cell of a map that is fitted into the window

export function matrix(plan: Plan): Matrix {
  const { theme, scale } = plan;
  const upper = plan.crown || NAME; // above the labels of the columns
  const [R, C] = [plan.rows.length, plan.columns.length];
  const [rows, columns] = [plan.rows.map(literal), plan.columns.map(literal)];
  const widest = (labels: string[], size: number) => labels.reduce((most, label) => Math.max(most, measure(label, size, true)), 0);
  const names = plan.blocks && plan.flat! < SMALLEST ? plan.blocks.map(({ name }) => name) : rows;
  const left = 22 + Math.min(plan.width * 0.28, 120, widest(names, 12));
  const right = plan.generated?.row == null ? 0 : NAME; // room for a bracket
  const across = Math.min(plan.largest, (plan.width - left - right) / C);
  const labelled = (cw: number) => {
    const turned = widest(columns, size(cw)) > cw - 4;
    return { cw, turned, over: 8 + (turned ? Math.min(110, widest(columns, size(cw))) : size(cw) + 2) };
  };
  const fitting = plan.flat ?? Math.max(LOWEST, ((plan.tallest ?? Infinity) - upper - labelled(across).over) / R);
  const { cw, turned, over } = labelled(plan.flat ? across : Math.min(across, fitting)); // over: the height of the labels
  const ch = plan.flat ?? cw;
  const [small, wide] = [size(ch), size(cw)];
  const cells = { x: plan.x + left, y: plan.y + upper + over, w: cw * C, h: ch * R };
  const box = { x: plan.x, y: plan.y, w: left + cells.w, h: cells.h + upper + over };
  const picture = paint(plan.values, R, C, scale, plan.threshold, plan.marks);
  const numbered = cw >= 30 && ch >= 17;
  const hatched = cw >= 8 && ch >= 8;
  const smallest = Math.max(plan.threshold, scale.low < 0 ? 0.005 : Math.max(0.005, 1 / C)); // number written
  let lowered = 0; // pixels, so that the labels of the columns stay in the window
  let claimed: [number, number] | null = null;

  function draw(pen: Pen, row: number | null, column: number | null, above: number, claim: [number, number] | null = null): void {
    claimed = claim;
    lowered = clamp(above - cells.y + over, 0, cells.h - ch);
    pen.image(picture, [0, 0, C, R], cells.x, cells.y, cells.w, cells.h);
    if (hatched) hatch(pen);
    if (cw >= 8 && ch >= 8) lines(pen);
    pen.frame(cells.x, cells.y, cells.w, cells.h, theme.faint, 0.75);
    for (const r of plan.breaks ?? []) pen.line(cells.x - 4, cells.y + r * ch, cells.x + cells.w, cells.y + r * ch, theme.muted, 0.75);
    for (const c of plan.splits ?? []) pen.line(cells.x + c * cw, cells.y, cells.x + c * cw, cells.y + cells.h, theme.muted, 0.75);
    if (numbered) numbers(pen);
    brackets(pen);
    rowLabels(pen, row);
    const [x, y] = [cells.x + (column ?? 0) * cw, cells.y + (row ?? 0) * ch];
    if (row !== null) pen.frame(cells.x, y, cells.w, ch, theme.ink, column === null ? 1.5 : 0.75);
    if (column !== null) pen.frame(x, cells.y, cw, cells.h, theme.ink, row === null ? 1.5 : 0.75);
    if (row !== null && column !== null) outline(pen, theme, { x, y, w: cw, h: ch });
    if (claimed) outline(pen, theme, { x: cells.x + claimed[1] * cw, y: cells.y + claimed[0] * ch, w: cw, h: ch }, 1.5, theme.claim);
    columnLabels(pen, column);
  }
  /** Mark the text that the model generated. */
  function brackets(pen: Pen): void {
    const { row = null, column = null } = plan.generated ?? {};
    const words = { size: 11, fill: theme.muted };
    if (row !== null) {
      const [x, from, to] = [cells.x + cells.w + 5, cells.y + row * ch + 1, cells.y + cells.h - 1];
      pen.line(x, from, x, to, theme.muted);
      for (const y of [from, to]) pen.line(x - 3, y, x, y, theme.muted);
      if (to - from > 56) pen.text("generated", x + 8, (from + to) / 2, { ...words, align: "center", turned: true });
    }
    if (column !== null) {
      const [y, from, to] = [plan.y + NAME - 2, cells.x + column * cw + 1, cells.x + cells.w - 1];
      pen.line(from, y, to, y, theme.muted);
      for (const x of [from, to]) pen.line(x, y, x, y + 3, theme.muted);
      pen.text("generated", to, y - 8, { ...words, align: "right" });
    }
  }
  /** Mark masked cells, which differ from cells with a weight of nearly 0. */
  function hatch(pen: Pen): void {
    for (let n = 0; n < R * C; n++) {
      if (!plan.marks.masked[n]) continue;
      const [x, y] = [cells.x + (n % C) * cw, cells.y + Math.floor(n / C) * ch];
      pen.line(x + 2, y + ch - 2, x + cw - 2, y + 2, theme.ground, 1.5);
    }
  }
  function lines(pen: Pen): void {
    for (let c = 1; c < C; c++) pen.line(cells.x + c * cw, cells.y, cells.x + c * cw, cells.y + cells.h, theme.ground, 0.5);
    for (let r = 1; r < R; r++) pen.line(cells.x, cells.y + r * ch, cells.x + cells.w, cells.y + r * ch, theme.ground, 0.5);
  }
  function numbers(pen: Pen): void {
    for (let r = 0, n = 0; r < R; r++) {
      for (let c = 0; c < C; c++, n++) {
        const value = plan.values[n];
        if (plan.marks.masked[n] || Math.abs(value) < smallest) continue;
        const fill = isDark(scaleAt(scale, plan.marks, n), value) ? "#ffffff" : "#1a1a1a";
        pen.text(brief(value), cells.x + (c + 0.5) * cw, cells.y + (r + 0.5) * ch, { size: 10, fill, align: "center" });
      }
    }
  }
  const isBold = (side: 0 | 1, n: number, pointed: number | null) => n === pointed || n === claimed?.[side] || Boolean(side ? plan.found?.column(n) : plan.found?.row(n));
  function rowLabels(pen: Pen, row: number | null): void {
    const room = left - 22;
    if (plan.blocks && ch < SMALLEST) blockLabels(pen, row);
    else every(R, ch, row, (r) => {
      const bold = isBold(0, r, row);
      const text = clip(rows[r], room, (some) => measure(some, small, bold));
      pen.text(text, cells.x - 6, cells.y + (r + 0.5) * ch, { size: small, fill: r === claimed?.[0] ? theme.claim : theme.ink, align: "right", bold });
    });
    pen.text(plan.yName, plan.x + 6, cells.y + cells.h / 2, { size: 11, fill: theme.muted, align: "center", turned: true });
  }
  function blockLabels(pen: Pen, row: number | null): void {
    const write = (text: string, at: number, bold: boolean) => pen.text(text, cells.x - 6, cells.y + at * ch, { size: 11, fill: theme.ink, align: "right", bold });
    for (const { name, from, to } of plan.blocks!) {
      const middle = (from + to) / 2;
      if (row === null || Math.abs(row + 0.5 - middle) * ch > 12) write(name, middle, false);
    }
    if (row !== null) write(rows[row], row + 0.5, true);
  }
  function columnLabels(pen: Pen, column: number | null): void {
    const y = cells.y + lowered;
    if (lowered) pen.rect(cells.x, y - over, cells.w, over, theme.ground, 0.92);
    else if (!plan.crown) pen.text(plan.xName, cells.x, plan.y + NAME / 2, { size: 11, fill: theme.muted });
    every(C, cw, column, (c) => {
      const bold = isBold(1, c, column);
      const text = clip(columns[c], turned ? over - 8 : cw - 2, (some) => measure(some, wide, bold));
      const how = { size: wide, fill: c === claimed?.[1] ? theme.claim : theme.ink, bold };
      const x = cells.x + (c + 0.5) * cw;
      if (turned) pen.text(text, x, y - 5, { ...how, turned });
      else pen.text(text, x, y - 5 - wide / 2, { ...how, align: "center" });
    });
  }
  function at(x: number, y: number): { row?: number; column?: number } | null {
    const row = clamp(Math.floor((y - cells.y) / ch), 0, R - 1);
    const column = clamp(Math.floor((x - cells.x) / cw), 0, C - 1);
    if (inside({ ...cells, y: cells.y - over + lowered, h: over }, x, y)) return { column };
    if (inside(cells, x, y)) return { row, column };
    if (inside({ ...cells, x: plan.x + 14, w: left - 14 }, x, y)) return { row };
    return null;
  }
  function center(row: number | null, column: number | null): [number, number] {
    const x = column === null ? cells.x - 12 : cells.x + (column + 0.5) * cw;
    return [x, row === null ? cells.y + lowered - 10 : cells.y + (row + 0.5) * ch];
  }
  function top(column: number): [number, number] {
    const high = turned ? Math.min(over - 8, measure(columns[column], wide, true)) : wide;
    return [cells.x + (column + 0.5) * cw, cells.y - 7 - high];
  }
  return { cells, box, draw, at, center, top };
}

function size(cell: number): number {
  return clamp(Math.floor(cell), 8, 12);
}

/** Visit the labels that fit; the pointed one replaces its neighbors. */
export function every(count: number, cell: number, pointed: number | null, draw: (at: number) => void): void {
  const step = Math.ceil(SMALLEST / cell);
  for (let at = 0; at < count; at += step) {
    if (pointed === null || at === pointed || Math.abs(at - pointed) >= step) draw(at);
  }
  if (pointed !== null && pointed % step) draw(pointed);
}

