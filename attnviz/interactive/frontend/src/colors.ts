/** Colors: perceptually uniform maps (Crameri 2018, doi:10.5281/zenodo.1243862), and page themes. */

// Every fifth of a map's 256 colors, with linear interpolation: within 1/255 of cmcrameri (tests/interactive).
// The gray ones and those of the sides are those of attnviz.figures.style.
const STOPS = {
  devon_r: 
    "fffffffbfafef7f6fdf2f1fceeedfceae8fbe6e4fae2dff9dedbf8dad6f7d6d2f6d2cdf6cec9f5cac5f4c6c0f3" +
    "c2bcf2beb8f2bab3f1b5aff0b0abeeaba6eda4a2eb9d9de89599e58c95e28290df798cdb6f88d76583d25b7ecd" +
    "517ac84875c14171bb3b6db43669ad3265a62e629f2b5d9829599028548a274f8327497d274478283f72283a6d" +
    "2936692931642a2c5f2a285a2b23562b1e512c1a4c",
  oslo: 
    "01010104070b060c130911190c151f0d19250e1c2c0e20320f2439102840112c4713314e143555163a5d183e64" +
    "1a436c1c48731f4c7b22518326568b2a5b932f609b3465a33b6bab4371b24b77b9537dbe5b83c36388c66a8dc8" +
    "7091c97795c97d99ca839dca89a0ca8ea4c994a8c99aacc9a0afc9a7b4caadb8cbb4bdccbac2cec2c7d1c9cdd4" +
    "d1d3d9d8dadee0e1e4e8e9eaeff0f1f7f7f8ffffff",
  neutral: 
    "ffffff9a9a9a",
  neutral_dark: 
    "14161a9a9a9a",
  sides: 
    "3567adffffffd9720f",
  sides_dark: 
    "7fa9ee14161af0a04b",
};
const NIGHT = [0x14, 0x16, 0x1a];
export type MapName = keyof typeof STOPS;

const tables = new Map<MapName, Uint8Array>();

/** Return a map as 256 colors, three bytes each. */
export function palette(name: MapName): Uint8Array {
  const known = tables.get(name);
  if (known) return known;
  const stops = STOPS[name].match(/../g)!.map((pair) => parseInt(pair, 16));
  const last = stops.length / 3 - 1;
  const table = Uint8Array.from({ length: 768 }, (_, n) => {
    const [at, channel] = [(Math.floor(n / 3) / 255) * last, n % 3];
    const low = Math.min(Math.floor(at), last - 1);
    const [a, b] = [stops[3 * low + channel], stops[3 * low + 3 + channel]];
    return Math.round(a + (b - a) * (at - low));
  });
  if (name === "oslo") {
    // On dark pages, as `_on_ground` of attnviz.figures.style: brighter by what turns the darkest color into the ground.
    table.slice().forEach((value, n) => {
      const [base, from] = [NIGHT[n % 3], stops[n % 3]];
      table[n] = Math.round(base + (255 - base) * Math.max(0, (value - from) / (255 - from)));
    });
  }
  tables.set(name, table);
  return table;
}

/** How numbers map to colors. */
export interface Scale {
  map: MapName;
  low: number;
  high: number;
  /** Logarithmic: for pooled maps, in which most weights are near zero. */
  log: boolean;
  /** Whether some numbers lie beyond the ends; they get the last color. */
  over?: boolean;
  label: string;
  /** Numbers below this size stay blank: no difference. */
  blank?: number;
  /** The color of masked cells, as four bytes. */
  masked?: number[];
  /** Of uninformative cells, in gray, as in the figures. */
  neutral?: Scale;
}

/** Return the index of a value among the 256 colors. */
export function index({ low, high, log }: Scale, value: number): number {
  const share = log ? Math.log(Math.max(value, low) / low) / Math.log(high / low) : (value - low) / (high - low);
  return Math.round(255 * Math.min(1, Math.max(0, share)));
}

/** Return the color of a signed number in lines and text: that of its side. */
export function signedInk({ sideText }: Theme, isNegative: boolean): string {
  return sideText[isNegative ? 1 : 0];
}

