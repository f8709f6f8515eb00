/** One drawing interface with two back ends: a canvas for the screen, and an SVG to save. */

export const FAMILY = 'system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", "DejaVu Sans", sans-serif';

export interface Words {
  size?: number;
  fill: string;
  align?: "left" | "center" | "right";
  bold?: boolean;
  /** Rotated, reading upward. */
  turned?: boolean;
}
export interface Pen {
  rect(x: number, y: number, w: number, h: number, fill: string, opacity?: number): void;
  frame(x: number, y: number, w: number, h: number, stroke: string, width?: number): void;
  line(x1: number, y1: number, x2: number, y2: number, stroke: string, width?: number): void;
  /** A curve with horizontal ends. */
  curve(x1: number, y1: number, x2: number, y2: number, stroke: string, width: number, opacity: number): void;
  /** An arch between two points, with vertical ends, that rises by `height` above their middle. */
  arch(x1: number, y1: number, x2: number, y2: number, height: number, stroke: string, width: number): void;
  /** A filled polygon. */
  area(points: [number, number][], fill: string): void;
  /** Text centered vertically on y; `text` is literal. */
  text(text: string, x: number, y: number, how: Words): void;
  /** Part of a picture, without smoothing the cells. */
  image(picture: HTMLCanvasElement, from: [number, number, number, number], x: number, y: number, w: number, h: number): void;
}

const ruler = document.createElement("canvas").getContext("2d")!;

function font(size = 12, bold = false): string {
  return `${bold ? "600 " : ""}${size}px ${FAMILY}`;
}

/** Return the drawn width of a text. */
export function measure(text: string, size = 12, bold = false): number {
  const wanted = font(size, bold);
  if (ruler.font !== wanted) ruler.font = wanted;
  return ruler.measureText(text).width;
}

/** Wrap a text into lines of a maximum width. */
export function wrap(text: string, width: number, size: number, bold = false): string[] {
  const lines = [""];
  for (const word of text.split(" ")) {
    const longer = `${lines[lines.length - 1]} ${word}`.trim();
    if (!lines[lines.length - 1] || measure(longer, size, bold) <= width) lines[lines.length - 1] = longer;
    else lines.push(word);
  }
  return lines;
}

export class CanvasPen implements Pen {
  constructor(private to: CanvasRenderingContext2D) {}

  rect(x: number, y: number, w: number, h: number, fill: string, opacity = 1): void {
    this.to.globalAlpha = opacity;
    this.to.fillStyle = fill;
    this.to.fillRect(x, y, w, h);
    this.to.globalAlpha = 1;
  }
  frame(x: number, y: number, w: number, h: number, stroke: string, width = 1): void {
    this.to.strokeStyle = stroke;
    this.to.lineWidth = width;
    this.to.strokeRect(x, y, w, h);
  }
  line(x1: number, y1: number, x2: number, y2: number, stroke: string, width = 1): void {
    this.stroke(stroke, width, 1, () => {
      this.to.moveTo(x1, y1);
      this.to.lineTo(x2, y2);
    });
  }
  curve(x1: number, y1: number, x2: number, y2: number, stroke: string, width: number, opacity: number): void {
    const middle = (x1 + x2) / 2;
    this.stroke(stroke, width, opacity, () => {
      this.to.moveTo(x1, y1);
      this.to.bezierCurveTo(middle, y1, middle, y2, x2, y2);
    });
  }
  arch(x1: number, y1: number, x2: number, y2: number, height: number, stroke: string, width: number): void {
    const rise = (4 / 3) * height;
    this.stroke(stroke, width, 1, () => {
      this.to.moveTo(x1, y1);
      this.to.bezierCurveTo(x1, y1 - rise, x2, y2 - rise, x2, y2);
    });
  }
  area(points: [number, number][], fill: string): void {
    this.to.fillStyle = fill;
    this.to.beginPath();
    for (const [x, y] of points) this.to.lineTo(x, y);
    this.to.fill();
  }
  private stroke(stroke: string, width: number, opacity: number, path: () => void): void {
    this.to.globalAlpha = opacity;
    this.to.strokeStyle = stroke;
    this.to.lineWidth = width;
    this.to.beginPath();
    path();
    this.to.stroke();
    this.to.globalAlpha = 1;
  }
  text(text: string, x: number, y: number, { size, fill, align = "left", bold, turned }: Words): void {
    this.to.font = font(size, bold);
    this.to.fillStyle = fill;
    this.to.textAlign = align;
    this.to.textBaseline = "middle";
    this.to.direction = "ltr";
    if (!turned) return this.to.fillText(text, x, y);
    this.to.save();
    this.to.translate(x, y);
    this.to.rotate(-Math.PI / 2);
    this.to.fillText(text, 0, 0);
    this.to.restore();
  }
  image(picture: HTMLCanvasElement, [sx, sy, sw, sh]: [number, number, number, number], x: number, y: number, w: number, h: number): void {
    const shrunk = Math.abs(this.to.getTransform().a) * w < sw;
    this.to.imageSmoothingEnabled = shrunk;
    this.to.imageSmoothingQuality = "high";
    this.to.drawImage(picture, sx, sy, sw, sh, x, y, w, h);
  }
}

