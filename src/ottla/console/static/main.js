// The frame: where we are, the word from the cluster, light and dark.

import * as api from "./api.js";
import { h, say, svg } from "./dom.js";
import { toast } from "./dialog.js";
import { clock } from "./format.js";

const SCREENS = [
  { name: "", title: "Overview", file: "overview", icon: "M3 12h3l2-7 4 11 2-4h3" },
  { name: "topics", title: "Topics", file: "topics", icon: "M3 5h14M3 10h14M3 15h9" },
  { name: "groups", title: "Groups", file: "groups", icon: "M7 9a2.5 2.5 0 1 0 0-5 2.5 2.5 0 0 0 0 5ZM3 16c0-3 2-4.500 4-4.500s4 1.500 4 4.500M13 9a2 2 0 1 0 0-4M14 11.500c2 0 3.500 1.500 3.500 4.500" },
  { name: "transactions", title: "Transactions", file: "transactions", icon: "M4 7h11l-3-3M16 13H5l3 3" },
  { name: "disks", title: "Disks", file: "disks", icon: "M4 5c0-3 12-3 12 0v10c0 3-12 3-12 0ZM4 5c0 3 12 3 12 0M4 10c0 3 12 3 12 0" },
];

const main = document.getElementById("main");
const nav = document.getElementById("nav");
const live = document.getElementById("live");
const themeButton = document.getElementById("theme");
let current = { refresh() {}, close() {} };
let turn = 0;

// ---- light and dark

const prefersDark = matchMedia("(prefers-color-scheme: dark)");

function theme(chosen) {
  const dark = (chosen ?? localStorage.getItem("theme") ?? (prefersDark.matches ? "dark" : "light")) === "dark";
  document.documentElement.dataset.theme = dark ? "dark" : "light";
  themeButton.textContent = dark ? "Light" : "Dark";
  themeButton.setAttribute("aria-label", dark ? "Use light colours" : "Use dark colours");
}

themeButton.addEventListener("click", () => {
  const chosen = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
  localStorage.setItem("theme", chosen);
  theme(chosen);
});
prefersDark.addEventListener("change", () => theme());
theme();

// ---- where we are

const links = SCREENS.map((screen) => {
  const icon = svg("svg", { viewBox: "0 0 20 20", fill: "none", stroke: "currentColor", "stroke-width": "1.6",
    "stroke-linecap": "round", "stroke-linejoin": "round", "aria-hidden": "true" }, svg("path", { d: screen.icon }));
  return h("a", { href: `#/${screen.name}` }, icon, screen.title);
});
const problems = h("span", { class: "count", hidden: true });
links[0].append(problems);
nav.append(...links);

async function go() {
  const mine = (turn += 1);
  const [first, ...rest] = location.hash.replace(/^#\//, "").split("/").map(decodeURIComponent);
  const at = Math.max(0, SCREENS.findIndex((screen) => screen.name === (first ?? "")));
  links.forEach((link, number) => {
    if (number === at) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  });
  current.close?.();
  current = { refresh() {}, close() {} };
  const root = h("div");
  try {
    const screen = await import(`./screens/${SCREENS[at].file}.js`);
    if (mine !== turn) return;
    document.title = `${rest[0] ?? SCREENS[at].title} · Ottla console`;
    const shown = screen.show(root, rest);
    main.replaceChildren(root);
    current = shown;
    await shown.refresh();
    root.dataset.ready = location.hash;
  } catch (problem) {
    if (mine === turn) failed(problem, root);
  }
  if (document.activeElement === document.body || nav.contains(document.activeElement)) main.focus({ preventScroll: true });
  scrollTo(0, 0);
}

function failed(problem, root) {
  if (problem.name === "AbortError") return;
  if (problem.status === 401) {
    logIn();
    return;
  }
  console.error(problem);
  root.replaceChildren(h("div", { class: "trouble", role: "alert" }, h("h2", null, problem.message)));
  main.replaceChildren(root);
}

// ---- the token, where one is needed

function logIn() {
  const token = h("input", { type: "password", autocomplete: "current-password", required: true, "aria-label": "Token" });
  const wrong = h("p", { class: "wrong", role: "alert" });
  const form = h("form", { class: "form inner" }, h("label", null, "Token", token), wrong, h("button", { class: "main" }, "Open the console"));
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    try {
      await api.order(api.path("login"), { token: token.value });
      await start();
    } catch (problem) {
      say(wrong, problem.message);
    }
  });
  main.replaceChildren(h("section", { class: "panel login" }, h("header", null, h("h2", null, "This console asks for its token")), form));
  token.focus();
}

// ---- the word from the cluster

function listen() {
  const events = new EventSource("api/events");
  events.addEventListener("sample", async (event) => {
    const news = JSON.parse(event.data);
    live.className = news.problem ? "live bad" : "live good";
    live.title = news.problem ?? "";
    say(live, news.problem ? "Cluster not reached" : `${api.session.readOnly ? "Read-only · " : ""}${clock(news.taken)}`);
    problems.hidden = !news.problems;
    say(problems, news.problems);
    const shown = current;
    try {
      await shown.refresh();
    } catch (problem) {
      if (shown === current && problem.status !== 0) toast(problem.message, true);
    }
  });
  events.addEventListener("error", () => {
    live.className = "live bad";
    say(live, "Console not reached");
  });
}

let listening = false;

async function start() {
  try {
    await api.begin();
  } catch (problem) {
    failed(problem, h("div"));
    return;
  }
  if (!listening) {
    listening = true;
    listen();
    addEventListener("hashchange", go);
  }
  await go();
}

start();
