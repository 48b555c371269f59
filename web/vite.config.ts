import { defineConfig } from "vite";

// The page is served under `default-src 'self'` with trusted types: nothing
// may be inlined, neither a script that preloads nor an image as a data: URL.
export default defineConfig({
  oxc: { jsx: { runtime: "automatic", importSource: "preact" } },
  build: {
    target: "es2022",
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
    reportCompressedSize: false,
  },
  // `npm run dev` against a server that runs already.
  server: {
    proxy: { "/v1": "http://127.0.0.1:8080", "/login": "http://127.0.0.1:8080" },
  },
});
