/** The script of a saved page: it shows the embedded data. */

import "./page.css";
import { unpack, type Payload } from "./data";
import { mount } from "./page";

export { mount, unpack };

const data = document.getElementById("attnviz-data");
const root = document.getElementById("attnviz");
if (data && root) {
  const payload = JSON.parse(data.textContent ?? "") as Payload;
  const blocks = document.getElementById("attnviz-blocks")?.textContent ?? "";
  mount(root, { payload, block: unpack(blocks.trim(), payload.blocks) }, { hash: true });
}
