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

// The script and style sheet of a page: by mode, the source and the name of the built files.
const PAGES: Record<string, [source: string, name: string, script: string]> = {
  live: ["src/live.ts", "attnviz.live", "attnviz.live.js"],
  lesson: ["src/lesson.ts", "attnviz.lesson", "attnviz.lesson.js"],
  explore: ["src/explore.ts", "attnviz.explore", "attnviz.explore.js"],
};
const SAVED = ["src/main.ts", "attnviz", "attnviz.iife.js"];

// `vite build` makes the script and style sheet of a saved page, `--mode es` the widget's module, `--mode live`
// the script and style sheet of the served page, `--mode explore` those of the page of heads, and
// `--mode lesson` those of the page that computes.
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
            entry: (PAGES[mode] ?? SAVED)[0],
            formats: ["iife"],
            name: "attnviz",
            fileName: () => (PAGES[mode] ?? SAVED)[2],
            cssFileName: (PAGES[mode] ?? SAVED)[1],
          },
  },
}));
