// Messages of a topic: search through all of it, or see what comes. What they hold is only ever text on the page.

import * as api from "../api.js";
import { options, toast } from "../dialog.js";
import { button, h, say } from "../dom.js";
import { count, moment, plural, rate, size } from "../format.js";
import { inline, ways } from "./payload.js";
import { sendDialog } from "./sending.js";

const LIMIT = 100;
const TAIL_ROWS = 400;

const local = (date) => new Date(date.getTime() - date.getTimezoneOffset() * 60000).toISOString().slice(0, 19);

export function messages(topic, about) {
  const words = h("input", { type: "search", placeholder: "Search key, value and headers", "aria-label": "Search for" });
  const where = h("select", { "aria-label": "Search in" }, options([["", "Everywhere"], ["key", "In keys"], ["value", "In values"], ["headers", "In headers"]]));
  const mode = h("select", { "aria-label": "How to match" }, options([["contains", "Contains"], ["exact", "Equals"], ["regex", "Matches regex"]]));
  const from = h("select", { "aria-label": "From" }, options([["newest", "Newest first"], ["oldest", "From the oldest"], ["offset", "From offset"], ["time", "From time"]]));
  const offset = h("input", { type: "number", min: 0, value: "0", class: "short", "aria-label": "Offset", hidden: true });
  const time = h("input", { type: "datetime-local", step: 1, value: local(new Date(Date.now() - 3600000)), "aria-label": "Time", hidden: true });
  const partitions = h("input", { class: "short", placeholder: "All partitions", "aria-label": "Partitions", title: "Such as 3, or 0-4,7" });
  const committed = h("input", { type: "checkbox" });
  const start = h("button", { type: "submit", class: "main" }, "Search");
  const follow = button("Live tail", () => run(tail));
  const stop = button("Stop", () => end());
  const form = h("form", { class: "search", role: "search" }, h("div", { class: "first" }, words, start, follow, stop), where, mode, from, offset, time, partitions,
    h("label", { class: "inline", title: "Leave out what transactions have not committed" }, committed, "committed only"));
  const track = h("i");
  const words_of = h("span", { role: "status" });
  const skipped = h("span", { class: "skipped", hidden: true });
  const progress = h("div", { class: "progress" }, h("div", { class: "track", "aria-hidden": "true" }, track), h("div", null, words_of, " ", skipped));
  const list = h("ol", { class: "messages", "aria-label": "Messages" });
  const more = h("div", { class: "pager", hidden: true }, h("span", null, "There may be more."), button("Search on", () => run(() => search(resume))));
  const box = h("section", { class: "panel" }, form, progress, list, more);
  let control = null;
  let resume = null;
  stop.hidden = true;

  from.addEventListener("change", () => {
    offset.hidden = from.value !== "offset";
    time.hidden = from.value !== "time";
  });
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    run(() => search(null));
  });

  function query(extra) {
    const found = new URLSearchParams({ q: words.value, in: where.value, mode: mode.value, partitions: partitions.value, ...extra });
    if (committed.checked) found.set("isolation", "read_committed");
    return found;
  }

  function end() {
    control?.abort();
    control = null;
    stop.hidden = true;
    box.removeAttribute("aria-busy");
  }

  async function run(work) {
    end();
    const mine = (control = new AbortController());
    stop.hidden = false;
    box.setAttribute("aria-busy", "true");
    try {
      await work(mine.signal);
    } catch (problem) {
      if (problem.name !== "AbortError") {
        say(words_of, problem.message);
        toast(problem.message, true);
      }
    }
    if (control === mine) end();
  }

  async function search(going) {
    if (!going) list.replaceChildren();
    const before = list.children.length;
    more.hidden = true;
    skipped.hidden = true;
    resume = null;
    let told = { read: 0, total: 0, found: 0, seconds: 0 };
    const at = from.value === "offset" ? offset.value : from.value === "time" ? new Date(time.value).getTime() : "";
    const tell = (how) => {
      const speed = told.seconds > 0.5 ? ` · ${rate(told.read / told.seconds)}` : "";
      say(words_of, `${how}${plural(before + told.found, "message")} · ${count(told.read)} of ${count(told.total)} looked at${speed}`);
      track.style.width = `${told.total ? (told.read / told.total) * 100 : 100}%`;
    };
    const signal = control.signal;
    let finished = false;
    signal.addEventListener("abort", () => finished || tell("Stopped: "));
    await api.stream(`${api.path("topics", topic, "search")}?${query({ from: from.value, at, limit: LIMIT, resume: going ?? "" })}`, {
      hits: ({ rows }) => (from.value === "newest" ? rows.forEach(inOrder) : list.append(...rows.map(line))),
      progress: (news) => {
        told = news;
        tell("Searching: ");
      },
      problem: ({ error }) => { throw new Error(error); },
      done: (news) => {
        finished = true;
        resume = news.resume;
        more.hidden = !resume;
        told.found = news.found;
        tell(before + news.found ? "" : "Nothing found: ");
      },
    }, signal);
  }

  async function tail(signal) {
    list.replaceChildren();
    more.hidden = true;
    track.style.width = "0";
    let read = 0;
    let lost = 0;
    say(words_of, "Waiting for messages …");
    await api.stream(`${api.path("topics", topic, "tail")}?${query({})}`, {
      begun: (news) => say(words_of, `Live: ${plural(news.partitions, "partition")}, waiting for messages …`),
      news: (news) => {
        read += news.read;
        lost += news.skipped;
        list.prepend(...news.rows.map(line).reverse());
        while (list.children.length > TAIL_ROWS) list.lastChild.remove();
        if (read) say(words_of, `Live: ${plural(read, "message")}`);
        skipped.hidden = !lost;
        say(skipped, `· ${count(lost)} not shown: they came faster than anybody reads`);
      },
      problem: ({ error }) => { throw new Error(error); },
    }, signal);
  }

  /** Hits of a large window come as they are found: each to its place by time. */
  function inOrder(record) {
    let after = list.lastChild;
    while (after && after.time < record.time) after = after.previousSibling;
    const item = line(record);
    if (after) after.after(item);
    else list.prepend(item);
  }

  function line(record) {
    const meaning = record.decoded;
    const key = meaning?.key ? JSON.stringify(meaning.key) : record.key === null ? "" : inline(record.key);
    const value = meaning?.value ? JSON.stringify(meaning.value) : inline(record.value);
    const head = h("button", { type: "button", class: "message", "aria-expanded": "false", onclick: () => toggle() },
      h("span", { class: "when" }, moment(record.time)), h("span", { class: "where" }, `${record.partition}:${record.offset}`),
      h("span", { class: "key" }, key), h("span", { class: record.value === null ? "value null" : "value" }, value));
    const item = h("li", null, head);
    item.time = record.time;
    async function toggle() {
      if (head.getAttribute("aria-expanded") === "true") {
        head.setAttribute("aria-expanded", "false");
        item.lastChild.remove();
        return;
      }
      try {
        const cut = [record.key, record.value, ...record.headers.map((one) => one[1])].some((one) => one?.cut);
        const whole = cut ? await api.ask(api.path("topics", topic, "messages", record.partition, record.offset)) : record;
        head.setAttribute("aria-expanded", "true");
        item.append(opened(topic, whole, about));
      } catch (problem) {
        toast(problem.message, true);
      }
    }
    return item;
  }

  let begun = false;
  return {
    box,
    update() {
      if (!begun) {
        begun = true;
        run(() => search(null));
      }
    },
    close: end,
  };
}

