// Questions before something is done, and short words after it.

import { button, h } from "./dom.js";

export function toast(text, bad = false) {
  const note = h("div", { class: bad ? "toast bad" : "toast" }, text);
  document.getElementById("toasts").append(note);
  setTimeout(() => note.remove(), bad ? 9000 : 5000);
}

/** A field with its name above it. */
export function field(name, input) {
  return h("label", null, name, input);
}

export function options(names, chosen) {
  return names.map(([value, text]) => h("option", { value, selected: value === chosen }, text));
}

/**
 * A form in a dialog. `act` is called when it is sent, and may throw: its words are shown and the dialog stays.
 * Gives back the dialog, already open, with `submit` (the button) and `wrong` (where problems are said).
 */
export function ask(title, content, { act, verb, danger = false, verbReady = true }) {
  const wrong = h("p", { class: "wrong", role: "alert", hidden: true });
  const submit = h("button", { type: "submit", class: danger ? "main danger" : "main", disabled: !verbReady }, verb);
  const form = h("form", { class: "form", method: "dialog" }, content, wrong,
    h("div", { class: "buttons" }, button("Cancel", () => dialog.close()), submit));
  const dialog = h("dialog", { "aria-label": title }, h("h2", null, title), form);
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    if (submit.disabled) return;
    submit.disabled = true;
    wrong.hidden = true;
    try {
      await act();
      dialog.close();
    } catch (problem) {
      dialog.complain(problem);
    }
    submit.disabled = false;
  });
  dialog.complain = (problem) => {
    wrong.textContent = problem.message;
    wrong.hidden = false;
  };
  dialog.submit = submit;
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
  return dialog;
}

/** For what cannot be taken back: the name has to be typed. */
export function confirmByName(title, name, explanation, verb, act) {
  const typed = h("input", { autocomplete: "off", spellcheck: "false" });
  const dialog = ask(title, [h("p", null, explanation), field(`Type ${name} to confirm`, typed)],
    { verb, danger: true, verbReady: false, act: () => act(typed.value) });
  typed.addEventListener("input", () => { dialog.submit.disabled = typed.value !== name; });
  typed.focus();
  return dialog;
}
