// Requests to this server: headers, server-sent events over fetch (EventSource sends no API key), errors in words.

let key = "";

export function useKey(given) {
  key = given.trim();
}

export function ask(path, { body, signal, headers } = {}) {
  const all = { ...headers };
  if (key) all.authorization = `Bearer ${key}`;
  if (body !== undefined) all["content-type"] = "application/json";
  const method = body === undefined ? "GET" : "POST";
  return fetch(path, { method, headers: all, signal, body: body && JSON.stringify(body), cache: "no-store" });
}

const PROGRESS = ": progress "; // a comment, which other readers of events pass over

// The data of each event, until the server ends them. Leaving the loop closes the connection. `step` gets the progress.
export async function* events(response, step = () => undefined) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      const blocks = (rest + value).split(/\r?\n\r?\n/);
      rest = blocks.pop();
      for (const block of blocks) {
        if (block.startsWith(PROGRESS)) step(JSON.parse(block.slice(PROGRESS.length)));
        const lines = block.split(/\r?\n/).filter((line) => line.startsWith("data:"));
        if (lines.length) yield lines.map((line) => line.slice(5).trimStart()).join("\n");
      }
    }
  } finally {
    reader.cancel().catch(() => undefined); // it is broken already, or closed: both are what is wanted
  }
}

// What a refused request's answer says.
export async function refusal(response) {
  if (response.status === 401) return "This server wants an API key: enter it above.";
  const body = await response.json().catch(() => null);
  const again = response.headers.get("retry-after");
  return words(body, `The server answered ${response.status}.`) + (again ? ` (Try again in ${again} s.)` : "");
}

// OpenAI's shape of an error; some answers carry a plain text instead.
export function words(document, otherwise) {
  const error = document?.error;
  if (typeof error === "string") return error;
  return typeof error?.message === "string" ? error.message : otherwise;
}
