// The panels: each renders a part of the state.

import { Chart, sparkline } from "./chart.js";
import * as format from "./format.js";
import { memoryGroups, last, named } from "./state.js";
import { fill, set } from "./table.js";

const $ = (id) => document.getElementById(id);
const body = (id) => $(id).tBodies[0];
const ago = (at, area) => (area && at === area.x1 ? "now" : `${format.seconds(Math.max(Math.round((area?.x1 ?? at) - at), 0))} ago`);

// -- at a glance ------------------------------------------------------------------------------------

const TILES = [
  ["Operations", "operations", (value) => `${format.count(value)} /s`, "c0"],
  ["Training steps", "steps", (value) => `${format.count(value)} /s`, "c3"],
  ["Samples", "samples", (value) => `${format.count(value)} /s`, "c2"],
  ["Process memory", "resident", format.bytes, "c6"],
  ["Event loop lag", "lag", format.seconds, "c1"],
];

const tiles = TILES.map(([label]) => {
  const tile = document.createElement("div");
  tile.className = "tile";
  const parts = ["label", "value"].map((name) => {
    const part = tile.appendChild(document.createElement("div"));
    part.className = name;
    return part;
  });
  const number = parts[1].appendChild(document.createElement("span"));
  const unit = parts[1].appendChild(document.createElement("span"));
  unit.className = "unit";
  parts[0].textContent = label;
  const canvas = tile.appendChild(document.createElement("canvas"));
  canvas.setAttribute("aria-hidden", "true");
  $("tiles").append(tile);
  return { number, unit, canvas };
});

function glance(state) {
  TILES.forEach(([, name, shown, tone], index) => {
    const [number, unit] = format.parts(shown(last(state, name)));
    set(tiles[index].number, number);
    set(tiles[index].unit, unit ? ` ${unit}` : "");
    sparkline(tiles[index].canvas, state.series[name] ?? [], tone);
  });
}

// -- warnings ---------------------------------------------------------------------------------------

function warnings(state) {
  const all = state.now.warnings ?? [];
  const present = all.filter((each) => each.present);
  $("warnings-empty").hidden = all.length > 0;
  $("warnings").dataset.serious = String(present.some((each) => each.serious));
  set($("warnings-note"), present.length ? `${present.length} now` : all.length ? "none now" : "");
  const list = $("findings");
  while (list.children.length > all.length) list.lastElementChild.remove();
  all.forEach((each, index) => finding(list.children[index] ?? list.appendChild(blank()), each));
}

function blank() {
  const item = document.createElement("li");
  item.className = "finding";
  for (const [tag, name] of [["b", ""], ["span", "when"], ["p", "text"], ["code", ""], ["p", "advice"]]) {
    const part = item.appendChild(document.createElement(tag));
    if (name) part.className = name;
  }
  return item;
}

function finding(item, each) {
  const [kind, when, text, line, advice] = item.children;
  const level = each.present ? (each.serious ? "serious" : "warning") : "past";
  if (item.dataset.level !== level) item.dataset.level = level;
  set(kind, `${level === "past" ? "✓ resolved: " : level === "serious" ? "✕ " : "! "}${each.kind}`);
  set(when, [each.node, each.present ? (each.seconds >= 1 ? `for ${format.seconds(each.seconds)}` : "now") : `${format.seconds(each.ago)} ago`].join(", "));
  set(text, each.text);
  set(line, each.line);
  set(advice, each.advice && `Advice: ${each.advice}`);
  line.hidden = !each.line;
  advice.hidden = !each.advice;
}

// -- training ---------------------------------------------------------------------------------------

const charts = new Map();

function chart(box, key, title, shown, place, base) {
  if (!charts.has(key)) charts.set(key, new Chart(box, title, shown, place, base));
  return charts.get(key);
}

const OF = /^(train|training|validation|val|test)[ _-]+(.+)$/;
const TONES = { train: "c0", training: "c0", validation: "c1", val: "c1", test: "c2" };

function training(state) {
  const groups = new Map();
  for (const name of Object.keys(state.curves).sort()) {
    const [, of, what] = OF.exec(name) ?? [null, name, name];
    if (!groups.has(what)) groups.set(what, []);
    const tail = state.now.curves?.[name];
    groups.get(what).push({ name: of, tone: TONES[of] ?? "c3", points: state.curves[name], last: format.value(tail), dashed: of.startsWith("val") });
  }
  for (const [what, lines] of groups) chart($("curves"), `curve ${what}`, what, format.value, (step) => `step ${format.count(step)}`).show(lines);
  dropCurves((key) => !key.startsWith("curve ") || groups.has(key.slice(6)));
  $("training").dataset.empty = String(!groups.size && !state.now.steps);
  const { steps, samples } = state.now;
  if (steps) rate(state);
  $("training-empty").hidden = groups.size > 0 || steps > 0;
  set($("training-note"), steps ? `${format.count(steps)} steps${samples ? `, ${format.count(samples)} samples` : ""} so far` : "");
}

