// The REST interface. The token, where one is needed, stays in this module: no cookie, no storage.

let token = "";

/** Takes the token of an address that ends with #token=..., and removes it from the address bar. */
export function takeToken() {
  const found = new URLSearchParams(location.hash.slice(1)).get("token");
  if (found) {
    token = found;
    history.replaceState(null, "", location.pathname);
  }
}

export function setToken(value) {
  token = value;
}

/** An answer that says what is wrong; `status` is HTTP's, 0: the service was not reached. */
export class Problem extends Error {
  constructor(status, detail, remedy) {
    super(remedy ? `${detail}: ${remedy}` : detail);
    this.status = status;
  }
}

async function ask(path, options = {}) {
  const headers = token ? { Authorization: `Bearer ${token}` } : {};
  let answer;
  try {
    answer = await fetch(path, { headers, cache: "no-store", ...options });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem(0, "the service does not answer", "is it still running?");
  }
  if (answer.ok) return answer;
  const told = await answer.json().catch(() => ({}));
  const detail = typeof told.detail === "string" ? told.detail : `the service answered ${answer.status}`;
  throw new Problem(answer.status, detail, told.remedy);
}

export async function model() {
  return (await ask("api/model")).json();
}

/** Uploads the files of an image; `choice` is the network. Their names are not sent. */
export async function predict(files, choice, signal) {
  const form = new FormData();
  for (const file of files) form.append("file", file, "image");
  form.append("model", choice);
  return (await ask("api/predict", { method: "POST", body: form, signal })).json();
}

/** A file of a result as a Blob. */
export async function fetchFile(id, name, signal) {
  return (await ask(`api/results/${encodeURIComponent(id)}/${name}`, { signal })).blob();
}

/** Lets the service forget a result; nobody waits for it. */
export function forget(id) {
  ask(`api/results/${encodeURIComponent(id)}`, { method: "DELETE", keepalive: true }).catch(() => {});
}
