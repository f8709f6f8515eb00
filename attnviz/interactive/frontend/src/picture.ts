/** The picture that the model read, lit where a word or a patch looks. */

import type { Theme } from "./colors";
import type { Axis, Result } from "./data";
import { el } from "./dom";
import type { Look } from "./reader";
import type { Drawing } from "./save";
import type { Spread, Word } from "./spread";

const SHARP = 768; // pixels of width of the drawing
const FRAME = 5; // pixels, inside a patch
const DIM = 0.8; // share of the light that a patch without weight loses

export interface Picture {
  node: HTMLElement;
  follow(look: Look, chosen: Word | null): void;
  /** Light the patches by the weights of a word or a patch; null lights all of them. */
  paint(spread: Spread | null, pointed: Word | null, theme: Theme): void;
  /** Return the picture as it is lit, as a drawing, for a file; null if none is shown. */
  drawing(): Drawing | null;
}

/** The patches of one side of a map: a grid, and the position of each of its cells. */
interface Patches {
  side: Word["side"];
  rows: number;
  columns: number;
  positions: Map<number, number>;
}

export function picture(results: Result[], on: { ready(): void; point(word: Word | null): void; press(word: Word): void }): Picture {
  const canvas = el("canvas", { tabindex: 0, role: "application", "aria-label": "The picture: arrow keys choose a patch" });
  const context = canvas.getContext("2d")!;
  const node = el("div", { class: "picture" });
  node.hidden = true;
  const images = new Map<string, HTMLImageElement>();
  for (const source of results.flatMap(({ image }) => image ?? [])) {
    const image = new Image();
    image.src = source;
    images.set(source, image);
    void image.decode().then(on.ready);
  }
  if (images.size) node.append(canvas);
  let image: HTMLImageElement | undefined;
  let patches: Patches | null = null;
  let chosen: Word | null = null;
  let at = 0; // the patch that arrow keys have reached

  /** Return the patch of the grid under the pointer. */
  function cellAt({ clientX, clientY }: MouseEvent): number {
    const { left, top, width, height } = canvas.getBoundingClientRect();
    const part = (share: number, count: number) => Math.max(0, Math.min(count - 1, Math.floor(share * count)));
    return part((clientY - top) / height, patches!.rows) * patches!.columns + part((clientX - left) / width, patches!.columns);
  }
  function wordAt(cell: number): Word | null {
    const position = patches?.positions.get(cell);
    return position === undefined ? null : { side: patches!.side, position };
  }
  canvas.addEventListener("pointermove", (event) => on.point(wordAt((at = cellAt(event)))));
  canvas.addEventListener("pointerdown", (event) => on.point(wordAt((at = cellAt(event)))));
  canvas.addEventListener("pointerleave", () => on.point(null));
  canvas.addEventListener("blur", () => on.point(null));
  const press = () => {
    const word = wordAt(at);
    if (word) on.press(word);
  };
  canvas.addEventListener("click", press);
  canvas.addEventListener("keydown", (event) => {
    const { rows, columns } = patches!;
    const step = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: columns, ArrowUp: -columns }[event.key];
    if (event.key === "Enter") press();
    if (step === undefined) return;
    event.preventDefault();
    at = Math.max(0, Math.min(rows * columns - 1, at + step));
    on.point(wordAt(at));
  });

  return {
    node,
    follow(look, word) {
      const { result, stack } = look;
      const [queries, keys] = [result.axes[stack.queries], result.axes[stack.keys]];
      patches = patchesOf(queries, "query") ?? patchesOf(keys, "key");
      image = images.get(result.image ?? "");
      node.hidden = !image?.naturalWidth || patches === null;
      chosen = word;
    },
    paint(spread, pointed, theme) {
      if (node.hidden || !image || !patches) return;
      const scale = SHARP / image.naturalWidth;
      [canvas.width, canvas.height] = [SHARP, Math.round(image.naturalHeight * scale)];
      const [w, h] = [canvas.width / patches.columns, canvas.height / patches.rows];
      context.drawImage(image, 0, 0, canvas.width, canvas.height);
      const alike = spread && (spread.side === patches.side || spread.alone);
      let most = 0;
      if (alike) for (const position of patches.positions.values()) most = Math.max(most, Math.abs(spread.of(position)));
      const frame = (word: Word | null) => word && patches!.positions.forEach((position, cell) => {
        if (position !== word.position || (word.side !== patches!.side && !spread?.alone)) return;
        context.strokeStyle = theme.query;
        context.lineWidth = FRAME;
        context.strokeRect((cell % patches!.columns) * w + FRAME / 2, Math.floor(cell / patches!.columns) * h + FRAME / 2, w - FRAME, h - FRAME);
      });
      if (alike && most) {
        patches.positions.forEach((position, cell) => {
          context.globalAlpha = DIM * (1 - Math.min(1, Math.abs(spread.of(position)) / most));
          context.fillStyle = "#000";
          context.fillRect((cell % patches!.columns) * w, Math.floor(cell / patches!.columns) * h, w, h);
        });
        context.globalAlpha = 1;
      }
      frame(chosen);
      frame(pointed);
    },
    drawing() {
      if (node.hidden || !image) return null;
      const width = canvas.clientWidth;
      const height = (width * canvas.height) / canvas.width;
      const small = document.createElement("canvas");
      [small.width, small.height] = [image.naturalWidth, image.naturalHeight].map((side) => Math.round(side * Math.max(1, width / image!.naturalWidth)));
      small.getContext("2d")!.drawImage(canvas, 0, 0, small.width, small.height);
      return { width, height, draw: (pen, left, top) => pen.image(small, [0, 0, small.width, small.height], left, top, width, height) };
    },
  };
}

function patchesOf({ patches }: Axis, side: Word["side"]): Patches | null {
  const known = (patches ?? []).flatMap((patch, position) => (patch ? [{ patch, position }] : []));
  if (!known.length) return null;
  const [rows, columns] = [0, 1].map((n) => 1 + known.reduce((most, { patch }) => Math.max(most, patch[n]), 0));
  return { side, rows, columns, positions: new Map(known.map(({ patch, position }) => [patch[0] * columns + patch[1], position])) };
}

/** Whether most positions are patches, so that a list of them says nothing. */
export function isPicture({ patches }: Axis): boolean {
  return patches !== null && 2 * patches.filter((patch) => patch).length > patches.length;
}
