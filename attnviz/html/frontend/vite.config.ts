import { defineConfig } from "vite";

// `vite build` makes the page's script and style sheet, `vite build --mode es` the widget's module.
export default defineConfig(({ mode }) => ({
  build: {
    outDir: "../static",
    emptyOutDir: false,
    target: "es2022",
    cssMinify: true,
    minify: true,
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
