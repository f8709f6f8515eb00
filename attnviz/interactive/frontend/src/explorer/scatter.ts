/** All heads on two statistics. */

import { el } from "../dom";
import { tick } from "../text";
import { figure, isOpen, titleOf, type Payload, type State } from "./data";
import type { Roles } from "./roles";
import { fit, nearest, svg, ticks } from "./svg";

const [LEFT, RIGHT, TOP, BOTTOM, INSET] = [38, 8, 22, 36, 9]; // pixels around the points
const [LOWEST, HIGHEST, RATIO] = [230, 330, 0.86]; // of the height
const REACH = 22; // pixels from the pointer to the head that it points at

export interface Part {
  node: HTMLElement;
  follow(state: State): void;
}
export interface Acts {
  change(changed: Partial<State>): void;
  /** Describe a head at a point of the window; null: nothing. */
  point(head: number | null, x: number, y: number): void;
}

export function scatter({ heads, statistics }: Payload, roles: Roles, { change, point }: Acts): Part {
  const choose = (axis: "x" | "y", label: string) => {
    const select = el("select", { "data-control": axis, change: () => change({ [axis]: Number(select.value) }) },
      ...statistics.map(({ name, title }, n) => el("option", { value: n, title }, name)));
    return { select, node: el("label", {}, el("span", {}, label), select) };
  };
  const [across, up] = [choose("x", "Across"), choose("y", "Up")];
  const plot = svg("svg", { role: "group", "aria-label": "Heads on two statistics" });
  const missing = el("small", { class: "missing" });
  const box = el("div", { class: "plot" }, plot as unknown as HTMLElement);
  const axes = svg("g", { class: "axes" });
  const spread = svg("g", { class: "spread" });
  const dots = heads.map((head) => {
    const dot = svg("circle", { class: head.role ? (isOpen(head) ? "open" : "") : "none", tabindex: -1, role: "button", "data-head": head.name });
    dot.style.setProperty("--role", roles.color(head.role));
    return dot;
  });
  // Heads with the rarest roles lie on top.
  const order = heads.map((_, n) => n).sort((a, b) => roles.names.indexOf(heads[b].role) - roles.names.indexOf(heads[a].role));
  const points = svg("g", {}, ...order.map((n) => dots[n]));
  plot.append(axes, spread, points);
  let places: ([number, number] | null)[] = [];
  let state: State | null = null;
  let hovered: number | null = null;

  const at = (event: PointerEvent | MouseEvent) => {
    const { left, top } = plot.getBoundingClientRect();
    const shown = places.map((place, n) => (state?.role == null || heads[n].role === state.role ? place : null));
    return nearest(shown, event.clientX - left, event.clientY - top, REACH);
  };
  const hover = (n: number | null) => {
    if (hovered !== null) dots[hovered].classList.remove("pointed");
    hovered = n;
    if (n === null) return point(null, 0, 0);
    dots[n].classList.add("pointed");
    const { left, top } = plot.getBoundingClientRect();
    point(n, left + places[n]![0], top + places[n]![1]);
  };
  plot.addEventListener("pointermove", (event) => hover(at(event)));
  plot.addEventListener("pointerleave", () => hover(null));
  plot.addEventListener("click", (event) => {
    const n = at(event);
    if (n !== null) change({ head: n });
  });
  points.addEventListener("focusin", (event) => {
    const n = dots.indexOf(event.target as SVGCircleElement);
    if (n >= 0 && dots[n].matches(":focus-visible")) hover(n);
  });
  points.addEventListener("focusout", () => hover(null));
  points.addEventListener("keydown", (event) => {
    const n = dots.indexOf(event.target as SVGCircleElement);
    if (n < 0) return;
    if (event.key === "Enter" || event.key === " ") change({ head: n });
    else if (event.key.startsWith("Arrow")) {
      const axis = /Left|Right/.test(event.key) ? 0 : 1;
      const isForth = /Right|Up/.test(event.key);
      const line = order.filter((each) => places[each]).sort((a, b) => (axis ? places[b]![1] - places[a]![1] : places[a]![0] - places[b]![0]));
      const next = line[line.indexOf(n) + (isForth ? 1 : -1)];
      if (next !== undefined) dots[next].focus();
    } else return;
    event.preventDefault();
  });

  function draw(): void {
    if (!state) return;
    const { x, y, head, role } = state;
    const wide = box.clientWidth;
    if (!wide) return;
    const high = Math.round(Math.min(HIGHEST, Math.max(LOWEST, wide * RATIO)));
    plot.setAttribute("width", String(wide));
    plot.setAttribute("height", String(high));
    const ends = [x, y].map((column) => {
      const seen = heads.flatMap(({ values, low, high }, n) => (values[column] === null ? [] : n === head ? [values[column], low[column], high[column]] : [values[column]]));
      const known = seen.filter((value): value is number => value != null);
      const [least, most] = [Math.min(0, ...known), Math.max(...known, Math.min(0, ...known) + 1e-9)];
      return [least, most];
    });
    const right = (value: number) => LEFT + INSET + ((value - ends[0][0]) / (ends[0][1] - ends[0][0])) * (wide - LEFT - RIGHT - 2 * INSET);
    const down = (value: number) => high - BOTTOM - INSET - ((value - ends[1][0]) / (ends[1][1] - ends[1][0])) * (high - TOP - BOTTOM - 2 * INSET);
    places = heads.map(({ values }) => (values[x] === null || values[y] === null ? null : [right(values[x]), down(values[y])]));
    const unseen = places.filter((place) => !place).length;
    missing.textContent = unseen ? `${unseen} of ${heads.length} heads have no value here.` : "";
    missing.hidden = !unseen;

    const floor = high - BOTTOM;
    axes.replaceChildren(
      svg("path", { d: `M${LEFT} ${TOP}V${floor}H${wide - RIGHT}` }),
      ...ticks(ends[0][0], ends[0][1], wide < 320 ? 4 : 6).flatMap((value) => [
        svg("path", { class: "rule", d: `M${right(value)} ${TOP}V${floor}` }), svg("text", { x: right(value), y: floor + 14, "text-anchor": "middle" }, tick(value))]),
      ...ticks(ends[1][0], ends[1][1], 5).flatMap((value) => [
        svg("path", { class: "rule", d: `M${LEFT} ${down(value)}H${wide - RIGHT}` }), svg("text", { x: LEFT - 5, y: down(value) + 4, "text-anchor": "end" }, tick(value))]),
      svg("text", { class: "title", x: wide - RIGHT, y: high - 4, "text-anchor": "end" }, `${titleOf(statistics[x])} →`),
      svg("text", { class: "title", x: 2, y: TOP - 9 }, `↑ ${titleOf(statistics[y])}`));

    const [mine, one] = [places[head], heads[head]];
    const [a, b, c, d] = [one.low[x], one.high[x], one.low[y], one.high[y]];
    spread.replaceChildren(
      ...(mine && a != null && b != null ? [svg("path", { d: `M${right(a)} ${mine[1]}H${right(b)}` })] : []),
      ...(mine && c != null && d != null ? [svg("path", { d: `M${mine[0]} ${down(c)}V${down(d)}` })] : []));
    dots.forEach((dot, n) => {
      const place = places[n];
      dot.classList.toggle("away", !place);
      dot.classList.toggle("faded", role !== null && heads[n].role !== role);
      dot.classList.toggle("chosen", n === head);
      dot.setAttribute("tabindex", n === head ? "0" : "-1");
      dot.setAttribute("r", n === head ? "6.5" : heads[n].role ? "4.5" : "3.5");
      if (!place) return;
      dot.setAttribute("cx", place[0].toFixed(1));
      dot.setAttribute("cy", place[1].toFixed(1));
      const said = [x, y].map((column) => `${statistics[column].name} ${figure(heads[n].values[column]!)}`);
      dot.setAttribute("aria-label", [heads[n].name, heads[n].looks || "no role", ...said].join(", "));
    });
  }
  fit(box, draw);
  return {
    node: el("section", { class: "scatter" }, el("div", { class: "axes-of" }, up.node, across.node), box, missing),
    follow(now) {
      state = now;
      [across.select.value, up.select.value] = [String(now.x), String(now.y)];
      draw();
      const dot = dots[now.head]; // on top, for the eye only: its place in the order of tabs is its own
      if (points.lastChild !== dot && document.activeElement !== dot) points.append(dot);
    },
  };
}
