/** The text as a flow of tokens with one selected token. */

import type { Theme } from "./colors";
import type { Units } from "./maps";
import { measure, type Pen } from "./pen";
import { clamp, inside, type Box } from "./scene";
import { clip, literal } from "./text";

const SIZE = 12;
const LINE = 22;
const MOST = 160; // tokens; longer texts show those around the selected one

export interface Flow {
  height: number;
  draw(pen: Pen, chosen: number, pointed: number | null): void;
  at(x: number, y: number): number | null;
  /** The token at a number of steps from another. */
  beside(unit: number, steps: number): number;
  place(unit: number): [number, number] | null;
}

export function flow(units: Units, chosen: number, top: number, width: number, theme: Theme, found: (label: string) => boolean): Flow {
  const first = clamp(chosen - MOST / 2, 0, Math.max(0, units.labels.length - MOST));
  const boxes: (Box & { unit: number; text: string })[] = [];
  let [x, y] = [0, top];
  for (let unit = first; unit < Math.min(first + MOST, units.labels.length); unit++) {
    const text = clip(literal(units.labels[unit]), 180, (some) => measure(some, SIZE));
    const w = measure(text, SIZE) + 12;
    if (x + w > width && x > 0) [x, y] = [0, y + LINE];
    boxes.push({ x, y, w, h: LINE - 2, unit, text });
    x += w + 2;
  }
  function draw(pen: Pen, chosen: number, pointed: number | null): void {
    for (const box of boxes) {
      const [is, over] = [box.unit === chosen, box.unit === pointed];
      if (is) pen.rect(box.x, box.y, box.w, box.h, theme.accent);
      if (over) pen.frame(box.x, box.y, box.w, box.h, theme.accent);
      const fill = is ? theme.ground : found(box.text) ? theme.accent : units.special[box.unit] ? theme.muted : theme.ink;
      pen.text(box.text, box.x + 6, box.y + box.h / 2, { size: SIZE, fill, bold: is });
    }
  }
  return {
    height: y + LINE - top + 8,
    draw,
    at: (px, py) => boxes.find((box) => inside(box, px, py))?.unit ?? null,
    beside: (unit, steps) => clamp(unit + steps, first, first + boxes.length - 1),
    place: (unit) => {
      const box = boxes.find((each) => each.unit === unit);
      return box ? [box.x + box.w / 2, box.y + box.h / 2] : null;
    },
  };
}
