/** Numbers as tables: maps with a color for each cell, and matrices that a reader can edit. */

import { color, isDark, type Scale, type Theme } from "../colors";
import { el } from "../dom";
import { brief, literal } from "../text";

export interface Matrix {
  rows: string[];
  columns: string[];
  /** Row by row. */
  values: ArrayLike<number>;
}

/** Return a table, colored by a scale; `marked` cells are outlined. `edit` makes its cells fields. */
export function table({ rows, columns, values }: Matrix, how: { title: string; scale?: Scale; marked?: number[]; edit?: (at: number, value: number) => void }): HTMLElement {
  const { title, scale, marked = [], edit } = how;
  const cell = (at: number) => {
    const value = values[at];
    if (edit) {
      const name = `${title}, ${rows[Math.floor(at / columns.length)]}, ${columns[at % columns.length]}`;
      const field = el("input", { type: "number", step: "0.1", value: String(value), "aria-label": name, input: () => Number.isFinite(field.valueAsNumber) && edit(at, field.valueAsNumber) });
      return el("td", {}, field);
    }
    const made = el("td", { title: `${value}`, class: marked.includes(at) && "marked" }, brief(value));
    if (scale) {
      made.style.background = color(scale, value);
      made.style.color = isDark(scale, value) ? "#fff" : "#1a1a1a";
    }
    return made;
  };
  const heads = columns.map((label) => el("th", { scope: "col" }, el("span", {}, literal(label))));
  const body = rows.map((label, r) =>
    el("tr", {}, el("th", { scope: "row" }, literal(label)), ...columns.map((_, c) => cell(r * columns.length + c))));
  const wide = columns.length > 14 ? "map dense" : "map";
  return el("figure", {}, el("figcaption", {}, title), el("table", { class: edit ? "map edited" : scale ? wide : `${wide} plain`, "aria-label": title },
    el("thead", {}, el("tr", {}, el("td"), ...heads)), el("tbody", {}, ...body)));
}

export function scaleOf(theme: Theme, values: ArrayLike<number>, signed = false): Scale {
  const top = Array.from(values).reduce((most, value) => Math.max(most, Math.abs(value)), 1e-9);
  return { map: signed ? theme.signed : theme.weights, low: signed ? -top : 0, high: top, log: false, label: "" };
}

/** Return A Bᵀ, row by row. A: (m, d), B: (n, d). */
export function product(a: ArrayLike<number>, b: ArrayLike<number>, d: number): number[] {
  const [m, n] = [a.length / d, b.length / d];
  return Array.from({ length: m * n }, (_, at) => {
    let sum = 0;
    for (let c = 0, i = Math.floor(at / n) * d, j = (at % n) * d; c < d; c++) sum += a[i + c] * b[j + c];
    return sum;
  });
}

/** Return the length of each row. */
export function norms(a: ArrayLike<number>, d: number): number[] {
  return Array.from({ length: a.length / d }, (_, i) => Math.hypot(...Array.from({ length: d }, (_, c) => a[i * d + c])));
}

export function largest(row: ArrayLike<number>): number {
  return Array.from(row).reduce((best, value, n, all) => (value > all[best] ? n : best), 0);
}

export function rowsOf<T>(values: ArrayLike<T>, columns: number): T[][] {
  return Array.from({ length: values.length / columns }, (_, i) => Array.from({ length: columns }, (_, j) => values[i * columns + j]));
}
