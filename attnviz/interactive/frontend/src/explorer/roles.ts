/** Roles: their colors, as in the figures of a survey, and the legend that fades all but one. */

import { CYCLE, DARK, LIGHT } from "../colors";
import { el } from "../dom";
import { isOpen, type Head, type State } from "./data";

const RESTING = /^rests /; // gray: of a head that puts its weight aside
const GRAYS = { light: ["#8c8c8c", "#bdbdc6"], dark: ["#85888f", "#565a63"] };
const ORDER = [1, 2, 3, 0, ...CYCLE.map((_, n) => n).slice(5)];

export interface Roles {
  /** The roles of heads, the rarest first, and "" for heads without one. */
  names: string[];
  /** The legend. */
  node: HTMLElement;
  /** Return the color of a role, as a value of a style. */
  color(role: string): string;
  follow(state: State): void;
  /** Set the colors of a theme on an element. */
  paint(root: HTMLElement, isDark: boolean): void;
}

export function roles(heads: Head[], change: (changed: Partial<State>) => void): Roles {
  const counts = new Map<string, number>();
  for (const { role } of heads) counts.set(role, (counts.get(role) ?? 0) + 1);
  const named = [...counts].filter(([role]) => role).sort((a, b) => a[1] - b[1]).map(([role]) => role);
  const resting = named.filter((role) => RESTING.test(role)).sort();
  const active = named.filter((role) => !RESTING.test(role));
  const names = [...named, ...(counts.has("") ? [""] : [])];
  const color = (role: string) => `var(--role-${named.indexOf(role)}, var(--none))`;
  let chosen: string | null = null;
  const entries = names.map((role) => {
    const mark = el("i", { class: role ? "mark" : "mark none" });
    mark.style.setProperty("--role", color(role));
    return el("button", { type: "button", "aria-pressed": "false", click: () => change({ role: chosen === role ? null : role }) },
      mark, `${role || "no role"} `, el("small", {}, String(counts.get(role))));
  });
  return {
    names, color,
    node: el("div", { class: "legend", role: "group", "aria-label": "Roles; choose one to fade the others" }, ...entries, ...(heads.some(isOpen) ? [el("small", {}, "Hollow or pale: not confirmed.")] : [])),
    follow({ role }) {
      chosen = role;
      entries.forEach((entry, n) => {
        entry.setAttribute("aria-pressed", String(names[n] === role));
        entry.classList.toggle("faded", role !== null && names[n] !== role);
      });
    },
    paint(root, isDark) {
      const { lines } = isDark ? DARK : LIGHT;
      for (const role of named) {
        const n = resting.indexOf(role);
        const ink = n < 0 ? lines[ORDER[active.indexOf(role) % ORDER.length]] : GRAYS[isDark ? "dark" : "light"][n % 2];
        root.style.setProperty(`--role-${named.indexOf(role)}`, ink);
      }
    },
  };
}
