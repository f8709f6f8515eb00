/** One head or several heads of a layer: lines between tokens, and the matrix of the same weights. */

import { drawArcs, type Link } from "../arcs";
import { color, signedInk } from "../colors";
import { every, LOWEST, matrix } from "../matrix";
import { unitsOf } from "../maps";
import { measure, type Pen } from "../pen";
import { isWholeText, MOST_WORDS, paragraph, startsOf } from "../paragraph";
import { isPicture } from "../picture";
import { clip, literal, number, ranges, share, weight } from "../text";
import { clamp, generated, heading, headroom, inside, pair, removed, scaleAt, scaleOf, span, splits, type Line, type Scene, type Setting, type Spot } from "../scene";

const MOST_TOKENS = 100; // per column
const MANY = 40; // queries; their map may be higher than the window, if its cells were too low otherwise
const MOST_LINES = 6000;
const FEW_LINES = 400; // few enough to distinguish single lines
const CROWN = 76; // pixels of height of the arcs
const [MOST_ARCS, FAINTEST] = [5, 0.12]; // while no word is pointed at

export function head(setting: Setting): Scene {
  const { look, theme, width, height: tallest, found } = setting;
  const { state, rows, columns } = look;
  const [R, C] = [rows.to - rows.from, columns.to - columns.from];
  const all = look.mean();
  const heads = state.mean ? [0] : look.layers[0].heads; // a mean is drawn like one head
  const tables = state.mean ? [all] : heads.map((head) => look.table(state.layer, head));
  const { values: mean, errors } = all;
  const scale = scaleOf(look, theme, [all]);
  const count = look.layers.reduce((sum, { heads }) => sum + heads.length, 0);
  const layers = look.layers.map(({ layer }) => layer.layer);
  const name = state.mean ? `Mean of ${count} heads, layer${layers.length > 1 ? "s" : ""} ${ranges(layers)}` : `Layer ${state.layer}, head${heads.length > 1 ? "s" : ""} ${ranges(heads)}`;
  const less = removed(look, tables.map(({ kept }) => kept));
  const said = state.mean || heads.length > 1 ? null : look.found(state.layer, heads[0]);
  const named = less ? `${name}; ${less}` : name;
  const [title, under] = said?.title ? [said.title, named] : [named, ""];
  const upper = headroom(setting, title, scale, under);
  const bare = isPicture(look.result.axes[look.stack.queries]); // lines between patches say nothing
  const stacked = width < 720 && !bare;
  const gap = stacked || bare ? 0 : 40;
  const [m, n] = [Math.min(R, MOST_TOKENS), Math.min(C, MOST_TOKENS)];
  const isSentence = !bare && isWholeText(look) && C <= MOST_WORDS;
  const crown = isSentence ? CROWN : 0;
  const claim = isSentence || startsOf(look) ? claimOf() : null;
  const starts = startsOf(look);
  // The matrix takes the width that its cells can fill; the lines take the rest.
  const isHigh = R > MANY && (tallest - upper - 110) / R < LOWEST;
  const cell = clamp(Math.max(isHigh ? 600 : 320, tallest - upper - crown - 70) / R, starts ? 2 : 4, 54);
  const left = bare ? 0 : stacked ? width : clamp(width - gap - 130 - C * cell, width * 0.36, 700);
  const [most, below] = [Math.max(m, n), 26];
  const narrow = clamp(420 / most, 10.5, 24);

  const cells = matrix({
    values: mean, marks: all, scale, theme, threshold: state.threshold,
    rows: rows.units.labels.slice(rows.from, rows.to),
    columns: columns.units.labels.slice(columns.from, columns.to),
    x: stacked ? 0 : left + gap,
    y: upper - 8,
    width: stacked ? width : width - left - gap,
    largest: cell,
    tallest: stacked || isHigh ? undefined : Math.max(320, tallest - upper),
    crown,
    breaks: splits(rows),
    splits: splits(columns),
    generated: { row: generated(rows), column: generated(columns) },
    xName: "key (attended to)",
    yName: "query (attending)",
    found: { row: (r) => found(rows.units.labels[rows.from + r]), column: (c) => found(columns.units.labels[columns.from + c]) },
  });
  // Next to the matrix, tokens align with its rows.
  const row = stacked ? narrow : Math.max(LOWEST, Math.min(cells.cells.h / R, 640 / most));
  const lower = bare ? 0 : most * row;
  const tokens = Math.min(130, left * 0.3); // room for a label
  const place = { x: 0, y: stacked ? cells.box.y + cells.box.h + 52 : cells.cells.y, w: left, h: lower };
  const written = starts && paragraph(theme, rows, starts, all, { y: stacked ? place.y : upper + 6, w: stacked ? width : left }, claim);
  const several = heads.length > 1;
  const height = Math.max(written ? written.end : place.y + lower + (R > m || C > n ? below : 0), cells.box.y + cells.box.h) + 6;

  /** The selected unit: locked, or under the pointer. */
  function focus(at: Spot | null): { row: number | null; column: number | null } {
    const [q, k] = [state.query, state.key];
    const unit = (of: Int32Array, position: number | null) => (position === null || of[position] < 0 ? null : of[position]);
    const spot = state.lock ? { row: unit(rows.units.of, q), column: unit(columns.units.of, k) } : at;
    const inner = (value: number | null | undefined, from: number, to: number) =>
      value === null || value === undefined || value < from || value >= to ? null : value - from;
    return { row: inner(spot?.row, rows.from, rows.to), column: inner(spot?.column, columns.from, columns.to) };
  }
  function draw(pen: Pen, at: Spot | null, above: number): void {
    const spot = focus(at);
    const isQuiet = spot.row === null && spot.column === null;
    const marked = isQuiet && !setting.touched?.() ? claim : null;
    heading(pen, setting, title, scale, under);
    if (written) written.draw(pen, spot, marked !== null, at?.sentences);
    else if (!bare) {
      drawLines(pen, spot.row, spot.column);
      drawTokens(pen, spot.row, spot.column);
    }
    cells.draw(pen, spot.row, spot.column, above, marked);
    if (isSentence && above <= cells.box.y) drawArcs(pen, theme, isQuiet ? strongestLinks(marked) : linksOf(spot.row, spot.column), cells.top, crown);
  }
  /** The row and the column that the title is about, among those that are drawn. */
  function claimOf(): [number, number] | null {
    if (!said?.cell || !state.words) return null;
    const whole = unitsOf(look.result.axes[look.stack.queries], true, true).positions;
    const [r, c] = said.cell.map((unit) => rows.units.of[whole[unit][0]] - rows.from);
    return r >= 0 && c >= 0 && r < R && c < C ? [r, c] : null;
  }
  function link(i: number, j: number, isSaid: boolean): Link {
    const own = scaleAt(scale, all, i * C + j);
    const value = mean[i * C + j];
    const ink = own === scale ? color(scale, Math.max(value, 0.4 * scale.high)) : theme.roles.special;
    return { query: i, key: j, weight: value, ink, ...(isSaid && { said: share(value) }) };
  }
  /** The strongest links between words, and the claimed one in its color. */
  function strongestLinks(marked: [number, number] | null): Link[] {
    const between = Array.from(mean, (value, at) => ({ value, at, i: Math.floor(at / C), j: at % C }))
      .filter(({ at, i, j }) => i !== j && !all.uninformative[at]).sort((a, b) => b.value - a.value);
    const least = Math.max(FAINTEST, (between[0]?.value ?? 0) / 4, 1.5 / C);
    const links = between.slice(0, MOST_ARCS).filter(({ value }) => value >= least).map(({ i, j }) => link(i, j, false));
    if (!marked || marked[0] === marked[1]) return links;
    const [i, j] = marked;
    const others = links.filter(({ query, key }) => query !== i || key !== j);
    return [...others.slice(0, MOST_ARCS - 1), { ...link(i, j, true), ink: theme.claim, isClaim: true }];
  }
  /** The links of a word: what it looks at, or what looks at it, beyond even weights; or one of them. */
  function linksOf(r: number | null, c: number | null): Link[] {
    const pairs = Array.from({ length: C }, (_, n): [number, number] => [r ?? n, r === null ? c! : n]);
    const some = r !== null && c !== null ? [[r, c] as [number, number]] : pairs.filter(([i, j]) => mean[i * C + j] >= 2 / C);
    const links = some.filter(([i, j]) => i !== j);
    const most = Math.max(...links.map(([i, j]) => mean[i * C + j]));
    return links.map(([i, j]) => link(i, j, mean[i * C + j] === most));
  }
  function drawLines(pen: Pen, r: number | null, c: number | null): void {
    const lines: [number, number, number, number][] = []; // share, row, column, head
    tables.forEach(({ values }, h) => {
      for (let i = r ?? 0; i < (r === null ? m : r + 1); i++) {
        for (let j = c ?? 0; j < (c === null ? n : c + 1); j++) {
          const value = Math.abs(values[i * C + j]);
          const share = Math.min(1, value / scaleAt(scale, all, i * C + j).high);
          if (share >= 0.02 && value >= state.threshold && i < m && j < n) lines.push([share, i, j, h]);
        }
      }
    });
    lines.sort((a, b) => a[0] - b[0]);
    // The lines of one token are scaled to its strongest line.
    const strongest = (r === null && c === null) || !lines.length ? 1 : lines[lines.length - 1][0];
    // Many lines would form a solid block, so more lines are drawn fainter.
    const faint = Math.min(1, Math.sqrt(FEW_LINES / lines.length));
    for (const [share, i, j, h] of lines.slice(-MOST_LINES)) {
      const negative = look.signed && tables[h].values[i * C + j] < 0;
      const stroke = look.signed ? signedInk(theme, negative) : inkOf(i, j, h);
      const beside = several ? (h / (heads.length - 1) - 0.5) * Math.min(0.5 * row, 14) : 0;
      pen.curve(tokens + 8, middle(i) + beside, left - tokens - 8, middle(j) + beside, stroke, 0.6 + 2.6 * share * faint, faint * (0.08 + (0.87 * share) / strongest));
    }
  }
  function middle(i: number): number {
    return place.y + (i + 0.5) * row;
  }
  function drawTokens(pen: Pen, r: number | null, c: number | null): void {
    const muted = { size: 11, fill: theme.muted };
    pen.text("query →", tokens, place.y - 14, { ...muted, align: "right" });
    pen.text("→ key", left - tokens, place.y - 14, muted);
    if (several) drawNames(pen);
    for (const [side, x, most] of [[rows, tokens, m], [columns, left - tokens, n]] as const) {
      const [first, end] = [generated(side), x === tokens ? 0 : left];
      if (first === null || first >= most) continue;
      pen.line(x, middle(first - 0.5), end, middle(first - 0.5), theme.muted, 0.75);
    }
    const size = clamp(Math.floor(row - 1), 8, 13);
    const write = (label: string, i: number, align: "left" | "right", pointed: boolean) => {
      const bold = pointed || found(label);
      const text = clip(literal(label), tokens - 4, (some) => measure(some, size, bold));
      const fill = theme.ink;
      pen.text(text, align === "right" ? tokens : left - tokens, middle(i), { size, fill, align, bold });
    };
    for (let j = 0; r !== null && c === null && j < n; j++) shade(pen, left - tokens - 3, r, j, j);
    for (let i = 0; c !== null && r === null && i < m; i++) shade(pen, 3, i, c, i);
    every(m, row, r, (i) => write(rows.units.labels[rows.from + i], i, "right", i === r));
    every(n, row, c, (j) => write(columns.units.labels[columns.from + j], j, "left", j === c));
    if (R > m || C > n) pen.text(`first ${MOST_TOKENS} of ${Math.max(R, C)}: zoom the matrix for others`, 0, place.y + lower + 12, muted);
  }
  /** Shade tokens by the weights to or from the selected one. */
  function shade(pen: Pen, x: number, i: number, j: number, line: number): void {
    const value = mean[i * C + j];
    const share = Math.min(1, Math.abs(value) / scaleAt(scale, all, i * C + j).high);
    pen.rect(x, middle(line) - row / 2 + 0.5, tokens, row - 1, look.signed ? signedInk(theme, value < 0) : inkOf(i, j, 0), 0.45 * share);
  }
  /** The color of a line; of one head, lines of special tokens are gray, as their cells are. */
  function inkOf(i: number, j: number, h: number): string {
    const isGray = !several && scaleAt(scale, all, i * C + j) !== scale;
    return isGray ? theme.muted : theme.lines[h % theme.lines.length];
  }
  function drawNames(pen: Pen): void {
    const each = Math.min(30, (left - 2 * tokens) / heads.length);
    heads.forEach((head, h) => {
      const x = left / 2 + (h - (heads.length - 1) / 2) * each;
      pen.rect(x - each / 2 + 1, place.y - 8, each - 2, 3, theme.lines[h % theme.lines.length]);
      if (each > 13) pen.text(String(head), x, place.y - 16, { size: 10, fill: theme.muted, align: "center" });
    });
  }
  function hit(x: number, y: number): Spot | null {
    const cell = cells.at(x, y);
    if (cell) {
      const row = cell.row === undefined ? undefined : rows.from + cell.row;
      return { part: "matrix", row, column: cell.column === undefined ? undefined : columns.from + cell.column };
    }
    const sentences = written?.cell(x, y);
    if (sentences) return { part: "sentences", sentences };
    const word = written?.word(x, y) ?? null;
    if (word !== null) return { part: "lines", row: rows.from + word };
    if (written || !inside(place, x, y)) return null;
    const i = Math.floor((y - place.y) / row);
    if (x <= tokens + 8 && i < m) return { part: "lines", row: rows.from + i };
    return x >= left - tokens - 8 && i < n ? { part: "lines", column: columns.from + i } : null;
  }
  function say({ row, column, sentences }: Spot): Line[] {
    if (sentences) return written ? written.say(sentences) : [];
    const where = [`${name.toLowerCase()}${several ? ", mean" : ""}`];
    if (row !== undefined && column !== undefined) {
      const [r, c] = [row - rows.from, column - columns.from];
      const value = (look.signed ? number : weight)(mean[r * C + c], errors[r]);
      const [q, k] = [rows.units.positions[row], columns.units.positions[column]];
      const each = several && heads.map((head, h) => `${head}: ${number(tables[h].values[r * C + c], tables[h].errors[r])}`);
      const lines: Line[] = [[...pair(look, row, column), `  ${value}`], [`query ${span(q)}, key ${span(k)}`], where];
      if (each) for (let h = 0; h < each.length; h += 4) lines.push([each.slice(h, h + 4).join("   ")]);
      return lines;
    }
    return row !== undefined ? [...strongest(row, true), where] : column !== undefined ? [...strongest(column, false), where] : [];
  }
  /** List the three largest weights of a token. */
  function strongest(unit: number, gives: boolean): Line[] {
    const at = unit - (gives ? rows : columns).from;
    const value = (other: number) => (gives ? mean[at * C + other] : mean[other * C + at]);
    const order = Array.from({ length: gives ? C : R }, (_, other) => other).sort((a, b) => value(b) - value(a));
    return order.slice(0, 3).map((other) => {
      const [r, c] = gives ? [at, other] : [other, at];
      return [...pair(look, rows.from + r, columns.from + c), `  ${(look.signed ? number : weight)(value(other), errors[r])}`];
    });
  }
  function press({ row, column }: Spot): Partial<typeof state> {
    const query = row === undefined ? null : rows.units.positions[row][0];
    const key = column === undefined ? null : columns.units.positions[column][0];
    if (query === null && key === null) return { lock: false };
    const again = state.lock && state.query === query && state.key === key;
    return again ? { lock: false, key: null } : { query, key, lock: true };
  }
  function place_(at: Spot): [number, number] | null {
    if (at.sentences) return written ? written.middle(at.sentences) : null;
    const r = at.row === undefined ? null : at.row - rows.from;
    const c = at.column === undefined ? null : at.column - columns.from;
    if (written && at.part === "lines" && r !== null && c === null) return written.center(r);
    if (at.part === "lines" && r !== null && c === null && r < m) return [tokens - 8, middle(r)];
    if (at.part === "lines" && c !== null && r === null && c < n) return [left - tokens + 8, middle(c)];
    const isSeen = (r === null || (r >= 0 && r < R)) && (c === null || (c >= 0 && c < C));
    return isSeen ? cells.center(r, c) : null;
  }
  return {
    height, draw, hit, say, press,
    label: `${title}: lines between ${R} queries and ${C} keys, and their matrix`,
    place: place_,
    move: (at, right, down) => ({
      part: "matrix",
      row: clamp((at?.row ?? rows.from) + (at ? down : 0), rows.from, rows.to - 1),
      column: clamp((at?.column ?? columns.from) + (at ? right : 0), columns.from, columns.to - 1),
    }),
    map: cells.cells,
  };
}
