// A message to send: a new one, or one that was there before.

import * as api from "../api.js";
import { ask, field, options, toast } from "../dialog.js";
import { button, h } from "../dom.js";
import { bytesOf, hexOf } from "./payload.js";

/** Text, hexadecimal digits or nothing, with the way to tell which. */
function content(label, payload, rows) {
  const binary = payload && payload.text === undefined;
  const kind = h("select", { "aria-label": `${label}: kind` }, options([["text", "Text"], ["hex", "Hex"], ["null", "Null"]], payload === null ? "null" : binary ? "hex" : "text"));
  const area = h("textarea", { rows, spellcheck: "false", "aria-label": label, value: payload ? (binary ? hexOf(bytesOf(payload), " ") : payload.text) : "" });
  const react = () => { area.disabled = kind.value === "null"; };
  kind.addEventListener("change", react);
  react();
  return {
    box: h("div", { class: "form" }, h("label", null, label, kind), area),
    value: () => (kind.value === "null" ? null : kind.value === "hex" ? { hex: area.value.replace(/\s+/g, "") } : { text: area.value }),
    area,
  };
}

function headerRows(headers) {
  const list = h("div", { class: "form" });
  const rows = [];
  function add(name = "", payload = { text: "" }) {
    const binary = payload && payload.text === undefined;
    const key = h("input", { value: name, placeholder: "name", "aria-label": "Header name" });
    const value = h("input", { value: payload ? (binary ? hexOf(bytesOf(payload)) : payload.text) : "", placeholder: "value", "aria-label": "Header value" });
    const row = { key, value, binary, isNull: payload === null };
    value.addEventListener("input", () => { row.isNull = false; });
    rows.push(row);
    list.append(h("div", { class: "pair" }, key, value));
  }
  headers.forEach(([name, payload]) => add(name, payload));
  return {
    box: h("div", { class: "form" }, list, h("div", null, button("Add a header", () => add()))),
    value: () => rows.filter((row) => row.key.value).map((row) => ({
      name: row.key.value, value: row.isNull ? null : row.binary ? { hex: row.value.value } : { text: row.value.value },
    })),
  };
}

/** Ask for a message and send it. `before` is one to begin with. */
export function sendDialog(topic, about, before = null) {
  const partition = h("input", { type: "number", min: 0, max: (about?.partitions ?? 1) - 1, placeholder: "by the key", value: before ? String(before.partition) : "" });
  const key = content("Key", before ? before.key : null, 1);
  const value = content("Value", before ? before.value : { text: "" }, 7);
  const headers = headerRows(before?.headers ?? []);
  ask(before ? "Edit and send again" : `Send a message to ${topic}`, [key.box, value.box, headers.box, field("Partition", partition)], {
    verb: "Send",
    act: async () => {
      const place = await api.order(api.path("topics", topic, "messages"), {
        key: key.value(), value: value.value(), headers: headers.value(), partition: partition.value === "" ? null : partition.value,
      });
      toast(`Sent: partition ${place.partition}, offset ${place.offset}.`);
    },
  });
  value.area.focus();
}
