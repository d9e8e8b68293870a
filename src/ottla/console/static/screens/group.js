// One group: how far behind it is and was, who is in it, and changes to what it committed, seen before they are made.

import * as api from "../api.js";
import { chart } from "../chart.js";
import { ask, confirmByName, field, options, toast } from "../dialog.js";
import { button, figures, h, link, panel } from "../dom.js";
import { brief, count, plural } from "../format.js";
import { table } from "../table.js";
import { stateBadge } from "./groups.js";

const where = (name, ...pieces) => `${api.path("group", ...pieces)}?${new URLSearchParams({ name })}`;

const STRATEGIES = [
  ["earliest", "to the earliest"], ["latest", "to the latest"], ["offset", "to an offset"], ["shift", "by a number of messages"],
  ["time", "to a time"], ["ago", "to so many minutes ago"],
];

function stepsTable(steps) {
  const rows = steps.slice(0, 200).map((step) => h("tr", null,
    h("td", null, `${step.topic}-${step.partition}`), h("td", { class: "num" }, count(step.now)),
    h("td", { class: "num" }, step.new === null ? "deleted" : count(step.new)),
    h("td", { class: "num" }, step.new === null || step.now === null ? "" : `${step.new > step.now ? "+" : ""}${count(step.new - step.now)}`)));
  return h("div", null,
    h("div", { class: "rows" }, h("table", null,
      h("thead", null, h("tr", null, h("th", null, "Partition"), h("th", { class: "num" }, "Now"), h("th", { class: "num" }, "Then"), h("th", { class: "num" }, "Change"))),
      h("tbody", null, rows))),
    h("p", { class: "note" }, `${plural(steps.length, "partition")} would change${steps.length > 200 ? "; the first 200 are shown" : ""}.`));
}

/** Choose, see what would change, and only then do it. */
function plan(name, data, deleting, done) {
  let steps = null;
  const topics = [...new Set(data.partitions.map((row) => row.topic))].sort();
  const topic = h("select", null, options([["", "All topics of the group"], ...topics.map((one) => [one, one])]));
  const partitions = h("input", { placeholder: "all", autocomplete: "off" });
  const strategy = h("select", null, options(STRATEGIES));
  const value = h("input", { type: "number", value: "0" });
  const time = h("input", { type: "datetime-local", step: 1 });
  const valueField = field("Value", value);
  const timeField = field("Time", time);
  const preview = h("div", { role: "status" });
  const look = button("Preview", () => see());

  const react = () => {
    valueField.hidden = !["offset", "shift", "ago"].includes(strategy.value);
    timeField.hidden = strategy.value !== "time";
  };
  const forget = () => {
    steps = null;
    dialog.submit.disabled = true;
    preview.replaceChildren();
    react();
  };

  async function see() {
    const query = new URLSearchParams({ name, topic: topic.value, partitions: partitions.value, strategy: deleting ? "delete" : strategy.value });
    if (strategy.value === "time") query.set("value", new Date(time.value).getTime());
    else query.set("value", strategy.value === "ago" ? Math.round(Number(value.value) * 60000) : value.value);
    try {
      steps = (await api.ask(`${api.path("group", "preview")}?${query}`)).steps;
    } catch (problem) {
      dialog.complain(problem);
      return;
    }
    preview.replaceChildren(steps.length ? stepsTable(steps) : h("p", { class: "note" }, "Nothing would change."));
    dialog.submit.disabled = !steps.length;
  }

  const dialog = ask(deleting ? "Delete committed offsets" : "Reset offsets", [
    h("div", { class: "pair" }, field("Topic", topic), field("Partitions", partitions)),
    !deleting && h("div", { class: "pair" }, field("Move", strategy), valueField, timeField),
    h("div", null, look), preview,
  ], {
    verb: deleting ? "Delete offsets" : "Reset offsets",
    danger: deleting,
    verbReady: false,
    act: async () => {
      const { changed } = await api.order(where(name, "offsets"), { steps });
      await done();
      toast(deleting ? `${plural(changed, "offset")} deleted.` : `${plural(changed, "offset")} reset.`);
    },
  });
  for (const input of [topic, partitions, strategy, value, time]) input.addEventListener("input", forget);
  react();
}

export function show(root, [name]) {
  let data = null;
  let byPartition = false;
  const state = h("span");
  const stats = figures(["Lag", "Members", "Partitions", "Protocol", "Assignor", "Coordinator"]);
  const lag = chart("Lag over time", brief, true);
  const list = table([
    { title: "Topic", value: (row) => row.topic, cell: (row) => link(row.topic, "topics", row.topic) },
    { title: "Partition", value: (row) => row.partition, num: true },
    { title: "Committed", value: (row) => row.committed ?? -1, show: (_, row) => count(row.committed), num: true },
    { title: "Log end", value: (row) => row.latest ?? -1, show: (_, row) => count(row.latest), num: true, wide: true },
    { title: "Lag", value: (row) => row.lag ?? -1, show: (_, row) => count(row.lag), num: true },
    { title: "Read by", value: (row) => row.member ?? "–", wide: true },
  ], { key: (row) => `${row.topic} ${row.partition}`, filter: (row) => `${row.topic} ${row.partition} ${row.member ?? ""}`, label: "Filter partitions", empty: "Nothing committed and nothing assigned." });
  const members = table([
    { title: "Member", value: (row) => row.id, wrap: true },
    { title: "Client", value: (row) => row.client, wide: true },
    { title: "Host", value: (row) => row.host, wide: true },
    { title: "Partitions", value: (row) => row.count, num: true },
    { title: "Assignment", value: (row) => row.assignment || "–", wrap: true },
  ], { key: (row) => row.id, empty: "No members: nobody reads in this group now." });
  const choice = [["by topic", false], ["by partition", true]].map(([text, value]) => h("button", {
    type: "button", "aria-pressed": String(value === byPartition), onclick: (event) => {
      byPartition = value;
      for (const one of event.target.parentNode.children) one.setAttribute("aria-pressed", String(one === event.target));
      draw();
    },
  }, text));

  function draw() {
    lag.update({ times: data.times, series: (byPartition ? data.byPartition : data.byTopic).slice(0, 6) });
  }

  function remove() {
    confirmByName("Delete the group", name, "All that it committed is deleted with it: consumers of that name begin anew.", "Delete",
      async (typed) => {
        await api.order(where(name), { confirm: typed }, "DELETE");
        toast(`Group ${name} was deleted.`);
        location.hash = "#/groups";
      });
  }

  const actions = api.session.readOnly ? null : h("div", { class: "actions" },
    button("Reset offsets", () => plan(name, data, false, screen.refresh)),
    button("Delete offsets", () => plan(name, data, true, screen.refresh)),
    button("Delete", remove, "danger"));
  const over = panel("Lag over time", h("div", { class: "inner" }, lag));
  over.aside.append(h("div", { class: "segmented" }, choice));
  const parts = panel("Partitions", list);
  parts.querySelector("header").append(list.filter);
  root.append(
    h("div", { class: "head" }, h("div", { class: "crumb" }, h("a", { href: "#/groups" }, "Groups")), h("h1", null, name), state, actions),
    stats, over, panel("Members", members), parts);

  const screen = {
    async refresh() {
      data = await api.ask(where(name));
      state.replaceChildren(stateBadge(data.state));
      stats.update({
        Lag: brief(data.lag), Members: count(data.members.length), Partitions: count(data.partitions.length),
        Protocol: data.type, Assignor: data.assignor || "–", Coordinator: data.coordinator,
      });
      draw();
      list.update(data.partitions);
      members.update(data.members);
    },
  };
  return screen;
}
