// All talk with the server: questions, orders, and streams of server-sent events.

export const session = { readOnly: false, csrf: "", bootstrap: "" };

export class Refused extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

async function checked(answer) {
  if (answer.ok) return answer;
  let message = `The console answered ${answer.status}.`;
  try {
    message = (await answer.json()).error ?? message;
  } catch {
    // not ours: the status has to do
  }
  throw new Refused(answer.status, message);
}

async function reach(path, options) {
  try {
    return await fetch(path, options);
  } catch (problem) {
    if (problem.name === "AbortError") throw problem;
    throw new Refused(0, "The console does not answer: is it still running?");
  }
}

/** The API's path for these pieces; each may hold anything. */
export function path(...pieces) {
  return "api/" + pieces.map(encodeURIComponent).join("/");
}

export async function ask(where, signal) {
  return (await checked(await reach(where, { signal }))).json();
}

export async function order(where, body, method = "POST") {
  const headers = { "content-type": "application/json", "x-ottla-csrf": session.csrf };
  return (await checked(await reach(where, { method, headers, body: JSON.stringify(body ?? {}) }))).json();
}

export async function begin() {
  Object.assign(session, await ask(path("session")));
}

/** Read a stream of events until its end or until `signal` is aborted; `on` has a function for each kind. */
export async function stream(where, on, signal) {
  const answer = await checked(await reach(where, { signal, headers: { accept: "text/event-stream" } }));
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const events = (rest + value).split("\n\n");
    rest = events.pop();
    for (const event of events) {
      let kind = "message";
      let data = "";
      for (const line of event.split("\n")) {
        if (line.startsWith("event: ")) kind = line.slice(7);
        else if (line.startsWith("data: ")) data += line.slice(6);
      }
      if (data) on[kind]?.(JSON.parse(data));
    }
  }
}
