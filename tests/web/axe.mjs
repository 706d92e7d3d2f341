// Looks through pages with axe-core, in jsdom: node axe.mjs FOLDER-OF-MODULES PAGE [...]. Prints what it found.
// jsdom paints nothing, so contrast and what else takes a layout is not judged here.

import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { join, resolve } from "node:path";

const [folder, ...pages] = process.argv.slice(2).map((each) => resolve(each));
const require = createRequire(join(folder, "here.js"));
const { JSDOM, VirtualConsole } = require("jsdom");
const axe = readFileSync(require.resolve("axe-core/axe.min.js"), "utf-8");

const found = {};
for (const page of pages) {
  const { window } = new JSDOM(readFileSync(page, "utf-8"), { runScripts: "outside-only", pretendToBeVisual: true, url: "http://localhost/", virtualConsole: new VirtualConsole() });
  window.eval(axe);
  const { violations, passes } = await window.axe.run(window.document, { rules: { "color-contrast": { enabled: false } } });
  found[page] = { passes: passes.length, violations: violations.map(({ id, impact, help, nodes }) => ({ id, impact, help, nodes: nodes.map((node) => node.html.slice(0, 200)) })) };
  window.close();
}
console.log(JSON.stringify(found));
