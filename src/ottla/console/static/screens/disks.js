// Logs on disk: directories, what they hold, and segments where the files are on this machine.

import * as api from "../api.js";
import { badge, bar, button, h, link, panel } from "../dom.js";
import { count, duration, moment, plural, size } from "../format.js";
import { table } from "../table.js";

const STATES = { active: "accent", dirty: "warn", clean: "ok", closed: "" };

const percent = (share) => `${Math.round(share * 100)} %`;

async function segments(row) {
  const data = await api.ask(api.path("disks", row.broker, row.topic, row.partition));
  const now = Date.now();
  const list = table([
    { title: "First offset", value: (one) => one.base, show: count, num: true },
    { title: "", value: (one) => one.state, cell: (one) => badge(one.state, STATES[one.state]) },
    { title: "Size", value: (one) => one.size, show: size, num: true },
    { title: "Age", value: (one) => now - one.newest, show: duration, num: true },
    { title: "Newest message", value: (one) => one.newest, show: moment, wide: true },
  ], { key: (one) => one.base });
  list.update(data.segments);
  const compaction = data.compacted ? `${percent(data.dirty)} of the closed segments are dirty` + (data.cleanUpTo === null ? ", never cleaned yet." : `, clean up to offset ${count(data.cleanUpTo)}.`) : "The topic is not compacted.";
  const dialog = h("dialog", { "aria-label": "Segments" }, h("h2", null, `Segments of ${row.topic}-${row.partition}`),
    h("p", { class: "note" }, `${data.path} · ${compaction}`), list, h("div", { class: "buttons" }, button("Close", () => dialog.close())));
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
}

export function show(root) {
  let now = Date.now();
  const dirs = table([
    { title: "Broker", value: (row) => row.broker },
    { title: "Directory", value: (row) => row.path, wrap: true },
    { title: "", value: (row) => row.error ?? "", cell: (row) => (row.error ? badge(row.error, "bad") : badge("works", "ok")) },
    { title: "Logs", value: (row) => row.replicas, show: count, num: true, wide: true },
    { title: "Taken", value: (row) => row.size, show: size, num: true },
    { title: "Volume", value: (row) => (row.total ? 1 - row.usable / row.total : 0), sign: (row) => `${row.usable} ${row.total}`,
      cell: (row) => (row.total ? h("span", null, bar(1 - row.usable / row.total), `${size(row.usable)} of ${size(row.total)} free`) : "–"), wide: true },
  ], { key: (row) => `${row.broker} ${row.path}` });
  const logs = table([
    { title: "Log", value: (row) => `${row.topic}-${row.partition}`, cell: (row) => link(`${row.topic}-${row.partition}`, "topics", row.topic, "partitions") },
    { title: "Broker", value: (row) => row.broker, num: true },
    { title: "Size", value: (row) => row.size, show: size, num: true },
    { title: "Behind", value: (row) => row.lag, show: (value, row) => (row.future ? `moving, ${count(value)} to go` : value > 0 ? count(value) : "–"), num: true, wide: true },
    { title: "Segments", value: (row) => row.segments ?? -1, sign: (row) => `${row.segments}`, num: true,
      cell: (row) => (row.segments ? h("button", { type: "button", class: "quiet", "aria-label": `Segments of ${row.topic}-${row.partition}`, onclick: () => segments(row) }, count(row.segments)) : "–") },
    { title: "Oldest", value: (row) => (row.oldest ? now - row.oldest : -1), sign: (row) => (row.oldest ? duration(now - row.oldest) : "–"), cell: (row) => (row.oldest ? duration(now - row.oldest) : "–"), num: true, wide: true },
    { title: "Dirty", value: (row) => row.dirty ?? -1, show: (_, row) => (row.dirty === null || row.dirty === undefined ? "–" : percent(row.dirty)), num: true },
  ], { key: (row) => `${row.broker} ${row.path} ${row.topic} ${row.partition}`, sort: 2, down: true, filter: (row) => `${row.topic}-${row.partition} ${row.path}`, label: "Filter logs", empty: "No logs." });
  const note = h("p", { class: "note inner" });
  const box = panel("Logs", note, logs);
  box.querySelector("header").append(logs.filter, box.aside);
  root.append(h("div", { class: "head" }, h("h1", null, "Disks")), panel("Log directories", dirs), box);
  return {
    async refresh() {
      const data = await api.ask(api.path("disks"));
      now = Date.now();
      dirs.update(data.dirs);
      logs.update(data.logs);
      box.aside.textContent = plural(data.logs.length, "log");
      note.textContent = data.local.length ? "" : "Segments, ages and the dirty part are in the files: start the console with --log-dirs on a broker's machine to see them.";
      note.hidden = data.local.length > 0;
    },
  };
}
