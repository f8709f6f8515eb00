/** Save a view as a file: the visible picture with its caption and verdict. */

import type { Theme } from "./colors";
import { download } from "./dom";
import { CanvasPen, SvgPen, wrap, type Pen } from "./pen";
import type { Scene } from "./scene";

const [MARGIN, GAP] = [16, 20];
const [SIZE, LINE] = [11, 16];

export interface Caption {
  verdict: string;
  isProven: boolean;
  lines: string[];
}
/** What a page shows beside the view. */
export interface Drawing {
  width: number;
  height: number;
  draw(pen: Pen, left: number, top: number): void;
}

/** `image`: the picture that the model read, beside the view or, if `stacked`, above it. `sentence`: returns the text above all. */
export interface Beside {
  image: Drawing | null;
  stacked: boolean;
  sentence(width: number): Drawing | null;
}

export function save(kind: "svg" | "png", name: string, scene: Scene, width: number, theme: Theme, caption: Caption, { image, stacked, sentence }: Beside): void {
  // The view stands at 0, 0, so what is beside it or above it has negative places.
  const left = image && !stacked ? image.width + GAP : 0;
  const whole = left + width;
  const text = sentence(whole);
  const over = image && stacked ? image.height + GAP : 0;
  const above = over + (text ? text.height + GAP : 0);
  const said = caption.lines.flatMap((line) => wrap(line, whole, SIZE));
  const verdict = wrap(caption.verdict, whole, SIZE);
  const below = Math.max(scene.height, image && !stacked ? image.height : 0);
  const height = above + below + (said.length + verdict.length) * LINE + LINE;
  const [x, y, w, h] = [-left - MARGIN, -above - MARGIN, whole + 2 * MARGIN, height + 2 * MARGIN];
  const draw = (pen: Pen) => {
    pen.rect(x, y, w, h, theme.ground);
    text?.draw(pen, -left, -above);
    image?.draw(pen, -left, -over);
    scene.draw(pen, null, 0);
    const write = (line: string, n: number, fill: string) => pen.text(line, -left, below + (n + 1) * LINE, { size: SIZE, fill });
    said.forEach((line, n) => write(line, n, theme.muted));
    verdict.forEach((line, n) => write(line, said.length + n, caption.isProven ? theme.ink : theme.alarm));
  };
  if (kind === "svg") {
    const pen = new SvgPen(w, h);
    pen.root.setAttribute("viewBox", [x, y, w, h].join(" "));
    draw(pen);
    download(`${name}.svg`, new Blob([pen.toString()], { type: "image/svg+xml" }));
    return;
  }
  const canvas = document.createElement("canvas");
  const fine = Math.min(3, 16000 / Math.max(w, h));
  [canvas.width, canvas.height] = [w * fine, h * fine];
  const context = canvas.getContext("2d")!;
  context.scale(fine, fine);
  context.translate(-x, -y);
  draw(new CanvasPen(context));
  canvas.toBlob((blob) => blob && download(`${name}.png`, blob));
}
