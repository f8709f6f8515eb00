/** All heads by layer and number: a second way to choose one. */

import { el } from "../dom";
import { isOpen, type Payload, type State } from "./data";
import type { Roles } from "./roles";
import type { Acts, Part } from "./scatter";
import { fit, svg } from "./svg";

const [LEFT, BOTTOM, GAP, SPACE] = [26, 17, 1, 10]; // pixels; the last between stacks
const [WIDEST, HIGHEST, TALLEST] = [28, 17, 200]; // pixels: width and height of a cell, height of the grid
const STEPS: Record<string, [number, number]> = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };

export function grid({ heads }: Payload, roles: Roles, { change, point }: Acts): Part {
  // A column for each layer, one stack (encoder, decoder, cross-attention) after the other.
  const stacks = [...new Set(heads.map(({ stack = "" }) => stack))];
  const numbers = [...new Set(heads.map(({ head }) => head))].sort((a, b) => a - b);
  const layers = stacks.flatMap((stack) => [...new Set(heads.filter((head) => (head.stack ?? "") === stack).map(({ layer }) => layer))].sort((a, b) => a - b).map((layer) => ({ stack, layer })));
  const places = heads.map(({ stack = "", layer, head }) => [layers.findIndex((column) => column.stack === stack && column.layer === layer), numbers.indexOf(head)]);
  const under = stacks.length > 1 ? 14 : 0; // pixels of the names of stacks
  const plot = svg("svg", { role: "radiogroup", "aria-label": "Heads by layer and number" });
  const cells = heads.map((head) => {
    const cell = svg("rect", { role: "radio", "data-head": head.name, class: head.role ? (isOpen(head) ? "open" : "") : "none", "aria-label": `${head.name}, ${head.looks || "no role"}` });
    cell.style.setProperty("--role", roles.color(head.role));
    return cell;
  });
  const frame = svg("g", { class: "axes" });
  plot.append(frame, ...cells);
  const box = el("div", { class: "plot" }, plot as unknown as HTMLElement);
  let chosen = 0;

  const of = (event: Event) => cells.indexOf(event.target as SVGRectElement);
  plot.addEventListener("pointerover", (event) => {
    const n = of(event);
    if (n < 0) return point(null, 0, 0);
    const { right, bottom } = cells[n].getBoundingClientRect();
    point(n, right, bottom);
  });
  plot.addEventListener("pointerleave", () => point(null, 0, 0));
  plot.addEventListener("click", (event) => {
    if (of(event) >= 0) change({ head: of(event) });
  });
  plot.addEventListener("keydown", (event) => {
    const step = STEPS[event.key];
    if (!step || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    // the nearest head in this direction: some layers may have fewer heads
    const [column, row] = places[chosen];
    let [next, least] = [-1, Infinity];
    places.forEach(([x, y], n) => {
      const [along, aside] = step[0] ? [(x - column) * step[0], Math.abs(y - row)] : [(y - row) * step[1], Math.abs(x - column)];
      const far = along + 1000 * aside;
      if (along > 0 && far < least) [next, least] = [n, far];
    });
    if (next < 0) return;
    change({ head: next });
    cells[next].focus();
  });

  function draw(): void {
    const wide = box.clientWidth;
    if (!wide) return;
    const across = Math.min(WIDEST, (wide - LEFT - SPACE * (stacks.length - 1)) / layers.length);
    const left = (column: number) => LEFT + column * across + SPACE * stacks.indexOf(layers[column].stack);
    const down = Math.max(4, Math.min(across, HIGHEST, TALLEST / numbers.length));
    const high = numbers.length * down;
    plot.setAttribute("width", String(wide));
    plot.setAttribute("height", String(high + BOTTOM + under));
    const gap = across < 6 ? 0 : GAP;
    cells.forEach((cell, n) => {
      const [column, row] = places[n];
      const box = { x: left(column), y: row * down, width: across - gap, height: down - gap };
      for (const [name, value] of Object.entries(box)) cell.setAttribute(name, value.toFixed(2));
    });
    const every = (count: number, size: number, room: number) => [1, 2, 5, 10, 20, 50].find((step) => step * size >= room || step >= count)!;
    const [each, other] = [every(layers.length, across, 20), every(numbers.length, down, 12)];
    frame.replaceChildren(
      ...layers.flatMap(({ layer }, n) => ((under ? layer : n) % each ? [] : [svg("text", { x: left(n) + across / 2 - gap / 2, y: high + 13, "text-anchor": "middle" }, String(layer))])),
      ...(under ? stacks.map((stack) => svg("text", { x: left(layers.findIndex((column) => column.stack === stack)), y: high + 27 }, stack)) : []),
      ...numbers.flatMap((head, n) => (n % other ? [] : [svg("text", { x: LEFT - 5, y: (n + 0.5) * down + 3.5, "text-anchor": "end" }, String(head))])));
  }
  fit(box, draw);
  return {
    node: el("section", { class: "grid" }, el("small", {}, "Layers across, heads down"), box),
    follow({ head, role }: State) {
      chosen = head;
      cells.forEach((cell, n) => {
        cell.classList.toggle("faded", role !== null && heads[n].role !== role);
        cell.classList.toggle("chosen", n === head);
        cell.setAttribute("aria-checked", String(n === head));
        cell.setAttribute("tabindex", n === head ? "0" : "-1");
      });
    },
  };
}
