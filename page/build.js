// Builds the modules of src/ into the one script of the page. `--check`: only says whether the built script is current.
import { createHash } from "node:crypto";
import { readFileSync, readdirSync, writeFileSync } from "node:fs";
import { build } from "esbuild";
import { format } from "prettier";

const SOURCES = new URL("src/", import.meta.url);
const BUILT = new URL("../rlrun/runner/view/assets/page.js", import.meta.url);

async function script() {
  const { outputFiles } = await build({
    entryPoints: [new URL("main.js", SOURCES).pathname],
    absWorkingDir: new URL(".", import.meta.url).pathname,
    bundle: true,
    format: "iife",
    target: "es2022",
    charset: "utf8",
    legalComments: "none",
    write: false,
  });
  // Formatted, so that a change of a module is a change of the same lines in the built script.
  return format(`"use strict";\n${outputFiles[0].text}`, { parser: "babel", printWidth: 110 });
}

// tests/runner/view/test_page_source.py computes the same hash, without Node.
function digest(text) {
  const hash = createHash("sha256");
  for (const name of readdirSync(SOURCES).sort()) hash.update(readFileSync(new URL(name, SOURCES)));
  return hash.update(text).digest("hex");
}

const text = await script();
const page = `// Built by \`make page\` from page/src. SHA-256 of both: ${digest(text)}\n${text}`;
if (!process.argv.includes("--check")) {
  writeFileSync(BUILT, page);
} else if (readFileSync(BUILT, "utf8") !== page) {
  console.error("rlrun/runner/view/assets/page.js is not what page/src builds: run `make page`");
  process.exitCode = 1;
}
