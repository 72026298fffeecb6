import { defineConfig } from "vitest/config";

// The gateway serves dist/ under /static/app/; file names carry a hash, so they cache for ever.
export default defineConfig({
  base: "./",
  build: {
    manifest: true,
    target: "es2023",
    assetsInlineLimit: 0, // a strict content policy takes no data: fonts
    modulePreload: { polyfill: false },
    rollupOptions: { input: "src/main.ts" },
  },
  test: { include: ["src/**/*.test.ts"] },
});
