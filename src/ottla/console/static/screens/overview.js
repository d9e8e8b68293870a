// What is wrong, the brokers, and how it goes.

import * as api from "../api.js";
import { chart, spark } from "../chart.js";
import { badge, bar, figures, h, link, panel, route } from "../dom.js";
import { brief, count, plural, rate, size } from "../format.js";
import { table } from "../table.js";

const MOST_PROBLEMS = 12;

function disk(row) {
  if (!row.alive) return "";
  const text = size(row.size);
  return row.total ? h("span", null, bar(1 - row.usable / row.total), `${text} · ${size(row.usable)} free`) : text;
}

function condition(row) {
  if (!row.alive) return badge("not there", "bad");
  if (row.failed.length) return badge("disk failed", "bad");
  if (row.out) return badge(`${row.out} out of sync`, "warn");
  return row.controller ? badge("controller", "accent") : badge("in sync", "ok");
}

function brokers() {
  return table([
    { title: "Broker", value: (row) => row.id, num: false },
    { title: "Condition", value: (row) => (row.alive ? row.out : -1), cell: condition, sign: (row) => JSON.stringify([row.alive, row.failed, row.out, row.controller]) },
    { title: "Address", value: (row) => (row.alive ? `${row.host}:${row.port}` : "–"), wide: true },
    { title: "Rack", value: (row) => row.rack ?? "–", wide: true },
    { title: "Leads", value: (row) => row.leaders ?? 0, show: count, num: true },
    { title: "Replicas", value: (row) => row.replicas ?? 0, show: count, num: true },
    { title: "In", value: (row) => row.rate ?? -1, show: (_, row) => rate(row.rate), num: true },
    { title: "", value: (row) => row.rate ?? 0, cell: (row) => spark(row.trend), sign: (row) => JSON.stringify(row.trend), wide: true },
    { title: "Disk", value: (row) => row.size ?? 0, cell: disk, sign: (row) => `${row.size} ${row.usable}`, wide: true },
  ], { key: (row) => row.id });
}

function busiest() {
  return table([
    { title: "Topic", value: (row) => row.name, cell: (row) => link(row.name, "topics", row.name) },
    { title: "In", value: (row) => row.rate ?? -1, show: (_, row) => rate(row.rate), num: true },
    { title: "", value: (row) => row.rate ?? 0, cell: (row) => spark(row.trend), sign: (row) => JSON.stringify(row.trend), wide: true },
    { title: "Messages", value: (row) => row.messages, show: count, num: true },
    { title: "Size", value: (row) => row.size, show: size, num: true },
    { title: "Lag", value: (row) => row.lag, show: count, num: true },
  ], { key: (row) => row.name, sort: 1, down: true, empty: "No topics yet." });
}

function condition_of(data, box) {
  const sign = JSON.stringify([data.problems, data.problem]);
  if (box.sign === sign) return;
  box.sign = sign;
  const found = [...(data.problem ? [{ severe: true, text: `The cluster does not answer, so this is how it was: ${data.problem}` }] : []), ...data.problems];
  if (!found.length) {
    box.replaceChildren(h("p", { class: "calm" }, "All partitions are led, and all replicas are in sync."));
    return;
  }
  const severe = found.some((problem) => problem.severe);
  const rest = found.length - MOST_PROBLEMS;
  box.replaceChildren(h("section", { class: severe ? "trouble" : "trouble mild", role: "alert", "aria-label": "Problems" },
    h("h2", null, plural(found.length, "problem")),
    h("ul", null,
      found.slice(0, MOST_PROBLEMS).map((problem) => h("li", null, problem.topic ? h("a", { href: route("topics", problem.topic, "partitions") }, problem.text) : problem.text)),
      rest > 0 && h("li", null, `and ${count(rest)} more`))));
}

export function show(root) {
  const condition = h("div");
  const heading = h("span", { class: "note mono" });
  const stats = figures(["Brokers", "Topics", "Partitions", "Messages", "On disk", "Written", "Lag of groups"]);
  const written = chart("Messages written per second, by broker", rate);
  const read = chart("Messages written and read per second", rate);
  const lag = chart("Lag of all groups", brief);
  const stored = chart("Bytes on disk", size);
  const nodes = brokers();
  const topics = busiest();
  const inner = (content) => h("div", { class: "inner" }, content);
  root.append(
    h("div", { class: "head" }, h("h1", null, "Overview"), heading), condition, stats,
    panel("Brokers", nodes),
    h("div", { class: "grid" },
      panel("Written, by leader", inner(written)), panel("Written and read", inner(read)),
      panel("Lag of groups", inner(lag)), panel("On disk", inner(stored))),
    panel("Busiest topics", topics));

  return {
    async refresh() {
      const data = await api.ask(api.path("overview"));
      const { totals, times, lines } = data;
      heading.textContent = `${api.session.bootstrap} · ${data.cluster ?? ""}`;
      condition_of(data, condition);
      stats.update({
        Brokers: count(totals.brokers), Topics: count(totals.topics), Partitions: count(totals.partitions), Messages: brief(totals.messages),
        "On disk": size(totals.size), Written: rate(totals.rate), "Lag of groups": brief(totals.lag),
      });
      written.update({ times, series: Object.entries(lines.in).map(([id, values]) => ({ name: `Broker ${id}`, values })) });
      read.update({ times, series: [{ name: "Written", values: lines.all }, { name: "Read, as committed", values: lines.read }] });
      lag.update({ times, series: [{ name: "Lag", values: lines.lag }] });
      stored.update({ times, series: [{ name: "All replicas", values: lines.size }] });
      nodes.update(data.brokers);
      topics.update(data.busiest);
    },
  };
}
