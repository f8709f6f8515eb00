// The search of the site runs in a worker, which browsers refuse to start from disk. An invisible
// frame takes its place there.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.onmessage = null;
      const frame = document.createElement("iframe");
      frame.hidden = true;
      frame.title = "search";
      document.body.append(frame);
      const inside = (this.inside = frame.contentWindow);
      const load = (source) =>
        new Promise((done, failed) => {
          const script = frame.contentDocument.createElement("script");
          script.src = source;
          script.onload = done;
          script.onerror = failed;
          frame.contentDocument.body.append(script);
        });
      inside.importScripts = (...sources) =>
        sources.reduce((before, source) => before.then(() => load(source)), Promise.resolve());
      inside.postMessage = (data) => {
        const event = new MessageEvent("message", { data });
        this.dispatchEvent(event);
        this.onmessage?.(event);
      };
      this.ready = load(url);
    }
    postMessage(data) {
      this.ready.then(() => {
        const event = new MessageEvent("message", { data });
        this.inside.dispatchEvent(event);
        this.inside.onmessage?.(event);
      });
    }
    terminate() {}
  };
}
