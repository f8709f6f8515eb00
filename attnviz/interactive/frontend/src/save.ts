/** Save a view as a file: the visible picture with its caption and verdict. */

import type { Theme } from "./colors";
import { download } from "./dom";
import { CanvasPen, SvgPen, wrap, type Pen } from "./pen";
import type { Scene } from "./scene";

const MARGIN = 16;
const [SIZE, LINE] = [11, 16];

export interface Caption {
  verdict: string;
  isProven: boolean;
  lines: string[];
}

export function save(kind: "svg" | "png", name: string, scene: Scene, width: number, theme: Theme, caption: Caption): void {
  const said = caption.lines.flatMap((line) => wrap(line, width, SIZE));
  const verdict = wrap(caption.verdict, width, SIZE);
  const height = scene.height + (said.length + verdict.length) * LINE + LINE;
  const draw = (pen: Pen) => {
    pen.rect(-MARGIN, -MARGIN, width + 2 * MARGIN, height + 2 * MARGIN, theme.ground);
    scene.draw(pen, null, 0);
    const write = (text: string, n: number, fill: string) => pen.text(text, 0, scene.height + (n + 1) * LINE, { size: SIZE, fill });
    said.forEach((line, n) => write(line, n, theme.muted));
    verdict.forEach((line, n) => write(line, said.length + n, caption.isProven ? theme.ink : theme.accent));
  };
  if (kind === "svg") {
    const pen = new SvgPen(width + 2 * MARGIN, height + 2 * MARGIN);
    pen.root.setAttribute("viewBox", [-MARGIN, -MARGIN, width + 2 * MARGIN, height + 2 * MARGIN].join(" "));
    draw(pen);
    download(`${name}.svg`, new Blob([pen.toString()], { type: "image/svg+xml" }));
    return;
  }
  const canvas = document.createElement("canvas");
  const fine = Math.min(3, 16000 / Math.max(width + 2 * MARGIN, height + 2 * MARGIN));
  [canvas.width, canvas.height] = [(width + 2 * MARGIN) * fine, (height + 2 * MARGIN) * fine];
  const context = canvas.getContext("2d")!;
  context.scale(fine, fine);
  context.translate(MARGIN, MARGIN);
  draw(new CanvasPen(context));
  canvas.toBlob((blob) => blob && download(`${name}.png`, blob));
}
