/** The page's side of the worker: it brings the model there, and asks one question at a time. */

import { el } from "../dom";
import type { Changes } from "./bert";
import type { Tokens } from "./tokens";
import type { Agreement, Data, Question, Read } from "./worker";
import Thread from "./worker?worker&inline";

export interface Engine {
  agreement: Agreement;
  /** `ids` in place of those of the text; `plain`: without WebAssembly, as a reference. */
  read(text: string, changes: Changes, ids?: number[], plain?: boolean): Promise<Read>;
  /** Split texts into tokens and words, without running the model. */
  split(texts: string[]): Promise<Tokens[]>;
}
declare global {
  interface Window {
    /** Written by `data.js`, and called by each `model.N.js` with its part in base64. */
    attnvizData: Data;
    attnvizPart: (text: string) => void;
  }
}

/** Start the worker, load the model into it, and compare it with PyTorch. `say` gets the part that is loaded, from 0 to 1. */
export async function engine(data: Data, say: (share: number) => void): Promise<Engine> {
  const worker = new Thread();
  const waiting = new Map<number, (answer: { answer?: unknown; error?: string }) => void>();
  worker.onmessage = ({ data: { number, ...answer } }) => {
    waiting.get(number)?.(answer);
    waiting.delete(number);
  };
  worker.onerror = ({ message }) => waiting.forEach((answer) => answer({ error: message || "This browser cannot run the model. Use a newer one." }));
  let count = 0;
  const ask = <T>(question: Question) => new Promise<T>((resolve, reject) => {
    waiting.set(++count, ({ answer, error }) => (error ? reject(new Error(error)) : resolve(answer as T)));
    worker.postMessage({ ...question, number: count });
  });
  await ask({ kind: "data", data });
  for (let start = 0; start < data.bytes; start += data.part) {
    say(start / data.bytes);
    await ask({ kind: "part", start, text: await partOf(start / data.part) });
  }
  say(1);
  const agreement = await ask<Agreement>({ kind: "check" });
  return {
    agreement,
    read: (text, changes, ids, plain) => ask({ kind: "read", text, changes, ids, plain }),
    split: (texts) => ask({ kind: "split", texts }),
  };
}

/** Load a script beside the page, which also a page on disk may do. */
function partOf(part: number): Promise<string> {
  return new Promise((resolve, reject) => {
    window.attnvizPart = resolve;
    const script = el("script", { src: `model.${part}.js` });
    script.addEventListener("error", () => reject(new Error(`model.${part}.js is missing: copy the whole folder.`)));
    script.addEventListener("load", () => script.remove());
    document.head.append(script);
  });
}
