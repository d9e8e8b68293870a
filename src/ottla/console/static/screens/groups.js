// The list of groups; one of them is shown by group.js.

import * as api from "../api.js";
import { spark } from "../chart.js";
import { badge, h, link, panel } from "../dom.js";
import { count, plural } from "../format.js";
import { table } from "../table.js";
import { show as showGroup } from "./group.js";

const KINDS = { Stable: "ok", Empty: "", Dead: "bad", PreparingRebalance: "warn", CompletingRebalance: "warn", Assigning: "warn", Reconciling: "warn" };

export function stateBadge(state) {
  return badge(state || "unknown", KINDS[state] ?? "");
}

export function show(root, rest) {
  if (rest[0] !== undefined && rest[0] !== "") return showGroup(root, rest);
  const list = table([
    { title: "Group", value: (row) => row.name, cell: (row) => link(row.name, "groups", row.name) },
    { title: "State", value: (row) => row.state, cell: (row) => stateBadge(row.state) },
    { title: "Protocol", value: (row) => row.type, wide: true },
    { title: "Members", value: (row) => row.members, show: count, num: true },
    { title: "Topics", value: (row) => row.topics, show: count, num: true, wide: true },
    { title: "Coordinator", value: (row) => row.coordinator, num: true, wide: true },
    { title: "Lag", value: (row) => row.lag, show: count, num: true },
    { title: "", value: (row) => row.lag, cell: (row) => (row.trend ? spark(row.trend) : ""), sign: (row) => JSON.stringify(row.trend), wide: true },
  ], { key: (row) => row.name, sort: 6, down: true, filter: (row) => row.name, label: "Filter groups", empty: "No groups yet." });
  const box = panel("All groups", list);
  box.querySelector("header").append(list.filter, box.aside);
  root.append(h("div", { class: "head" }, h("h1", null, "Groups")), box);
  return {
    async refresh() {
      const { groups } = await api.ask(api.path("groups"));
      list.update(groups);
      box.aside.textContent = plural(groups.length, "group");
    },
  };
}
