import { defineConfig, type Plugin } from "vite";

// A page is written in ASCII, so that no reader's encoding can break it, nor the script's hash.
const ascii: Plugin = {
  name: "ascii",
  generateBundle(_, bundle) {
    const escape = (character: string) => `\\u${character.charCodeAt(0).toString(16).padStart(4, "0")}`;
    for (const file of Object.values(bundle)) {
      if (file.type === "chunk") file.code = file.code.replace(/[^\x00-\x7f]/g, escape);
    }
  },
};

// `vite build` makes the script and style sheet of a saved page, `--mode es` the widget's module, and
// `--mode live` the script and style sheet of the served page.
export default defineConfig(({ mode }) => ({
  plugins: [ascii],
  build: {
    outDir: "../static",
    emptyOutDir: false,
    target: "es2022",
    cssMinify: true,
    minify: true,
    // vite leaves the blanks of a module for its user's bundler; here there is none
    rolldownOptions: { output: { minify: true } },
    lib:
      mode === "es"
        ? { entry: "src/widget.ts", formats: ["es"], fileName: () => "attnviz.es.js" }
        : {
            entry: mode === "live" ? "src/live.ts" : "src/main.ts",
            formats: ["iife"],
            name: "attnviz",
            fileName: () => (mode === "live" ? "attnviz.live.js" : "attnviz.iife.js"),
            cssFileName: mode === "live" ? "attnviz.live" : "attnviz",
          },
  },
}));
