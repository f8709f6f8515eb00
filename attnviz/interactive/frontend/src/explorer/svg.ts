/** Create SVG elements, fit them to their place, and find what is near the pointer. */

const SVG = "http://www.w3.org/2000/svg";

export function svg<K extends keyof SVGElementTagNameMap>(tag: K, attributes: Record<string, string | number> = {}, ...children: (Node | string)[]): SVGElementTagNameMap[K] {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, String(value));
  made.append(...children);
  return made;
}

/** Draw when the width of an element is known, and when it changes; its height may follow from the drawing. */
export function fit(box: HTMLElement, draw: () => void): void {
  const ruler = box.appendChild(document.createElement("div")); // without height
  new ResizeObserver(draw).observe(ruler);
}

/** Return the index of the place nearest to a point, if any is within `reach` pixels. */
export function nearest(places: ([x: number, y: number] | null)[], x: number, y: number, reach: number): number | null {
  let [found, least]: [number | null, number] = [null, reach];
  places.forEach((place, n) => {
    const far = place ? Math.hypot(place[0] - x, place[1] - y) : Infinity;
    if (far < least) [found, least] = [n, far];
  });
  return found;
}

/** Return round numbers for the ticks of an axis. */
export function ticks(low: number, high: number, most: number): number[] {
  const raw = (high - low || 1) / most;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((each) => each * power).find((each) => each >= raw)!;
  const first = Math.ceil(low / step - 1e-9);
  return Array.from({ length: Math.floor(high / step + 1e-9) - first + 1 }, (_, n) => Number(((first + n) * step).toPrecision(6)));
}
