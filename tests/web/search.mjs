// Searches the site by its own scripts, in jsdom: node search.mjs FOLDER-OF-MODULES SITE QUERY [...]. Prints what comes first.

import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { join, resolve } from "node:path";

const [folder, site, ...queries] = process.argv.slice(2).map((each, at) => (at < 2 ? resolve(each) : each));
const { JSDOM, VirtualConsole } = createRequire(join(folder, "here.js"))("jsdom");
const read = (name) => readFileSync(join(site, name), "utf-8");

const { window } = new JSDOM(read("search.html"), { runScripts: "outside-only", url: "http://localhost/search.html", virtualConsole: new VirtualConsole() });
const scripts = ["documentation_options", "doctools", "sphinx_highlight", "language_data", "searchtools"].map((name) => read(`_static/${name}.js`));
window.eval([...scripts, read("searchindex.js"), "window.Search = Search; window.find = (query) => (history.replaceState(null, '', `?q=${encodeURIComponent(query)}`), Search._performSearch(...Search._parseQuery(query)));"].join("\n"));

// What is shown first is last in the list.
const found = Object.fromEntries(queries.map((query) => [query, window.find(query).reverse().slice(0, 5).map(([page, title, anchor]) => [page, title, anchor])]));
await Promise.resolve(); // scorer.js changes the summaries after the script
for (const [query, pages] of Object.entries(found))
  for (const [page, , anchor] of pages)
    if (!window.Search.makeSearchSummary(read(`${page}.html`), [query], anchor)) throw Error(`no summary of ${page}${anchor}`);
console.log(JSON.stringify(found));
window.close();
