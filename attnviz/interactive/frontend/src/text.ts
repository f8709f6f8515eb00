/** Format tokens and numbers as text. */

// Terminal control and text direction characters, and characters that are invalid in XML.
const STEERING = /[\p{Cc}\p{Cs}\p{Co}\p{Noncharacter_Code_Point}\u2028\u2029\u200e\u200f\u061c\u202a-\u202e\u2066-\u2069]/gu;
const LONGEST = 60;

/** Return a text whose control characters are visible. */
export function plain(text: string): string {
  return text.replace(STEERING, (character) => {
    const code = character.codePointAt(0)!;
    if (code === 0x2028 || code === 0x2029) return "␊";
    if (code === 0x7f) return "␡";
    return code < 0x20 ? String.fromCharCode(0x2400 + code) : "\ufffd";
  });
}

/** Return a displayable token: control characters are visible, long tokens are clipped. */
export function literal(token: string): string {
  const shown = plain(token);
  // Python writes the end of a line as two characters, if a token has nothing else
  if (/^(\\[nr]|␣)+$/u.test(shown)) return shown.replace(/(\\r)?\\n|\\r/g, "↵");
  const seen = shown.trim() === "" ? shown.replace(/\s/gu, "·") || "∅" : shown;
  return seen.length <= LONGEST ? seen : [...seen].slice(0, LONGEST - 1).join("") + "…";
}

/** Clip a text to the width `room`. */
export function clip(text: string, room: number, measure: (text: string) => number): string {
  if (measure(text) <= room) return text;
  const letters = [...text];
  let [fits, over] = [0, letters.length];
  while (over - fits > 1) {
    const middle = (fits + over) >> 1;
    if (measure(letters.slice(0, middle).join("") + "…") <= room) fits = middle;
    else over = middle;
  }
  return letters.slice(0, fits).join("") + "…";
}

/** Format a weight with the decimals that its error allows, at most four digits. */
export function weight(value: number, error: number): string {
  if (value === 0) return "0 (masked)";
  return number(value, error);
}

/** Format a signed number with the digits that its error allows, at most four. */
export function number(value: number, error: number): string {
  const decimals = Math.min(12, Math.max(0, Math.floor(-Math.log10(2 * Math.max(error, 1e-12)))));
  const size = Math.abs(value);
  if (size === 0) return "0";
  const leading = Math.floor(Math.log10(size));
  const digits = Math.min(4, decimals + leading + 1);
  if (digits < 1) return `${value < 0 ? "−" : ""}<${10 ** -decimals >= 1e-4 ? (10 ** -decimals).toFixed(decimals) : `1e-${decimals}`}`;
  const written = size < 1e-3 ? size.toExponential(digits - 1) : size.toPrecision(digits);
  return (value < 0 ? "−" : "") + written;
}

/** Format a number with two decimals for a cell: ".25". */
export function brief(value: number): string {
  return value.toFixed(2).replace(/^-0\.00$/, "0.00").replace(/^(-?)0\./, "$1.").replace("-", "−");
}

/** Format a probability: 41 %, 3.2 %, <0.1 %. */
export function percent(probability: number): string {
  const value = 100 * probability;
  return value < 0.1 ? "<0.1 %" : `${value < 9.95 ? value.toFixed(1) : Math.round(value)} %`;
}

/** Format a weight as a share of all: 71%. */
export function share(weight: number): string {
  return `${Math.round(100 * weight)}%`;
}

/** Format an end of a scale with few digits. */
export function tick(value: number): string {
  if (value === 0) return "0";
  const size = Math.abs(value);
  const written = size < 0.005 ? size.toExponential(0) : String(Number(size.toPrecision(2)));
  return (value < 0 ? "−" : "") + written;
}

/** Format whole numbers as ranges: 0–3, 7. */
export function ranges(numbers: number[]): string {
  const parts: string[] = [];
  for (let start = 0, end; start < numbers.length; start = end + 1) {
    for (end = start; numbers[end + 1] === numbers[end] + 1; ) end++;
    parts.push(start === end ? `${numbers[start]}` : `${numbers[start]}–${numbers[end]}`);
  }
  return parts.join(", ");
}

/** Parse ranges as in `ranges`, limited to the existing numbers; null if there are none. */
export function parseRanges(text: string, there: number[]): number[] | null {
  const found = new Set<number>();
  for (const [, first, last] of text.matchAll(/(\d+)(?:\s*[-–]\s*(\d+))?/g)) {
    const end = Number(last ?? first);
    for (const number of there) if (number >= Number(first) && number <= end) found.add(number);
  }
  return found.size ? [...found].sort((a, b) => a - b) : null;
}
