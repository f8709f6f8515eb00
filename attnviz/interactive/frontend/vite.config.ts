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

// `vite build` makes the page's script and style sheet, `vite build --mode es` the widget's module.
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
            entry: "src/main.ts",
            formats: ["iife"],
            name: "attnviz",
            fileName: () => "attnviz.iife.js",
            cssFileName: "attnviz",
          },
  },
}));
