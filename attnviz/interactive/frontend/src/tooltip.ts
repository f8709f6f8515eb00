/** The tooltip of the pointed place, on screen and for screen readers. */

import { el, enlarged } from "./dom";
import type { Line } from "./scene";

export interface Tooltip {
  nodes: HTMLElement[];
  show(lines: Line[], x: number, y: number, width: number): void;
  hide(): void;
}

export function tooltip(): Tooltip {
  const box = el("div", { role: "tooltip", class: "tip" });
  const spoken = el("div", { class: "spoken", "aria-live": "polite" });
  box.hidden = true;
  let waiting = 0;
  return {
    nodes: [box, spoken],
    show(lines, x, y, width) {
      box.replaceChildren(...lines.map((line) => el("div", {}, ...line.map((part) => (typeof part === "string" ? part : el("bdi", {}, part.token))))));
      box.hidden = false;
      box.style.left = `${Math.max(0, Math.min(x + 14, width - box.offsetWidth))}px`;
      const top = box.parentElement!.getBoundingClientRect().top / enlarged(box);
      const above = top + y + 18 + box.offsetHeight > innerHeight / enlarged(box) && top + y > box.offsetHeight;
      box.style.top = `${above ? y - box.offsetHeight - 10 : y + 18}px`;
      clearTimeout(waiting); // announce once the pointer rests
      waiting = setTimeout(() => (spoken.textContent = box.innerText), 150);
    },
    hide() {
      box.hidden = true;
    },
  };
}
