// Shows the processes of a job, in jsdom: node members.mjs FOLDER-OF-MODULES PAGE-FOLDER.

import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { join, resolve } from "node:path";
import { pathToFileURL } from "node:url";

const [folder, page] = process.argv.slice(2).map((each) => resolve(each));
const { JSDOM } = createRequire(join(folder, "here.js"))("jsdom");
const { window } = new JSDOM(readFileSync(join(page, "index.html"), "utf-8"));
const { document } = window;
let feed = null;
Object.assign(globalThis, { document, EventSource: class { constructor(address) { feed = this; this.address = address; } } });
const { members } = await import(pathToFileURL(join(page, "members.js")).href);

const chosen = [];
const table = document.getElementById("members");
members(table, document.getElementById("job-note"), (name) => chosen.push(name));
const rows = [
  { name: "worker 0", live: true, why: "", values: { operations: 12.04, steps: 3, samples: 96, resident: 2 ** 20, lag: 0.002 }, warnings: 0, serious: false },
  { name: "server 0", live: false, why: "refused", values: {}, warnings: 2, serious: true },
];
for (let turn = 0; turn < 2; turn++) feed.onmessage({ data: JSON.stringify(rows) });
table.tBodies[0].rows[1].cells[0].querySelector("button").click();
const cells = [...table.tBodies[0].rows].map((row) => [...row.cells].map((cell) => cell.textContent));
console.log(JSON.stringify({ cells, note: document.getElementById("job-note").textContent, chosen, pressed: [...table.querySelectorAll("button")].map((each) => each.getAttribute("aria-pressed")) }));
window.close();
