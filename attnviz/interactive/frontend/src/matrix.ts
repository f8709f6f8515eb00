/** A matrix of cells with labels: the map of one head, or the rows of one token in all heads. */

import { isDark, type Scale, type Theme } from "./colors";
import { measure, type Pen } from "./pen";
import { clamp, inside, paint, type Box } from "./scene";
import { brief, clip, literal } from "./text";

export interface Plan {
  values: ArrayLike<number>;
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
  xName: string;
  yName: string;
  found?: { row(r: number): boolean; column(c: number): boolean };
  /** Rows above which, and columns before which, a line is drawn. */
  breaks?: number[];
  splits?: number[];
}
export interface Matrix {
  cells: Box;
  /** Including labels. */
  box: Box;
  draw(pen: Pen, row: number | null, column: number | null): void;
  at(x: number, y: number): { row?: number; column?: number } | null;
  center(row: number | null, column: number | null): [number, number];
}

const SMALLEST = 8.8; // px; smallest cell with a label

export function matrix(plan: Plan): Matrix {
  const { theme, scale } = plan;
  const [R, C] = [plan.rows.length, plan.columns.length];
  const [rows, columns] = [plan.rows.map(literal), plan.columns.map(literal)];
  const widest = (labels: string[], size: number) => labels.reduce((most, label) => Math.max(most, measure(label, size, true)), 0);
  const left = 22 + Math.min(plan.width * 0.28, 120, widest(rows, 12));
  const cw = Math.min(plan.largest, (plan.width - left) / C);
  const ch = plan.flat ?? cw;
  const cells = { x: plan.x + left, y: plan.y, w: cw * C, h: ch * R };
  const [small, wide] = [size(ch), size(cw)];
  const turned = widest(columns, wide) > cw - 4;
  const below = 24 + (turned ? Math.min(110, widest(columns, wide)) : wide + 2);
  const box = { x: plan.x, y: plan.y, w: left + cells.w, h: cells.h + below };
  const picture = paint(plan.values, R, C, scale, plan.threshold);
  const numbered = cw >= 30 && ch >= 17;

  function draw(pen: Pen, row: number | null, column: number | null): void {
    pen.image(picture, [0, 0, C, R], cells.x, cells.y, cells.w, cells.h);
    if (cw >= 8 && ch >= 8) lines(pen);
    pen.frame(cells.x, cells.y, cells.w, cells.h, theme.faint, 0.75);
    for (const r of plan.breaks ?? []) pen.line(cells.x - 4, cells.y + r * ch, cells.x + cells.w, cells.y + r * ch, theme.muted, 0.75);
    for (const c of plan.splits ?? []) pen.line(cells.x + c * cw, cells.y, cells.x + c * cw, cells.y + cells.h + 4, theme.muted, 0.75);
    if (numbered) numbers(pen);
    labels(pen, row, column);
    const [x, y] = [cells.x + (column ?? 0) * cw, cells.y + (row ?? 0) * ch];
    if (row !== null) pen.frame(cells.x, y, cells.w, ch, theme.accent, column === null ? 1.5 : 0.75);
    if (column !== null) pen.frame(x, cells.y, cw, cells.h, theme.accent, row === null ? 1.5 : 0.75);
    if (row !== null && column !== null) pen.frame(x, y, cw, ch, theme.accent, 2);
  }
  function lines(pen: Pen): void {
    for (let c = 1; c < C; c++) pen.line(cells.x + c * cw, cells.y, cells.x + c * cw, cells.y + cells.h, theme.ground, 0.5);
    for (let r = 1; r < R; r++) pen.line(cells.x, cells.y + r * ch, cells.x + cells.w, cells.y + r * ch, theme.ground, 0.5);
  }
  function numbers(pen: Pen): void {
    for (let r = 0, n = 0; r < R; r++) {
      for (let c = 0; c < C; c++, n++) {
        const value = plan.values[n];
        if (value === 0 || Math.abs(value) < plan.threshold) continue; // masked, or below the threshold
        const fill = isDark(scale, value) ? "#ffffff" : "#1a1a1a";
        pen.text(brief(value), cells.x + (c + 0.5) * cw, cells.y + (r + 0.5) * ch, { size: 10, fill, align: "center" });
      }
    }
  }
  function labels(pen: Pen, row: number | null, column: number | null): void {
    const room = left - 22;
    const ink = (pointed: boolean, found: boolean | undefined) => (pointed || found ? theme.accent : theme.ink);
    every(R, ch, row, (r) => {
      const text = clip(rows[r], room, (some) => measure(some, small, r === row));
      const fill = ink(r === row, plan.found?.row(r));
      pen.text(text, cells.x - 6, cells.y + (r + 0.5) * ch, { size: small, fill, align: "right", bold: r === row });
    });
    every(C, cw, column, (c) => {
      const text = clip(columns[c], turned ? below - 24 : cw - 2, (some) => measure(some, wide, c === column));
      const fill = ink(c === column, plan.found?.column(c));
      const [x, y] = [cells.x + (c + 0.5) * cw, cells.y + cells.h];
      if (turned) pen.text(text, x, y + 6, { size: wide, fill, align: "right", turned, bold: c === column });
      else pen.text(text, x, y + 6 + wide / 2, { size: wide, fill, align: "center", bold: c === column });
    });
    pen.text(plan.yName, plan.x + 6, cells.y + cells.h / 2, { size: 11, fill: theme.muted, align: "center", turned: true });
    pen.text(plan.xName, cells.x + cells.w / 2, cells.y + cells.h + below - 8, { size: 11, fill: theme.muted, align: "center" });
  }
  function at(x: number, y: number): { row?: number; column?: number } | null {
    const row = clamp(Math.floor((y - cells.y) / ch), 0, R - 1);
    const column = clamp(Math.floor((x - cells.x) / cw), 0, C - 1);
    if (inside(cells, x, y)) return { row, column };
    if (inside({ ...cells, x: plan.x + 14, w: left - 14 }, x, y)) return { row };
    if (inside({ ...cells, y: cells.y + cells.h, h: below - 16 }, x, y)) return { column };
    return null;
  }
  function center(row: number | null, column: number | null): [number, number] {
    const x = column === null ? cells.x - 12 : cells.x + (column + 0.5) * cw;
    return [x, row === null ? cells.y + cells.h + 10 : cells.y + (row + 0.5) * ch];
  }
  return { cells, box, draw, at, center };
}

function size(cell: number): number {
  return clamp(Math.floor(cell), 8, 12);
}

/** Visit the labels that fit; the pointed one replaces its neighbors. */
function every(count: number, cell: number, pointed: number | null, draw: (at: number) => void): void {
  const step = Math.ceil(SMALLEST / cell);
  for (let at = 0; at < count; at += step) {
    if (pointed === null || at === pointed || Math.abs(at - pointed) >= step) draw(at);
  }
  if (pointed !== null && pointed % step) draw(pointed);
}

