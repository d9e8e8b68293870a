// The list of topics; one of them is shown by topic.js.

import * as api from "../api.js";
import { spark } from "../chart.js";
import { ask, field, toast } from "../dialog.js";
import { badge, button, h, link, panel } from "../dom.js";
import { count, plural, rate, size } from "../format.js";
import { table } from "../table.js";
import { show as showTopic } from "./topic.js";

export function state(row) {
  if (row.offline) return badge(`${row.offline} offline`, "bad");
  if (row.behind) return badge(`${row.behind} under-replicated`, "warn");
  return row.internal ? badge("internal") : "";
}

function settingsOf(text) {
  const found = {};
  for (const line of text.split("\n").map((one) => one.trim()).filter(Boolean)) {
    const at = line.indexOf("=");
    if (at < 1) throw new Error(`${line} is not a setting: write name=value, one on each line.`);
    found[line.slice(0, at).trim()] = line.slice(at + 1).trim();
  }
  return found;
}

function create() {
  const name = h("input", { required: true, autocomplete: "off", spellcheck: "false", maxlength: "249" });
  const partitions = h("input", { type: "number", min: 1, placeholder: "the broker's default" });
  const replication = h("input", { type: "number", min: 1, placeholder: "the broker's default" });
  const settings = h("textarea", { rows: 3, spellcheck: "false", placeholder: "retention.ms=86400000" });
  ask("Create a topic", [
    field("Name", name), h("div", { class: "pair" }, field("Partitions", partitions), field("Replication factor", replication)),
    field("Settings, one on each line", settings),
  ], {
    verb: "Create",
    act: async () => {
      await api.order(api.path("topics"), {
        name: name.value, partitions: partitions.value || null, replication: replication.value || null, settings: settingsOf(settings.value),
      });
      toast(`Topic ${name.value} was created.`);
      location.hash = `#/topics/${encodeURIComponent(name.value)}`;
    },
  });
  name.focus();
}

export function show(root, rest) {
  if (rest[0]) return showTopic(root, rest);
  let all = [];
  const list = table([
    { title: "Topic", value: (row) => row.name, cell: (row) => link(row.name, "topics", row.name) },
    { title: "", value: (row) => row.offline * 1e6 + row.behind, cell: state, sign: (row) => `${row.offline} ${row.behind}` },
    { title: "Partitions", value: (row) => row.partitions, show: count, num: true, wide: true },
    { title: "Replicas", value: (row) => row.replication, num: true, wide: true },
    { title: "Messages", value: (row) => row.messages, show: count, num: true },
    { title: "Size", value: (row) => row.size, show: size, num: true, wide: true },
    { title: "In", value: (row) => row.rate ?? -1, show: (_, row) => rate(row.rate), num: true },
    { title: "", value: (row) => row.rate ?? 0, cell: (row) => (row.trend ? spark(row.trend) : ""), sign: (row) => JSON.stringify(row.trend), wide: true },
    { title: "Groups", value: (row) => row.groups, show: count, num: true, wide: true },
    { title: "Lag", value: (row) => row.lag, show: count, num: true },
  ], { key: (row) => row.name, filter: (row) => row.name, label: "Filter topics", empty: "No topics yet." });
  const internal = h("input", { type: "checkbox", onchange: () => draw() });
  const box = panel("All topics", list);
  box.querySelector("header").append(list.filter, h("label", { class: "inline" }, internal, "internal"));
  box.querySelector("header").append(box.aside);

  function draw() {
    const shown = all.filter((row) => internal.checked || !row.internal);
    list.update(shown);
    box.aside.textContent = plural(shown.length, "topic");
  }

  root.append(
    h("div", { class: "head" }, h("h1", null, "Topics"),
      h("div", { class: "actions" }, !api.session.readOnly && button("Create a topic", create, "main"))),
    box);
  return {
    async refresh() {
      all = (await api.ask(api.path("topics"))).topics;
      draw();
    },
  };
}
