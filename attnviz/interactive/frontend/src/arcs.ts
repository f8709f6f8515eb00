/** Arcs above a sentence, each from a word that looks to one that is looked at. */

import type { Theme } from "./colors";
import { measure, type Pen } from "./pen";

/** A weight between two columns: from the query to the key. */
export interface Link {
  query: number;
  key: number;
  weight: number;
  ink: string;
  /** The percentage above the arc. */
  said?: string;
  isClaim?: boolean;
}

const APART = 5; // pixels between the feet on one word
const SAID = 15; // pixels of height of a percentage

/** Draw arcs below the height `room` above the tops of the labels. */
export function drawArcs(pen: Pen, theme: Theme, links: Link[], top: (column: number) => [number, number], room: number): void {
  const far = (link: Link) => Math.abs(link.query - link.key);
  const longest = Math.max(1, ...links.map(far));
  const feet = new Map<Link, Record<"query" | "key", number>>(links.map((link) => [link, { query: 0, key: 0 }]));
  for (const word of new Set(links.flatMap(({ query, key }) => [query, key]))) {
    // To the left from near to far, then to the right from far to near: so no arcs cross above a word.
    const ends = links.flatMap((link) => (["query", "key"] as const).filter((side) => link[side] === word)
      .map((side) => ({ foot: feet.get(link)!, side, to: link.query + link.key - 2 * word })));
    ends.sort((a, b) => Math.sign(a.to) - Math.sign(b.to) || b.to - a.to);
    ends.forEach(({ foot, side }, n) => (foot[side] = (n - (ends.length - 1) / 2) * APART));
  }
  for (const link of [...links].sort((a, b) => Number(Boolean(a.said)) - Number(Boolean(b.said)) || a.weight - b.weight)) {
    const { query, key, weight, ink, said } = link;
    const [[x1, y1], [x2, y2]] = [top(query), top(key)];
    const [from, to, wide] = [x1 + feet.get(link)!.query, x2 + feet.get(link)!.key, 2.4 + 2 * weight];
    const height = Math.min(8 + (room - 12 - SAID) * Math.sqrt(far(link) / longest), 12 + Math.abs(to - from));
    pen.arch(from, y1, to, y2 - 5, height, ink, 0.6 + 3.4 * weight);
    pen.area([[to, y2], [to - wide, y2 - 6], [to + wide, y2 - 6]], ink);
    if (!said) continue;
    const [x, y, w] = [(from + to) / 2, (y1 + y2 - 5) / 2 - height - 9, measure(said, 12, true)];
    pen.rect(x - w / 2 - 3, y - 7, w + 6, 14, theme.ground, 0.85);
    pen.text(said, x, y, { size: 12, bold: true, fill: link.isClaim ? ink : theme.ink, align: "center" });
  }
}
