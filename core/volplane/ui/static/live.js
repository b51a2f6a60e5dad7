// The way to the server: the token, questions, and the stream that says what has changed.

const TOKEN = "volplane-token";
const SILENCE = 8000; // The server speaks every 3 s.

let token = stored(() => localStorage.getItem(TOKEN)) ?? "";

// A browser may keep nothing; then other tabs need the whole address.
function stored(access) {
  try {
    return access();
  } catch {
    return null;
  }
}

export function takeToken() {
  const found = /[#&]token=([\w-]+)/.exec(location.hash);
  if (found) {
    token = found[1];
    stored(() => localStorage.setItem(TOKEN, token));
    // Not left in the address bar, where it would be seen and copied with a link.
    history.replaceState(null, "", location.pathname + (location.hash.replace(/[#&]token=[\w-]+/, "") || "#/waiting"));
  }
}

const headers = () => ({ Authorization: `Bearer ${token}` });

export async function ask(path, query, signal) {
  const answer = await fetch(`/api/${path}?${new URLSearchParams(query)}`, { headers: headers(), signal });
  if (!answer.ok) throw new Error(answer.status === 401 ? "old token" : `the server answered ${answer.status}`);
  return answer.json();
}

// Returns a function that asks one question at a time: calls of it meanwhile lead to one more, after `pause` ms.
export function inTurn(question, pause) {
  let asking = false;
  let again = false;
  return async function refresh() {
    if (asking) {
      again = true;
      return;
    }
    asking = true;
    try {
      await question();
    } catch {
      // The stream says what is wrong, and another question follows.
    }
    asking = false;
    if (again) {
      again = false;
      if (pause) setTimeout(refresh, pause);
      else refresh();
    }
  };
}

// Calls `heard` with each state, `lost` as soon as the stream is over or silent; goes on for ever.
export async function follow(heard, lost) {
  for (let pause = 500; ; pause = Math.min(pause * 2, 5000)) {
    const ends = new AbortController();
    let timer = setTimeout(() => ends.abort(), SILENCE);
    let why = "the stream has ended";
    try {
      const answer = await fetch("/api/live", { headers: headers(), signal: ends.signal });
      if (answer.status === 401) why = "old token";
      if (!answer.ok) throw new Error();
      const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
      for (let rest = ""; ; ) {
        const { value, done } = await reader.read();
        if (done) break;
        clearTimeout(timer);
        timer = setTimeout(() => ends.abort(), SILENCE);
        pause = 500;
        const messages = (rest + value).split("\n\n");
        rest = messages.pop();
        for (const each of messages) heard(JSON.parse(each.slice("data: ".length)));
      }
    } catch {
      // Said by `lost`.
    }
    clearTimeout(timer);
    lost(why);
    await new Promise((resolve) => setTimeout(resolve, pause));
  }
}