const SVG = "http://www.w3.org/2000/svg";

export class SvgPen implements Pen {
  readonly root = document.createElementNS(SVG, "svg");

  constructor(width: number, height: number) {
    const size = { width, height, viewBox: `0 0 ${width} ${height}`, "font-family": FAMILY };
    for (const [name, value] of Object.entries(size)) this.root.setAttribute(name, String(value));
  }
  private add(name: string, attributes: Record<string, string | number>): SVGElement {
    const made = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) {
      made.setAttribute(key, typeof value === "number" ? String(Math.round(value * 100) / 100) : value);
    }
    return this.root.appendChild(made);
  }
  rect(x: number, y: number, width: number, height: number, fill: string, opacity = 1): void {
    this.add("rect", { x, y, width, height, fill, ...(opacity < 1 && { opacity }) });
  }
  frame(x: number, y: number, width: number, height: number, stroke: string, wide = 1): void {
    this.add("rect", { x, y, width, height, stroke, "stroke-width": wide, fill: "none" });
  }
  line(x1: number, y1: number, x2: number, y2: number, stroke: string, width = 1): void {
    this.add("line", { x1, y1, x2, y2, stroke, "stroke-width": width });
  }
  curve(x1: number, y1: number, x2: number, y2: number, stroke: string, width: number, opacity: number): void {
    const [a, b, c, m, e] = [x1, y1, x2, (x1 + x2) / 2, y2].map((each) => Math.round(each * 10) / 10);
    const d = `M${a},${b}C${m},${b} ${m},${e} ${c},${e}`;
    this.add("path", { d, stroke, "stroke-width": width, opacity, fill: "none" });
  }
  arch(x1: number, y1: number, x2: number, y2: number, height: number, stroke: string, width: number): void {
    const [a, b, c, d, up, down] = [x1, y1, x2, y2, y1 - (4 / 3) * height, y2 - (4 / 3) * height].map((each) => Math.round(each * 10) / 10);
    this.add("path", { d: `M${a},${b}C${a},${up} ${c},${down} ${c},${d}`, stroke, "stroke-width": width, fill: "none" });
  }
  area(points: [number, number][], fill: string): void {
    this.add("polygon", { points: points.map(([x, y]) => `${Math.round(x * 10) / 10},${Math.round(y * 10) / 10}`).join(" "), fill });
  }
  text(text: string, x: number, y: number, { size = 12, fill, align = "left", bold, turned }: Words): void {
    const anchor = { left: "start", center: "middle", right: "end" }[align];
    this.add("text", {
      x, y, fill, "font-size": size, "text-anchor": anchor, "dominant-baseline": "central",
      ...(bold && { "font-weight": 600 }),
      ...(turned && { transform: `rotate(-90 ${Math.round(x * 10) / 10} ${Math.round(y * 10) / 10})` }),
    }).textContent = text;
  }
  image(picture: HTMLCanvasElement, [sx, sy, sw, sh]: [number, number, number, number], x: number, y: number, width: number, height: number): void {
    const part = document.createElement("canvas");
    [part.width, part.height] = [sw, sh];
    part.getContext("2d")!.drawImage(picture, sx, sy, sw, sh, 0, 0, sw, sh);
    const href = part.toDataURL("image/png");
    this.add("image", { x, y, width, height, href, preserveAspectRatio: "none", "image-rendering": "pixelated" });
  }
  /** Return the file; the serializer escapes the tokens. */
  toString(): string {
    return new XMLSerializer().serializeToString(this.root);
  }
}
