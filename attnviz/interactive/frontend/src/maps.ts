/** Rows and columns of a map: words or pieces, with or without special tokens, single or pooled. */

import type { Axis } from "./data";

/** The rows or columns of a map: the positions that each one merges, and its label. */
export interface Units {
  labels: string[];
  special: boolean[];
  /** Whether the model read an unknown token: the label then says so. */
  unknown: boolean[];
  positions: number[][];
  /** The unit of each position; −1 if the position was removed. */
  of: Int32Array;
  /** The first unit of the second text of a pair. */
  second: number | null;
  /** The first unit that the model generated. */
  generated: number | null;
  /** The positions among which rows are renormalized, if they are not only those of the units. */
  counted?: Int32Array;
}
/** The visible units, from the first up to but not including the last. */
export interface Side {
  units: Units;
  from: number;
  to: number;
}

/** Merge the pieces of each word (or keep them single); `whole` includes special tokens. */
export function unitsOf(axis: Axis, words: boolean, whole: boolean): Units {
  const special = new Set(axis.special);
  const joined = new Map<string, number[]>();
  axis.labels.forEach((_, position) => {
    if (!whole && special.has(position)) return;
    const word = words ? axis.words[position] : null;
    const name = word === null ? `piece ${position}` : `word ${word}`;
    joined.set(name, [...(joined.get(name) ?? []), position]);
  });
  const positions = [...joined.values()];
  const label = ([first]: number[]) => {
    const word = words ? axis.words[first] : null;
    return word === null ? axis.labels[first] : axis.wordLabels[word];
  };
  return make(axis, positions, positions.map(label), axis.unknown);
}

/** Return the cells of a pooled map, each labeled with its first token. */
export function cellsOf(axis: Axis, cell: number, count: number): Units {
  const size = axis.labels.length;
  const positions = Array.from({ length: count }, (_, c) =>
    Array.from({ length: Math.max(0, Math.min(cell, size - c * cell)) }, (_, i) => c * cell + i),
  );
  const label = ([first]: number[]) => {
    const word = axis.words[first] ?? null;
    return `${(word === null ? axis.labels[first] : axis.wordLabels[word]) ?? ""} …`;
  };
  return make(axis, positions, positions.map(label));
}

function make(axis: Axis, positions: number[][], labels: string[], unread: number[] = []): Units {
  const of = new Int32Array(axis.labels.length).fill(-1);
  positions.forEach((some, unit) => some.forEach((position) => (of[position] = unit)));
  const special = new Set(axis.special);
  const isSpecial = (some: number[]) => some.length > 0 && some.every((at) => special.has(at));
  const unitOf = (position: number | null) => {
    const unit = position === null ? -1 : positions.findIndex(([first]) => first >= position);
    return unit > 0 ? unit : null;
  };
  const unknown = positions.map((some) => unread.some((at) => some.includes(at)));
  return { labels, positions, of, special: positions.map(isSpecial), unknown, second: unitOf(axis.second), generated: unitOf(axis.generated) };
}

/** Return the units that have a position in first ≤ position < end. */
export function part(units: Units, first: number, end: number): Side {
  const seen = units.positions.map((some) => some.some((at) => at >= first && at < end));
  const from = Math.max(0, seen.indexOf(true));
  return { units, from, to: Math.max(from, seen.lastIndexOf(true) + 1) };
}

/** Return the unit of a position, or the nearest unit if the position was removed. */
export function unitAt(units: Units, position: number): number {
  for (let far = 0; far < units.of.length; far++) {
    for (const at of [position + far, position - far]) if (units.of[at] >= 0) return units.of[at];
  }
  return 0;
}

/** Label the units of two compared texts; both labels if they differ. */
export function paired(units: Units, other: Units): Units {
  const labels = units.labels.map((label, i) => (label === other.labels[i] ? label : `${label} | ${other.labels[i]}`));
  return { ...units, labels };
}

export function isAlike(units: Units, other: Units): boolean {
  return String(units.positions) === String(other.positions);
}

/** Return the units that begin at some positions, in their order. */
export function chosenUnits(units: Units, positions: number[]): Units {
  const some = positions.map((position) => units.of[position]);
  const of = new Int32Array(units.of.length).fill(-1);
  some.forEach((unit, n) => units.positions[unit].forEach((position) => (of[position] = n)));
  const at = <T>(all: T[]) => some.map((unit) => all[unit]);
  return { labels: at(units.labels), special: at(units.special), unknown: at(units.unknown), positions: at(units.positions), of, second: null, generated: null, counted: units.of };
}

/** What the cells of a map are. */
export interface Marks {
  /** 1 where no piece of the query may read a piece of the key. */
  masked: Uint8Array;
  /** 1 where a weight says little: of special and unknown tokens, of queries that may read one key only, and of the first word of a causal model. */
  uninformative: Uint8Array;
}
/** Weights of a map's visible rows and columns, and their maximum error by row. */
export interface Table extends Marks {
  values: Float32Array;
  errors: Float32Array;
  /** The share of each row's weight that removed tokens have left; 1 if none were removed. */
  kept: Float32Array;
}

/**
 * Merge weights of pieces: sum over each column's pieces, mean over each row's.
 *
 * `row` returns the weights of one position over all positions, with an error of at most `error`.
 * `renormalize`: rows sum to 1 again after special tokens are removed.
 */
export function merge(
  row: (position: number) => ArrayLike<number>,
  error: number,
  rows: Side,
  columns: Side,
  renormalize: boolean,
): Table {
  const [R, C] = [rows.to - rows.from, columns.to - columns.from];
  const table = {
    values: new Float32Array(R * C), errors: new Float32Array(R), kept: new Float32Array(R).fill(1),
    masked: new Uint8Array(R * C), uninformative: new Uint8Array(R * C),
  };
  const { of, positions, special, unknown, counted = of } = columns.units;
  // Many heads of causal models rest on the first word: the first query reads nothing else.
  const sink = !special[0] && positions.length > 1 && Array.from(row(0)).every((weight, j) => !weight === j > 0);
  const widest = positions.reduce((most, { length }) => Math.max(most, length), 1);
  for (let r = 0; r < R; r++) {
    const pieces = rows.units.positions[rows.from + r];
    const sums = new Float64Array(positions.length);
    let left = 0;
    for (const piece of pieces) {
      const weights = row(piece);
      for (let j = 0; j < of.length; j++) {
        if (of[j] >= 0) sums[of[j]] += weights[j] / pieces.length;
        if (counted[j] >= 0) left += weights[j] / pieces.length;
      }
    }
    const kept = renormalize ? left || 1 : 1;
    table.kept[r] = renormalize ? left : 1;
    const readable = sums.reduce((count, sum) => count + Number(sum !== 0), 0);
    const says = !rows.units.special[rows.from + r] && !rows.units.unknown[rows.from + r] && (readable !== 1 || positions.length === 1);
    for (let c = 0; c < C; c++) {
      table.values[r * C + c] = sums[columns.from + c] / kept;
      table.masked[r * C + c] = Number(sums[columns.from + c] === 0);
      table.uninformative[r * C + c] = Number(!says || special[columns.from + c] || unknown[columns.from + c] || (sink && columns.from + c === 0));
    }
    // Most of the errors in the divisor cancel.
    const divided = renormalize ? Math.sqrt(positions.length) : 0;
    table.errors[r] = (error * (widest + divided)) / kept;
  }
  return table;
}
