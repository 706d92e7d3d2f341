// Opens a model as Netron does, by its own readers: node netron.mjs FOLDER-OF-NETRON MODEL. Prints what is in it.

import { readFileSync } from "node:fs";
import { basename, dirname, join, resolve } from "node:path";
import { pathToFileURL } from "node:url";

const [folder, file] = process.argv.slice(2).map((each) => resolve(each));
const load = (name) => import(pathToFileURL(join(folder, name)).href);
const [base, view] = await Promise.all([load("base.js"), load("view.js")]);

const raised = [];
const host = {
  environment: () => null,
  event: () => {},
  exception: (error) => raised.push(error),
  require: (id) => load(`${id.replace("./", "")}.js`),
};
const context = {
  identifier: basename(file),
  stream: new base.BinaryStream(readFileSync(file)),
  asset: async (name) => readFileSync(join(folder, name), "utf-8"),
  fetch: async (name) => new base.BinaryStream(readFileSync(join(dirname(file), name))),
  require: host.require,
  error: (error) => raised.push(error),
};
const model = await new view.ModelFactoryService(host).open(context);
if (raised.length) throw raised[0];
const graph = model.modules[0];
const shape = (value) => value?.type?.shape?.dimensions?.map(Number) ?? [];
console.log(JSON.stringify({
  format: model.format,
  nodes: graph.nodes.map((node) => [node.type.name, node.name]),
  inputs: graph.inputs.map((each) => each.name),
  outputs: graph.outputs.map((each) => each.name),
  parameters: Object.fromEntries(graph.nodes.flatMap((node) => node.inputs.flatMap((each) => each.value.filter((value) => value.initializer).map((value) => [value.name, shape(value)])))),
}));