function opened(topic, record, about) {
  const place = h("div");
  const choices = ways(record.value, record.decoded ? record.decoded.value ?? record.decoded : null);
  const buttons = choices.map(([name, make]) => h("button", { type: "button", onclick: () => choose(name, make) }, name));
  function choose(name, make) {
    place.replaceChildren(make());
    buttons.forEach((one) => one.setAttribute("aria-pressed", String(one.textContent === name)));
  }
  choose(...choices[0]);
  const facts = [
    ["Partition", record.partition], ["Offset", record.offset],
    ["Time", `${moment(record.time)}${record.timeType === 1 ? " (of the append)" : ""}`],
    ["Key", record.decoded?.key ? JSON.stringify(record.decoded.key) : record.key === null ? "null" : inline(record.key)],
    ["Size", `key ${record.key ? size(record.key.size) : "–"}, value ${record.value ? size(record.value.size) : "–"}`],
    ...record.headers.map(([name, value]) => [`Header ${name}`, inline(value)]),
  ];
  const copy = button("Copy", async () => {
    try {
      await navigator.clipboard.writeText(place.textContent);
      toast("Copied.");
    } catch {
      toast("The browser does not let us copy.", true);
    }
  });
  return h("div", { class: "opened" },
    h("dl", null, facts.flatMap(([name, text]) => [h("dt", null, name), h("dd", null, String(text))])),
    h("div", { class: "tools" }, h("div", { class: "segmented" }, buttons),
      h("div", { class: "aside" }, copy, !api.session.readOnly && button("Edit and send again", () => sendDialog(topic, about(), record)))),
    place);
}
