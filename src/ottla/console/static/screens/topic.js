// One topic: its messages, partitions, settings and readers.

import * as api from "../api.js";
import { chart } from "../chart.js";
import { ask, confirmByName, field, toast } from "../dialog.js";
import { badge, button, figures, h, link, panel, route } from "../dom.js";
import { brief, count, rate, size } from "../format.js";
import { table } from "../table.js";
import { messages } from "./messages.js";
import { sendDialog } from "./sending.js";

const TABS = [["messages", "Messages"], ["partitions", "Partitions"], ["settings", "Settings"], ["groups", "Groups"]];

function replicas(row) {
  return h("span", null, row.replicas.map((one) => {
    const kind = one.broker === row.leader ? "leader" : one.inSync ? "" : "out";
    const told = [one.broker === row.leader && "leader", one.inSync ? "in sync" : "out of sync", one.size !== null && size(one.size),
      one.lag ? `${count(one.lag)} behind` : ""].filter(Boolean).join(", ");
    return h("span", { class: `replica ${kind}`, title: told, "aria-label": `broker ${one.broker}, ${told}` }, one.broker);
  }));
}

function behind(row) {
  return Math.max(0, ...row.replicas.map((one) => one.lag ?? 0));
}

function partitions(name) {
  const list = table([
    { title: "Partition", value: (row) => row.partition },
    { title: "Leader", value: (row) => row.leader, cell: (row) => (row.leader < 0 ? badge("offline", "bad") : String(row.leader)) },
    { title: "Replicas", value: (row) => row.replicas.filter((one) => !one.inSync).length, cell: replicas, sign: (row) => JSON.stringify([row.leader, row.replicas]) },
    { title: "First", value: (row) => row.earliest ?? -1, show: (_, row) => count(row.earliest), num: true, wide: true },
    { title: "Next", value: (row) => row.latest ?? -1, show: (_, row) => count(row.latest), num: true },
    { title: "Messages", value: (row) => (row.latest ?? 0) - (row.earliest ?? 0), show: count, num: true },
    { title: "Size", value: (row) => row.size, show: size, num: true, wide: true },
    { title: "Slowest replica", value: behind, show: (value) => (value ? `${count(value)} behind` : "–"), num: true, wide: true },
    { title: "Epoch", value: (row) => row.epoch, num: true, wide: true },
  ], { key: (row) => row.partition });
  const written = chart("Messages written per second", rate);
  const box = h("div", null, panel("Written", h("div", { class: "inner" }, written)), panel("Partitions", list));
  return {
    box,
    update(data) {
      list.update(data.parts);
      written.update({ times: data.times, series: [{ name, values: data.line }] });
    },
  };
}

function readers() {
  const list = table([
    { title: "Group", value: (row) => row.group, cell: (row) => link(row.group, "groups", row.group) },
    { title: "State", value: (row) => row.state, cell: (row) => badge(row.state, row.state === "Stable" ? "ok" : "") },
    { title: "Members", value: (row) => row.members, show: count, num: true },
    { title: "Lag here", value: (row) => row.lag, show: count, num: true },
  ], { key: (row) => row.group, sort: 3, down: true, empty: "No group has committed anything for this topic." });
  return { box: panel("Groups that read it", list), update: (data) => list.update(data.readers) };
}

