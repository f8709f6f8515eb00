/** From a text to tokens, as the tokenizer of BERT does it (WordPiece), and to words, as attnviz does it. */

import type { Axis } from "../data";

/** A part of a text, in UTF-16 units from its start. */
type Span = [start: number, end: number];
export interface Tokens {
  ids: number[];
  axis: Axis;
  /** Where each word of the axis stands in the text. */
  spans: Span[];
}
interface Letter {
  text: string;
  span: Span;
}
interface Piece {
  text: string;
  span: Span;
  /** A special token that stands for no word. */
  special: boolean;
}

const TYPED = /\[(?:PAD|UNK|CLS|SEP|MASK)\]/g; // special tokens that a text may contain
const WORDS = ["[MASK]", "[UNK]"]; // those that stand for words
const CHINESE = /[\u4e00-\u9fff\u3400-\u4dbf\u{20000}-\u{2a6df}\u{2a700}-\u{2b73f}\u{2b740}-\u{2b81f}\u{2b920}-\u{2ceaf}\uf900-\ufaff\u{2f800}-\u{2fa1f}]/u;
const [BLANK, DROPPED, MARK] = [/\p{White_Space}/u, /(?![\t\n\r])[\p{Cc}\p{Cf}\p{Co}\ufffd]/u, /\p{Mn}/gu];
const PUNCTUATION = /[!-/:-@[-`{-~]|\p{P}/u;
const LONGEST = 100; // letters of a word that is split into pieces
// Scripts that browsers split with a dictionary; Unicode's rule alone takes each letter as a word.
const WITHOUT_BLANKS = /[\p{sc=Han}\p{sc=Hiragana}\p{sc=Thai}\p{sc=Lao}\p{sc=Khmer}\p{sc=Myanmar}]/u;
const LETTER = `(?!${WITHOUT_BLANKS.source}|\\p{sc=Katakana})\\p{L}`;
const STOP = new RegExp(`(?<=${LETTER}\\p{M}*)\\.(?=${LETTER})`, "gu");
const WRITTEN = 10; // letters of a word that was read as an unknown token, as in attnviz
const segmenter = new Intl.Segmenter("en", { granularity: "word" });

/** Return a function that reads texts with a vocabulary. */
export function reader(vocabulary: string[]): (text: string) => Tokens {
  const ids = new Map(vocabulary.map((piece, id) => [piece, id]));
  return (text) => {
    const typed = [...text.matchAll(TYPED)].map((match): Piece => ({ text: match[0], span: [match.index, match.index + match[0].length], special: !WORDS.includes(match[0]) }));
    const between = [...typed, null].map((next, n) => textOf(text, typed[n - 1]?.span[1] ?? 0, next?.span[0] ?? text.length));
    const inner = between.flatMap((letters, n) => [...split(letters).flatMap((word) => pieces(word, ids)), ...typed.slice(n, n + 1)]);
    const special = (name: string): Piece => ({ text: name, span: [0, 0], special: true });
    const all = [special("[CLS]"), ...inner, special("[SEP]")];
    return { ids: all.map((piece) => ids.get(piece.text)!), ...axisOf(text, all) };
  };
}

/** Return the letters of a part of a text, in small letters without accents. */
function textOf(text: string, start: number, end: number): Letter[] {
  const letters: Letter[] = [];
  let at = start;
  for (const character of text.slice(start, end)) {
    const span: Span = [at, (at += character.length)];
    const add = (some: string) => letters.push({ text: some, span });
    if (DROPPED.test(character)) continue;
    else if (BLANK.test(character)) add(" ");
    else if (CHINESE.test(character)) [" ", character.normalize("NFD"), " "].forEach(add);
    else for (const plain of character.normalize("NFD").replace(MARK, "")) add(plain.toLowerCase());
  }
  return letters;
}

/** Split letters at blanks, and before and after each punctuation mark. */
function split(letters: Letter[]): Letter[][] {
  const words: Letter[][] = [[]];
  for (const letter of letters) {
    if (BLANK.test(letter.text)) words.push([]);
    else if (PUNCTUATION.test(letter.text)) words.push([letter], []);
    else words[words.length - 1].push(letter);
  }
  return words.filter(({ length }) => length);
}

/** Split a word into the longest pieces of the vocabulary, from the left. */
function pieces(word: Letter[], ids: Map<string, number>): Piece[] {
  const span = (from: number, to: number): Span => [word[from].span[0], word[to - 1].span[1]];
  const unknown = [{ text: "[UNK]", span: span(0, word.length), special: false }];
  const found: Piece[] = [];
  const letters = word.flatMap(({ text }) => [...text]);
  if (letters.length > LONGEST) return unknown;
  for (let start = 0, end; start < word.length; start = end) {
    const written = (to: number) => (start ? "##" : "") + word.slice(start, to).map(({ text }) => text).join("");
    for (end = word.length; end > start && !ids.has(written(end)); ) end--;
    if (end === start) return unknown;
    found.push({ text: written(end), span: span(start, end), special: false });
  }
  return found;
}

/** Place pieces in the words of a text, as `make_axis` of attnviz.results.axis. */
function axisOf(text: string, all: Piece[]): Pick<Tokens, "axis" | "spans"> {
  const typed = all.filter(({ special, span }) => special && span[1] > 0).map(({ span }) => span);
  const spans = joined(wordsOf(text).filter(([start]) => !typed.some(([a, b]) => start >= a && start < b)), all.filter(({ special }) => !special).map(({ span }) => span));
  const numbers = new Map<number, number>();
  const words = all.map(({ span: [start], special }) => {
    if (special || !spans.length) return null;
    const place = Math.min(spans.length - 1, spans.findIndex(([, end]) => end > start) >>> 0);
    if (!numbers.has(place)) numbers.set(place, numbers.size);
    return numbers.get(place)!;
  });
  const places = [...numbers.keys()].map((place) => spans[place]);
  const written = places.map((span) => text.slice(...span));
  const unknown = all.flatMap((piece, n) => (piece.text === "[UNK]" && !piece.special ? [n] : []));
  const labels = all.map(({ text: piece }, n) => (unknown.includes(n) && written[words[n]!] !== piece ? `${shortened(written[words[n]!])} [UNK]` : piece));
  const special = all.flatMap((piece, n) => (piece.special ? [n] : []));
  const first = words.findIndex((word) => word !== null && /\p{L}{4}/u.test(written[word]));
  for (const n of unknown) written[words[n]!] = labels[n];
  const axis = {
    labels, words, wordLabels: written, special, ...(unknown.length && { unknown }), second: null, generated: null,
    patches: null, frames: null, next: null, word: first < 0 ? Math.min(1, all.length - 1) : first,
  };
  return { axis, spans: places };
}

function shortened(word: string): string {
  const letters = [...word];
  return letters.length > WRITTEN ? `${letters.slice(0, WRITTEN - 1).join("")}…` : word;
}

/** Return the words and punctuation marks of a text, by the word boundaries of Unicode. */
function wordsOf(text: string): Span[] {
  const found = [...segmenter.segment(text)].flatMap(({ segment, index }) => {
    const parts = WITHOUT_BLANKS.test(segment) ? [...segment.matchAll(/[\p{sc=Katakana}ー]+|.[\p{M}\p{Cf}]*/gsu)] : [Object.assign([segment], { index: 0 })];
    return parts.filter(([part]) => part.trim()).map((part): Span => [index + part.index!, index + part.index! + part[0].length]);
  });
  // Browsers split at a full stop between letters, Unicode does not: U.S.A
  return joined(found, [...text.matchAll(STOP)].map(({ index }): Span => [index - 1, index + 2]));
}

/** Join words over which one piece reaches. */
function joined(words: Span[], parts: Span[]): Span[] {
  const found = [...words];
  for (const [start, end] of parts) {
    const first = found.findIndex(([, stop]) => stop > start);
    const after = found.findIndex(([begin]) => begin >= end);
    const last = after < 0 ? found.length : after;
    if (first >= 0 && last - first > 1) found.splice(first, last - first, [found[first][0], found[last - 1][1]]);
  }
  return found;
}
