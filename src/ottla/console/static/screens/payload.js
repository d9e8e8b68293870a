// Keys and values as people want to see them: JSON, text, hexadecimal. Never as markup.

import { h } from "../dom.js";

export function bytesOf(payload) {
  if (payload.text !== undefined) return new TextEncoder().encode(payload.text);
  return Uint8Array.from(atob(payload.base64), (char) => char.charCodeAt(0));
}

export function hexOf(bytes, between = "") {
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join(between);
}

/** In one line, for a list. Bytes that are no text are hexadecimal digits. */
export function inline(payload) {
  if (payload === null) return "null";
  if (payload.text === undefined) return `0x${hexOf(bytesOf(payload).subarray(0, 64))}`;
  return payload.text.replace(/[\u0000-\u001f\u007f-\u009f]+/g, " ");
}

function dump(bytes) {
  const lines = [];
  for (let at = 0; at < bytes.length && at < 65536; at += 16) {
    const part = bytes.subarray(at, at + 16);
    const text = Array.from(part, (byte) => (byte > 31 && byte < 127 ? String.fromCharCode(byte) : "·")).join("");
    lines.push(`${at.toString(16).padStart(6, "0")}  ${hexOf(part, " ").padEnd(47)}  ${text}`);
  }
  if (bytes.length > 65536) lines.push(`… ${bytes.length - 65536} bytes more`);
  return lines.join("\n");
}

const TOKENS = /("(?:[^"\\]|\\.)*")(\s*:)?|(-?\d[\d.eE+-]*)|(true|false|null)/g;

/** Indented JSON with its parts told apart by colour: text nodes in spans. */
export function json(value) {
  const text = JSON.stringify(value, null, 2);
  const box = h("pre", { class: "content" });
  if (text.length > 200000) {
    box.textContent = text;
    return box;
  }
  let last = 0;
  for (const found of text.matchAll(TOKENS)) {
    box.append(text.slice(last, found.index));
    const kind = found[1] ? (found[2] ? "key" : "text") : found[3] ? "number" : "word";
    box.append(h("span", { class: `json-${kind}` }, found[1] ?? found[0]), found[2] ?? "");
    last = found.index + found[0].length;
  }
  box.append(text.slice(last));
  return box;
}

function parsed(payload) {
  if (payload?.text === undefined || !/^\s*[[{"\d-tfn]/.test(payload.text)) return undefined;
  try {
    return JSON.parse(payload.text);
  } catch {
    return undefined;
  }
}

/** The ways in which a payload can be shown, the best first: [name, function that makes the element]. */
export function ways(payload, decoded) {
  const found = [];
  if (decoded !== undefined && decoded !== null) found.push(["Decoded", () => json(decoded)]);
  if (payload === null) return [...found, ["Null", () => h("p", { class: "note" }, "There is no value: a tombstone, where the topic is compacted.")]];
  const value = parsed(payload);
  if (value !== undefined && typeof value === "object") found.push(["JSON", () => json(value)]);
  if (payload.text !== undefined) found.push(["Text", () => h("pre", { class: "content" }, payload.text)]);
  found.push(["Hex", () => h("pre", { class: "content" }, dump(bytesOf(payload)))]);
  return found;
}
