/** Create elements without markup: text is always literal. */

type Attributes = Record<string, string | number | boolean | ((event: Event) => void)>;

export function el<K extends keyof HTMLElementTagNameMap>(
  tag: K,
  attributes: Attributes = {},
  ...children: (Node | string)[]
): HTMLElementTagNameMap[K] {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") made.addEventListener(name, value);
    else if (value !== false) made.setAttribute(name, value === true ? "" : String(value));
  }
  made.append(...children);
  return made;
}

/** Scroll a text to an element in it, without scrolling the page. */
export function reveal(element: HTMLElement, text: HTMLElement | null): void {
  if (!text) return;
  const [inner, outer] = [element.getBoundingClientRect(), text.getBoundingClientRect()];
  if (inner.top < outer.top || inner.bottom > outer.bottom) text.scrollTop += (inner.top - outer.top) / enlarged(text) - 30;
}

/** Move the focus among elements with the arrow keys. */
export function step({ key, target }: KeyboardEvent, elements: HTMLElement[]): void {
  const by = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[key];
  const next = by && elements[elements.indexOf(target as HTMLElement) + by];
  if (next) stop(next, elements).focus();
}

/** Make an element the one of several that the Tab key reaches. */
export function stop(element: HTMLElement, elements: HTMLElement[]): HTMLElement {
  for (const other of elements) other.tabIndex = other === element ? 0 : -1;
  return element;
}

/** How many pixels of the window one of an element is: more than one in large type. */
export function enlarged(element: Element): number {
  return element.currentCSSZoom ?? 1;
}

/** Offer a file as a download. */
export function download(name: string, blob: Blob): void {
  const address = URL.createObjectURL(blob);
  const link = el("a", { href: address, download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
}
