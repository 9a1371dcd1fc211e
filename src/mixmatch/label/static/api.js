// Talking to the server. `status` 0 means that it did not answer.

class Refused extends Error {
  constructor(status, body) {
    super(body?.error ?? (status ? `the server answered ${status}` : "the server does not answer"));
    this.status = status;
    this.body = body;
  }
}

async function ask(path, options) {
  let answer;
  try {
    answer = await fetch(path, options);
  } catch {
    throw new Refused(0, null);
  }
  let body = null;
  try {
    body = await answer.json();
  } catch {
    if (answer.ok) throw new Refused(0, null); // cut off in the middle
  }
  // 409 is an answer too: saved, and somebody else had another opinion.
  if (!answer.ok && !(answer.status === 409 && body?.saved)) throw new Refused(answer.status, body);
  return body;
}

export const get = (path) => ask(path, {});

export const post = (path, body) =>
  ask(path, {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(body),
    priority: "high", // labels before pictures
  });

// crypto.randomUUID is missing where the page is not on this machine; this is there everywhere.
export function newId() {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return [...bytes].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}
