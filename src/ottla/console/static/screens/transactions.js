// Transactions and producers: what hangs first, then what is open, then who writes.

import * as api from "../api.js";
import { ask, options, toast } from "../dialog.js";
import { badge, button, h, link, panel, say } from "../dom.js";
import { count, duration, moment, plural } from "../format.js";
import { table } from "../table.js";

const KINDS = { Ongoing: "accent", PrepareCommit: "warn", PrepareAbort: "warn", Empty: "", CompleteCommit: "ok", CompleteAbort: "" };
const LIMITS = [["60000", "1 minute"], ["300000", "5 minutes"], ["900000", "15 minutes"], ["3600000", "1 hour"]];

export function show(root) {
  let data = null;
  const limit = h("select", { "aria-label": "Hanging after" }, options(LIMITS, "900000"));
  const verdict = h("div");
  const age = (since) => duration(data.now - since);
  const opened = table([
    { title: "Partition", value: (row) => `${row.topic}-${row.partition}`, cell: (row) => link(`${row.topic}-${row.partition}`, "topics", row.topic, "partitions") },
    { title: "", value: (row) => (row.hangs ? 1 : 0), cell: (row) => (row.hangs ? badge("hangs", "bad") : badge("open", "accent")) },
    { title: "Transactional id", value: (row) => row.id ?? "none", wide: true },
    { title: "Producer", value: (row) => row.producer, show: (_, row) => `${row.producer} · epoch ${row.epoch}`, num: true },
    { title: "From offset", value: (row) => row.offset, show: count, num: true, wide: true },
    { title: "Silent for", value: (row) => row.last, sign: (row) => age(row.last), cell: (row) => age(row.last), num: true },
    { title: "", value: (row) => String(row.hangs), cell: (row) => (row.hangs && !api.session.readOnly ? button("Abort", () => abort(row), "danger") : "") },
  ], { key: (row) => `${row.topic} ${row.partition} ${row.producer}`, sort: 1, down: true, empty: "No transaction is open in any partition." });
  const ids = table([
    { title: "Transactional id", value: (row) => row.id },
    { title: "State", value: (row) => row.state, cell: (row) => badge(row.state, KINDS[row.state] ?? "") },
    { title: "Running for", value: (row) => (row.started === null ? -1 : data.now - row.started), sign: (row) => (row.started === null ? "–" : age(row.started)), cell: (row) => (row.started === null ? "–" : age(row.started)), num: true },
    { title: "Timeout", value: (row) => row.timeout, show: duration, num: true, wide: true },
    { title: "Producer", value: (row) => row.producer, show: (_, row) => `${row.producer} · epoch ${row.epoch}`, num: true, wide: true },
    { title: "Coordinator", value: (row) => row.coordinator, num: true, wide: true },
    { title: "Partitions", value: (row) => row.partitions.join(", ") || "–", wrap: true },
  ], { key: (row) => row.id, sort: 2, down: true, filter: (row) => row.id, label: "Filter transactional ids", empty: "No transactional ids." });
  const producers = table([
    { title: "Producer", value: (row) => row.producer },
    { title: "Epoch", value: (row) => row.epoch, num: true },
    { title: "Transactional id", value: (row) => row.id ?? "–", wide: true },
    { title: "Last wrote", value: (row) => row.last, show: moment },
    { title: "Partitions", value: (row) => row.count, show: count, num: true },
    { title: "Topics", value: (row) => row.topics, wrap: true, wide: true },
  ], { key: (row) => row.producer, sort: 3, down: true, empty: "No producer with an id has written lately." });

  function abort(row) {
    ask("Abort a hanging transaction", [
      h("p", null, `Producer ${row.producer} (epoch ${row.epoch}) has a transaction open in ${row.topic}-${row.partition} since offset ${count(row.offset)}, and no coordinator will end it.`),
      h("p", null, "What it wrote becomes invisible to read_committed readers, and they go on behind it."),
    ], {
      verb: "Abort it",
      danger: true,
      act: async () => {
        await api.order(api.path("transactions", "abort"), { topic: row.topic, partition: row.partition, producer: row.producer, epoch: row.epoch, limit: limit.value });
        await screen.refresh();
        toast("The transaction was aborted.");
      },
    });
  }

  const open = panel("Open in partitions", opened);
  open.aside.append(h("label", { class: "inline beside" }, "Hanging after", limit));
  const known = panel("Transactional ids", ids);
  known.querySelector("header").append(ids.filter);
  root.append(h("div", { class: "head" }, h("h1", null, "Transactions")), verdict, open, known, panel("Producers", producers));
  limit.addEventListener("change", () => screen.refresh());

  const screen = {
    async refresh() {
      data = await api.ask(`${api.path("transactions")}?limit=${limit.value}`);
      const stuck = data.open.filter((row) => row.hangs).length;
      const text = stuck ? `${plural(stuck, "transaction hangs", "transactions hang")}: readers of committed messages stand still behind ${stuck === 1 ? "it" : "them"}.` : "No transaction hangs.";
      if (verdict.textContent !== text) verdict.replaceChildren(h("p", { class: stuck ? "trouble" : "calm", role: stuck ? "alert" : null }));
      say(verdict.firstChild, text);
      opened.update(data.open);
      ids.update(data.transactions);
      producers.update(data.producers);
    },
  };
  return screen;
}
