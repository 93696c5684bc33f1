/// <reference types="vitest/config" />
import preact from "@preact/preset-vite";
import { defineConfig, type Plugin } from "vite";

// Typed here, so that the dashboard needs no types of Node beside its own.
declare const process: { env: Record<string, string | undefined> };

/** Writes `NAME.gz` beside every text file of the build: the server sends it as it is. */
function precompress(): Plugin {
  return {
    name: "openq-precompress",
    apply: "build",
    async writeBundle(options, bundle) {
      // @ts-expect-error: modules of Node, without their types
      const [{ gzipSync }, { readFileSync, writeFileSync }] = await Promise.all([import("node:zlib"), import("node:fs")]);
      for (const name of Object.keys(bundle)) {
        if (!/\.(js|css|html|svg)$/.test(name)) continue;
        const path = `${options.dir}/${name}`;
        writeFileSync(`${path}.gz`, gzipSync(readFileSync(path), { level: 9 }));
      }
    },
  };
}

const server = process.env.OPENQ_URL ?? "http://127.0.0.1:9324";

export default defineConfig({
  base: "/ui/",
  plugins: [preact({ devToolsEnabled: false, prefreshEnabled: true }), precompress()],
  build: {
    outDir: "../src/openq/ui/static",
    emptyOutDir: true,
    target: "es2022",
    modulePreload: { polyfill: false },
    // Data addresses of images are allowed by the policy of the page, of anything else not.
    assetsInlineLimit: 0,
  },
  server: { proxy: { "/api": server, "/openapi.json": server, "/metrics": server } },
  test: { include: ["src/**/*.test.ts"] },
});