// Removes the charts of curves that no longer exist, after the page has switched to another process.
function dropCurves(keeps) {
  for (const [key, each] of charts) {
    if (keeps(key)) continue;
    each.figure.remove();
    charts.delete(key);
  }
}

function rate(state) {
  const name = state.now.samples ? "samples" : "steps";
  chart($("curves"), "throughput", `${name} per second`, format.count, ago).show([line(state, name, name, "c2")], [0]);
}

function line(state, name, shown, tone) {
  const column = state.series[name] ?? [];
  return { name: shown, tone, points: state.times.map((at, index) => [at, column[index] ?? null]) };
}

// -- actors -----------------------------------------------------------------------------------------

function actors(state) {
  const rows = state.now.actors ?? [];
  $("actors-empty").hidden = rows.length > 0;
  $("actors").hidden = !rows.length;
  const { pending, pending_bytes: results } = state.now;
  set($("actors-note"), pending ? `${format.count(pending)} operations pending, with ${format.bytes(results)} of results` : "no operations pending");
  const at = state.times.at(-1);
  fill(body("actors"), rows.map((each, index) => [
    each.name, { share: each.busy, text: format.percent(each.busy), tone: `c${index % 8}` },
    format.count(each.queued), format.count(each.rate),
    each.running ? `${each.running.name}, ${format.seconds(at - each.running.began)}` : each.launches ? "launches only" : "",
  ]), ["", "", "number", "number", "clip wide-only"]);
  const lines = rows.slice(0, 8).map(({ name }, index) => line(state, `busy.${name}`, name, `c${index}`));
  if (lines.length) chart($("busy-chart"), "busy", "busy", format.percent, ago).show(lines, [0, 1]);
}

// -- memory -----------------------------------------------------------------------------------------

function memory(state) {
  const rows = state.now.memory ?? [];
  fill(body("memory"), [
    ...rows.map((each) => [`arrays on ${each.device}${each.device === "cpu" ? " (64 KiB or more)" : ""}`, format.bytes(each.used), format.bytes(each.peak), each.total ? format.bytes(each.total) : format.NONE]),
    ["process", format.bytes(last(state, "resident")), format.bytes(Math.max(0, ...(state.series.resident ?? []))), format.NONE],
  ], ["", "number", "number", "number"]);
  const lines = named(state, "memory.").slice(0, 8).map((name, index) => line(state, `memory.${name}`, name, `c${index}`));
  if (lines.length) chart($("memory-chart"), "memory", "arrays", format.bytes, ago, 1024).show(lines, [0]);
  holders(state.now.holders ?? { roles: [], layers: [], devices: {} });
}

function holders(held) {
  const groups = memoryGroups(held);
  $("holders-empty").hidden = groups.length > 0;
  fill(body("holders"), groups.flatMap(({ title, tone, total, rows }) => [
    [title, format.bytes(total)],
    ...rows.map(([name, nbytes]) => [name, { share: nbytes / total, text: format.bytes(nbytes), tone }]),
  ]));
  for (const row of body("holders").rows) row.className = row.cells[1].firstElementChild ? "" : "sum";
}

// -- layers -----------------------------------------------------------------------------------------

function layers(state) {
  const rows = state.now.layers ?? [];
  $("layers-empty").hidden = rows.length > 0;
  $("layers").hidden = !rows.length;
  fill(body("layers"), rows.map(({ precision, count, names }) => [
    precision, format.count(count), names.join(", ") + (count > names.length ? ", …" : ""),
  ]), ["", "number", "clip"]);
}

// -- peers and services -----------------------------------------------------------------------------

