/** The script of a saved page: it shows the embedded data. */

import "./page.css";
import type { Source } from "./data";
import { mount } from "./page";

export { mount };

const data = document.getElementById("attnviz-data");
const root = document.getElementById("attnviz");
if (data && root) mount(root, JSON.parse(data.textContent ?? "") as Source, { hash: true });