function settings(name) {
  let known = [];
  const changed = h("input", { type: "checkbox", onchange: () => draw() });
  const list = table([
    { title: "Setting", value: (row) => row.name, cell: (row) => h("span", { class: "mono", title: row.documentation ?? "" }, row.name) },
    { title: "Value", value: (row) => (row.sensitive ? "hidden" : row.value === "" ? "(empty)" : row.value ?? "–"), wrap: true },
    { title: "From", value: (row) => row.source, cell: (row) => (row.isDefault ? badge(origin(row.source)) : badge("this topic", "accent")), wide: true },
    { title: "", value: () => "", sign: (row) => `${row.value} ${row.isDefault}`, cell: (row) => (api.session.readOnly || row.readOnly ? "" : button("Change", () => change(row), "quiet")) },
  ], { key: (row) => row.name, filter: (row) => `${row.name} ${row.value}`, label: "Filter settings" });
  const box = panel("Settings", list);
  box.querySelector("header").append(list.filter, h("label", { class: "inline" }, changed, "changed only"));

  function origin(source) {
    return source === "DEFAULT_CONFIG" ? "default" : source.toLowerCase().replaceAll("_", " ").replace(" config", "");
  }

  function change(row) {
    const input = h("input", { value: row.value ?? "", spellcheck: "false", autocomplete: "off" });
    const save = async (body) => {
      await api.order(api.path("topics", name, "settings"), body);
      await load();
      toast(`${row.name} was changed.`);
    };
    const content = [row.documentation && h("p", { class: "note" }, row.documentation), field("Value", input)];
    const dialog = ask(row.name, content, { verb: "Save", act: () => save({ set: { [row.name]: input.value } }) });
    if (!row.isDefault) {
      const back = button("Back to the default", async () => {
        try {
          await save({ delete: [row.name] });
          dialog.close();
        } catch (problem) {
          dialog.complain(problem);
        }
      });
      dialog.querySelector(".buttons").prepend(back);
    }
    input.select();
  }

  function draw() {
    list.update(known.filter((row) => !changed.checked || !row.isDefault));
  }

  async function load() {
    known = (await api.ask(api.path("topics", name, "settings"))).settings;
    draw();
  }

  let loaded = null;
  return { box, update: () => (loaded ??= load()) };
}

export function show(root, [name, tab = "messages"]) {
  let latest = null;
  const stats = figures(["Messages", "Size", "Written", "Partitions", "Replicas", "Lag of groups"]);
  const condition = h("span");
  const parts = { messages: () => messages(name, () => latest), partitions: () => partitions(name), settings: () => settings(name), groups: readers };
  const part = (parts[tab] ?? parts.messages)();

  function grow() {
    const number = h("input", { type: "number", min: latest.partitions + 1, value: latest.partitions + 1, required: true });
    ask("Add partitions", [
      h("p", null, `${name} has ${count(latest.partitions)}. Keys may then go to other partitions than before, and partitions cannot be taken away again.`),
      field("Partitions in all", number)],
    {
      verb: "Add",
      act: async () => {
        await api.order(api.path("topics", name, "partitions"), { count: number.value });
        await screen.refresh();
        toast(`${name} has ${number.value} partitions now.`);
      },
    });
  }

  function remove() {
    confirmByName("Delete the topic", name, `All ${count(latest.messages)} messages of ${name} are deleted with it. There is no way back.`, "Delete",
      async (typed) => {
        await api.order(api.path("topics", name), { confirm: typed }, "DELETE");
        toast(`Topic ${name} was deleted.`);
        location.hash = "#/topics";
      });
  }

  const actions = api.session.readOnly ? null : h("div", { class: "actions" },
    button("Send a message", () => sendDialog(name, latest), "main"), button("Add partitions", grow), button("Delete", remove, "danger"));
  root.append(
    h("div", { class: "head" }, h("div", { class: "crumb" }, h("a", { href: "#/topics" }, "Topics")), h("h1", null, name), condition, actions),
    stats,
    h("div", { class: "tabs" }, TABS.map(([key, title]) => h("a", { href: route("topics", name, key), "aria-current": key === tab ? "page" : null }, title))),
    part.box);

  const screen = {
    async refresh() {
      latest = await api.ask(api.path("topics", name));
      stats.update({
        Messages: count(latest.messages), Size: size(latest.size), Written: rate(latest.rate), Partitions: count(latest.partitions),
        Replicas: count(latest.replication), "Lag of groups": brief(latest.lag),
      });
      const bad = latest.offline ? badge(`${latest.offline} offline`, "bad") : latest.behind ? badge(`${latest.behind} under-replicated`, "warn") : latest.internal ? badge("internal") : "";
      condition.replaceChildren(bad);
      await part.update(latest);
    },
    close: () => part.close?.(),
  };
  return screen;
}
