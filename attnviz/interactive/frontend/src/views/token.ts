/** One token in all heads: one row per head, with the token's weights to (or from) every other. */

import { matrix } from "../matrix";
import type { Pen } from "../pen";
import { clamp, generated, heading, headroom, pair, scaleOf, splits, type Line, type Scene, type Setting, type Spot } from "../scene";
import { literal, number, weight } from "../text";
import type { State } from "../state";

export function token(setting: Setting): Scene {
  const { look, theme, width, height: tallest, found } = setting;
  const { state } = look;
  const gives = state.by === "query";
  const [mine, others] = gives ? [look.rows, look.columns] : [look.columns, look.rows];
  const all = look.layers.flatMap(({ layer, heads }) => heads.map((head) => ({ layer: layer.layer, head })));
  const tables = all.map(({ layer, head }) => look.table(layer, head));
  const C = others.to - others.from;
  const values = new Float32Array(all.length * C);
  const marks = { masked: new Uint8Array(all.length * C), uninformative: new Uint8Array(all.length * C) };
  tables.forEach((table, r) => {
    values.set(table.values, r * C);
    marks.masked.set(table.masked, r * C);
    marks.uninformative.set(table.uninformative, r * C);
  });
  const scale = scaleOf(look, theme, tables, 0.995);
  const name = literal(mine.units.labels[mine.from]);
  const title = gives ? `What “${name}” attends to` : `What attends to “${name}”`;
  const upper = headroom(setting, title, scale);
  const breaks = all.flatMap(({ layer }, r) => (r > 0 && all[r - 1].layer !== layer ? [r] : []));
  const flat = clamp(Math.max(tallest - upper - 80, 320) / all.length, Math.min(5, 7000 / all.length), 20);
  const rows = matrix({
    values, marks, scale, theme, threshold: state.threshold, breaks, flat,
    rows: all.map(({ layer, head }) => `${layer}.${head}`),
    blocks: look.layers.map(({ layer }) => {
      const of = all.map(({ layer: other }) => other);
      return { name: `layer ${layer.layer}`, from: of.indexOf(layer.layer), to: of.lastIndexOf(layer.layer) + 1 };
    }),
    columns: others.units.labels.slice(others.from, others.to),
    x: 0, y: upper - 8, width,
    largest: 120, splits: splits(others),
    generated: { row: null, column: generated(others) },
    xName: gives ? "key (attended to)" : "query (attending)",
    yName: "layer.head",
    found: { row: () => false, column: (c) => found(others.units.labels[others.from + c]) },
  });
  const rowOf = (at: Spot) => all.findIndex(({ layer, head }) => layer === at.layer && head === at.head);
  const otherOf = (at: Spot) => (gives ? at.column : at.row);
  const other = (unit: number): Spot => (gives ? { column: unit } : { row: unit });
  const chosen = { ...(gives ? { row: mine.from } : { column: mine.from }) };

  function draw(pen: Pen, at: Spot | null, above: number): void {
    heading(pen, setting, title, scale);
    const r = at ? rowOf(at) : -1;
    const c = at ? otherOf(at) : undefined;
    rows.draw(pen, r < 0 ? null : r, c === undefined ? null : c - others.from, above);
  }
  function hit(x: number, y: number): Spot | null {
    const cell = rows.at(x, y);
    if (!cell) return null;
    const found = cell.row === undefined ? {} : all[cell.row];
    return { part: "rows", ...chosen, ...found, ...(cell.column === undefined ? {} : other(others.from + cell.column)) };
  }
  function say(at: Spot): Line[] {
    const [r, unit] = [rowOf(at), otherOf(at)];
    const head = r < 0 ? [] : [[`layer ${all[r].layer}, head ${all[r].head}`]];
    if (unit === undefined) return head;
    const [row, column] = gives ? [mine.from, unit] : [unit, mine.from];
    if (r < 0) return [pair(look, row, column)];
    const value = values[r * C + unit - others.from];
    const error = tables[r].errors[gives ? 0 : unit - others.from];
    return [[...pair(look, row, column), `  ${(look.signed ? number : weight)(value, error)}`], ...head];
  }
  function press(at: Spot): Partial<State> {
    if (at.layer === undefined) return {};
    const position = mine.units.positions[mine.from][0];
    return { view: "head", layer: at.layer, heads: [at.head!], mean: false, lock: true, ...(gives ? { query: position, key: null } : { key: position, query: null }) };
  }
  return {
    height: rows.box.y + rows.box.h + 4,
    label: `${title}: ${all.length} heads down, ${C} tokens across`,
    draw, hit, say, press,
    place: (at) => {
      const [r, unit] = [rowOf(at), otherOf(at)];
      return rows.center(r < 0 ? null : r, unit === undefined ? null : unit - others.from);
    },
    move: (at, right, down) => {
      const r = clamp(at ? rowOf(at) + down : 0, 0, all.length - 1);
      const unit = clamp((at ? (otherOf(at) ?? others.from) : others.from) + (at ? right : 0), others.from, others.to - 1);
      return { part: "rows", ...chosen, ...all[r], ...other(unit) };
    },
  };
}