export function color(scale: Scale, value: number): string {
  const [table, at] = [palette(scale.map), 3 * index(scale, value)];
  return `rgb(${table[at]},${table[at + 1]},${table[at + 2]})`;
}

/** Whether white text is more readable than ink on the color of a value. */
export function isDark(scale: Scale, value: number): boolean {
  const [table, at] = [palette(scale.map), 3 * index(scale, value)];
  return 0.2126 * table[at] + 0.7152 * table[at + 1] + 0.0722 * table[at + 2] < 0.48 * 255;
}

// The cycle of attnviz.figures.style.
const CYCLE = [
  "#34508f", "#b0640a", "#e3a02f", "#2f8f7a", "#8c8c8c", "#8a6fb0",
  "#4fa3d1", "#7d8f2f", "#c77fb0", "#5b4a42", "#1f6f5c",
];
const LIGHTER = [
  "#8fa8e8", "#d99468", "#f0bd62", "#5cc4ab", "#b4b4b4", "#b9a2dd",
  "#7cc4ec", "#b0c25c", "#e5a8d2", "#b3a098", "#57a893",
];

export interface Theme {
  dark: boolean;
  ground: string;
  ink: string;
  muted: string;
  faint: string;
  /** Only what the title says, always with a second sign. */
  claim: string;
  /** The patch of a picture that looks; the first of two sides. */
  query: string;
  /** A verdict that is not "verified". */
  alarm: string;
  weights: MapName;
  /** Of weights that say little about the text. */
  neutral: MapName;
  signed: MapName;
  /** The color of masked cells, as four bytes. */
  masked: number[];
  /** Of several heads. */
  lines: string[];
  roles: Record<Role, string>;
  /** Of the first side, the second, a third and a fourth: lines, words and areas. */
  sides: string[];
  sideText: string[];
  sidePale: string[];
  /** What says nothing about words. */
  gray: string;
}
/** What heads do, each in one color on every page. */
export type Role = "previous" | "next" | "same" | "induction" | "itself" | "first" | "special" | "punctuation" | "retrieval" | "mover" | "inhibition";
const ROLES: Record<Role, string> = {
  previous: "#24508f", next: "#6fb1e0", same: "#e0b83a", induction: "#1f8a73", itself: "#1a1a1a", first: "#c8c8c8", special: "#9a9a9a",
  punctuation: "#8a6fb0", retrieval: "#7a1f6a", mover: "#c77fb0", inhibition: "#6b5a52",
};
const ROLES_ON_DARK: Record<Role, string> = {
  previous: "#4f86d6", next: "#a8d4f2", same: "#e0b83a", induction: "#5cc4ab", itself: "#ececec", first: "#565a63", special: "#85888f",
  punctuation: "#b9a2dd", retrieval: "#c06bb0", mover: "#e5a8d2", inhibition: "#b3a098",
};
export const LIGHT: Theme = {
  dark: false, ground: "#ffffff", ink: "#1a1a1a", muted: "#5c5c5c", faint: "#d5d5dd", claim: "#c4122f", query: "#d9720f", alarm: "#b00020",
  weights: "devon_r", neutral: "neutral", signed: "sides", masked: [238, 238, 242, 255], lines: CYCLE, roles: ROLES,
  sides: ["#d9720f", "#3567ad", "#1f8a73", "#7a1f6a"], sideText: ["#a84e06", "#28528f", "#16695a", "#7a1f6a"],
  sidePale: ["#f6dcc1", "#cfdcee", "#cbe6df", "#ecd6e7"], gray: "#8f8f8f",
};
export const DARK: Theme = {
  dark: true, ground: "#14161a", ink: "#ececec", muted: "#a6a8ad", faint: "#3b3f47", claim: "#ff6f85", query: "#f0a04b", alarm: "#ff6b6b",
  weights: "oslo", neutral: "neutral_dark", signed: "sides_dark", masked: [36, 39, 45, 255], lines: LIGHTER, roles: ROLES_ON_DARK,
  sides: ["#f0a04b", "#7fa9ee", "#5cc4ab", "#e59ad2"], sideText: ["#f3ae66", "#94b7f2", "#74d0ba", "#eab0db"],
  sidePale: ["#4a3420", "#26364f", "#1f4038", "#452a40"], gray: "#85888f",
};
