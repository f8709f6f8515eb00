/** The widget's module. */

export { unpack } from "./data";
export { mount } from "./page";
