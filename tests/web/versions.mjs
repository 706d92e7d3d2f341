// Opens a version of the site among others, in jsdom: node versions.mjs FOLDER-OF-MODULES SITES SCRIPT VERSION.

import { readFileSync, existsSync } from "node:fs";
import { createRequire } from "node:module";
import { join, resolve } from "node:path";

const [folder, sites, script] = process.argv.slice(2, 5).map((each) => resolve(each));
const version = process.argv[5];
const { JSDOM } = createRequire(join(folder, "here.js"))("jsdom");
const { window } = new JSDOM(readFileSync(join(sites, version, "index.html"), "utf-8"), { runScripts: "outside-only", url: `http://localhost/docs/${version}/index.html` });
window.fetch = async (url) => {
  const path = join(sites, new URL(url).pathname.replace("/docs/", ""));
  return { ok: existsSync(path), json: async () => JSON.parse(readFileSync(path, "utf-8")) };
};
window.eval(`(async () => { ${readFileSync(script, "utf-8")} })()`);
for (let turn = 0; turn < 100 && window.document.querySelector("form").hidden; turn++) await new Promise((done) => setTimeout(done));
const { document } = window;
const select = document.querySelector("select");
console.log(JSON.stringify({ hidden: document.querySelector("form").hidden, offered: [...select.options].map((each) => each.value), chosen: select.value, note: document.querySelector(".old-version")?.textContent ?? null }));
window.close();
