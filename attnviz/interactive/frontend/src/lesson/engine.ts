/** The page's side of the worker: it brings the model there, and asks one question at a time. */

import { el } from "../dom";
import type { Changes } from "./bert";
import type { Tokens } from "./tokens";
import type { Agreement, Data, Question, Read } from "./worker";
import Thread from "./worker?worker&inline";

/** Python adds this to each 16 bits, so that what no text may have is the rarest. */
const TURN = 0x5800;

export interface Engine {
  agreement: Agreement;
  /** `ids` in place of those of the text; `plain`: without WebAssembly, as a reference. */
  read(text: string, changes: Changes, ids?: number[], plain?: boolean): Promise<Read>;
  /** Split texts into tokens and words, without running the model. */
  split(texts: string[]): Promise<Tokens[]>;
}
declare global {
  interface Window {
    /** Written by `data.js`, and called by each `model.N.js` with its part. */
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
  const ask = <T>(question: Question, transfer: Transferable[] = []) => new Promise<T>((resolve, reject) => {
    waiting.set(++count, ({ answer, error }) => (error ? reject(new Error(error)) : resolve(answer as T)));
    worker.postMessage({ ...question, number: count }, transfer);
  });
  await ask({ kind: "data", data });
  const parts = data.sums.keys();
  const load = async () => {
    for (const part of parts) {
      say(part / data.sums.length);
      const bytes = await partOf(part);
      await ask({ kind: "part", part, bytes }, [bytes.buffer]);
    }
  };
  await Promise.all(isServed() ? [load(), load()] : [load()]); // two requests at once
  say(1);
  const agreement = await ask<Agreement>({ kind: "check" });
  return {
    agreement,
    read: (text, changes, ids, plain) => ask({ kind: "read", text, changes, ids, plain }),
    split: (texts) => ask({ kind: "split", texts }),
  };
}

/**
 * Load a part of the model: a script beside the page, which also a page on disk may load. Its text has a character of
 * UTF-16 for each 16 bits. A server may name another charset, so that it is asked for the bytes.
 */
async function partOf(part: number): Promise<Uint8Array<ArrayBuffer>> {
  const name = `model.${part}.js`;
  const text = await (isServed() ? fetched : script)(name).catch(() => {
    throw new Error(`${name} is missing: copy the whole folder.`);
  });
  const codes = new Uint16Array(text.length);
  for (let n = 0; n < codes.length; n++) codes[n] = text.charCodeAt(n) - TURN;
  return new Uint8Array(codes.buffer);
}

const isServed = () => location.protocol.startsWith("http");

/** Return the text of a part; "" if it has other bytes than were written. */
async function fetched(name: string): Promise<string> {
  const answer = await fetch(name);
  if (!answer.ok) throw new Error(answer.statusText);
  const text = new TextDecoder("utf-16le").decode(await answer.arrayBuffer());
  try {
    return JSON.parse(text.slice(text.indexOf('"'), -1)) as string;
  } catch {
    return "";
  }
}

function script(name: string): Promise<string> {
  return new Promise((resolve, reject) => {
    window.attnvizPart = resolve;
    const node = el("script", { src: name, charset: "utf-16le" });
    node.addEventListener("error", reject);
    node.addEventListener("load", () => {
      resolve(""); // its code does not run
      node.remove();
    });
    document.head.append(node);
  });
}