function peers(state) {
  const rows = state.now.peers ?? [];
  const nodes = state.now.nodes ?? [];
  $("peers-empty").hidden = rows.length > 0 || nodes.length > 0;
  $("peers").hidden = !rows.length;
  const waits = nodes.flatMap((node) => node.waits).map((wait) => `${wait.what} waits for ${wait.for}`);
  set($("node-note"), nodes.map((node) => `${node.name}${node.doing ? `, ${node.doing}` : ""}`).concat(waits).join("; "));
  fill(body("peers"), rows.map((each) => [
    each.name, { text: each.state, state: each.state, title: each.why }, format.count(each.requests), format.count(each.waiting),
    format.bytes(each.bytes), format.seconds(each.seconds),
  ]), ["", "", "number", "number", "number", "number"]);
  if (state.series.traffic) chart($("traffic-chart"), "traffic", "bytes per second", format.bytes, ago, 1024).show([line(state, "traffic", "traffic", "c6")], [0]);
}

function services(state) {
  const rows = state.now.services ?? [];
  $("services-empty").hidden = rows.length > 0;
  $("services").hidden = !rows.length;
  fill(body("services"), rows.map((each) => [
    each.version ? `${each.model} (version ${each.version})` : each.model, format.count(each.rate),
    { share: each.queued / each.limit, text: `${each.queued} of ${each.limit}`, tone: each.queued >= each.limit ? "bad" : "c0" },
    each.p99 === null ? format.NONE : `≤ ${format.seconds(each.p99)}`, format.count(each.requests.refused), format.count(each.requests.failed),
  ]), ["", "number", "", "number", "number", "number"]);
  const names = rows.map((each) => each.model);
  if (names.length) chart($("served-chart"), "served", "responses per second", format.count, ago).show(names.map((name, index) => line(state, `served.${name}.rate`, name, `c${index % 8}`)), [0]);
}

// The panel is shown if a predictor has sessions.
function sessions(state) {
  const rows = (state.now.services ?? []).filter((each) => each.sessions);
  $("sessions").hidden = !rows.length;
  fill(body("sessions-table"), rows.map(({ model, sessions: each }) => [
    model,
    { share: each.open / each.limit, text: `${format.count(each.open)} of ${format.count(each.limit)}`, tone: each.open >= each.limit ? "bad" : "c0" },
    { share: each.nbytes / each.nbytes_limit, text: format.bytes(each.nbytes), tone: each.nbytes >= each.nbytes_limit ? "bad" : "c6" },
    format.count(each.waiting), format.count(each.running),
    each.longest.length ? `${each.longest[0].name} (${format.seconds(each.longest[0].seconds)})` : format.NONE,
  ]), ["", "", "", "number", "number", ""]);
  if (rows.length) chart($("sessions-chart"), "sessions", "open sessions", format.count, ago).show(rows.map(({ model }, index) => line(state, `served.${model}.sessions`, model, `c${index % 8}`)), [0]);
}

// The panel is shown if the process has a generator.
function generation(state) {
  const rows = state.now.generators ?? [];
  $("generation").hidden = !rows.length;
  fill(body("generators"), rows.map((each) => [
    each.model, format.count(each.rate), format.count(each.running),
    { share: each.waiting / each.limit, text: format.count(each.waiting), tone: "c0" },
    { share: each.pages / each.page_count, text: `${format.count(each.pages)} of ${format.count(each.page_count)}`, tone: each.pages === each.page_count ? "bad" : "c6" },
    each.first === null ? format.NONE : `≤ ${format.seconds(each.first)}`,
  ]), ["", "number", "number", "", "", "number"]);
  const adapters = rows.flatMap((each) => Object.entries(each.adapters).map(([name, count]) => `${each.model}:${name} (${format.count(count)})`));
  const preempted = rows.reduce((sum, each) => sum + each.preemptions, 0);
  const notes = [adapters.length ? `requests by adapter: ${adapters.join(", ")}` : "", preempted ? `${format.count(preempted)} preemptions` : ""];
  set($("generation-note"), notes.filter(Boolean).join("; "));
  if (rows.length) chart($("generated-chart"), "generated", "tokens per second", format.count, ago).show(rows.map(({ model }, index) => line(state, `generated.${model}.rate`, model, `c${index % 8}`)), [0]);
}

function about(state) {
  const { program, pid, host, engine, recorder } = state.now;
  set($("program"), `${program} · process ${pid} on ${host}`);
  document.title = `${state.now.warnings?.some((each) => each.present) ? "! " : ""}${program} · flowmx`;
  set($("about"), `engine: ${engine}${recorder ? "" : ". The flight recorder is off (FLOWMX_FLIGHT_RECORDER=0): no timeline, no utilization"}`);
}

const PANELS = [about, glance, warnings, training, actors, memory, layers, peers, services, sessions, generation];

export function show(state) {
  for (const panel of PANELS) panel(state);
}
