/** Roles: their colors, one for each on every page, and the legend that fades all but one. */

import { DARK, LIGHT, type Role } from "../colors";
import { el } from "../dom";
import { isOpen, type Head, type State } from "./data";

// Patches and frames nearby are as the previous token, and so on: no model reads two kinds.
const ROLES: Record<string, Role> = {
  "previous token": "previous", "next token": "next", "own token": "itself", "same token": "same", induction: "induction",
  punctuation: "punctuation", retrieval: "retrieval", "name mover": "mover", "subject inhibition": "inhibition",
  "rests on the first token": "first", "rests on special tokens": "special", "rests on the silence": "first",
  "neighboring patches": "previous", "same row": "next", "own patch": "itself", "same column": "same",
  "nearby frames": "previous", "own position": "itself", "follows the speech": "induction",
};

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
      const theme = isDark ? DARK : LIGHT;
      named.forEach((role, n) => root.style.setProperty(`--role-${n}`, theme.roles[ROLES[role]] ?? theme.muted));
    },
  };
}
