/** The visible token range of a long map. */

import type { State } from "./state";

export type Range = [number, number, number, number];
const FEWEST = 4;

/** Zoom around a point, given in fractions of the visible range; a factor below 1 zooms in. */
export function zoomed([a, b, c, d]: Range, [m, n]: [number, number], [down, right]: [number, number], factor: number): Range {
  const side = (first: number, end: number, size: number, share: number): [number, number] => {
    const wanted = Math.min(size, Math.max(Math.min(FEWEST, size), (end - first) * factor));
    const count = factor < 1 ? Math.floor(wanted) : Math.ceil(wanted);
    const start = Math.round(first + share * (end - first) - share * count);
    return within(start, count, size);
  };
  return [...side(a, b, m, down), ...side(c, d, n, right)];
}

/** Shift the visible range by some tokens. */
export function panned([a, b, c, d]: Range, [m, n]: [number, number], down: number, right: number): Range {
  return [...within(a + Math.round(down), b - a, m), ...within(c + Math.round(right), d - c, n)];
}

/** Shift the visible range to include a query or a key. */
export function including(range: State["range"], [m, n]: [number, number], query: number | null, key: number | null): State["range"] {
  if (!range) return null;
  const [a, b, c, d] = range;
  const side = (first: number, end: number, size: number, at: number | null) =>
    at === null || (at >= first && at < end) ? ([first, end] as const) : within(at - Math.floor((end - first) / 2), end - first, size);
  return [...side(a, b, m, query), ...side(c, d, n, key)];
}

function within(start: number, count: number, size: number): [number, number] {
  const first = Math.max(0, Math.min(start, size - count));
  return [first, first + count];
}
