/** The widget module: the view in a running notebook; Python reads and sets its selection. */

import type { Source } from "./data";
import { mount } from "./page";
import { selection, type Selection } from "./state";

export { mount };

/** The interface that anywidget passes for the Python side of the widget. */
interface Model {
  get(name: string): unknown;
  set(name: string, value: unknown): void;
  save_changes(): void;
  on(event: string, callback: () => void): void;
  off(event: string, callback: () => void): void;
}

function render({ model, el }: { model: Model; el: HTMLElement }): () => void {
  const source = { payload: model.get("payload"), blocks: model.get("blocks") } as Source;
  const asked = () => model.get("selection") as Partial<Selection>;
  let telling = false;
  const tell = (now: Selection) => {
    telling = true;
    model.set("selection", now);
    model.save_changes();
    telling = false;
  };
  const view = mount(el.appendChild(document.createElement("div")), source, { state: asked(), onselect: tell });
  const follow = () => {
    if (telling) return;
    view.show(asked());
    tell(selection(view.state)); // send all of it back, even if Python set only a part or an invalid value
  };
  model.on("change:selection", follow);
  return () => {
    model.off("change:selection", follow);
    view.destroy();
  };
}

export default { render };
