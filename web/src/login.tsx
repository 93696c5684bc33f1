/** The login page: a name and password, or a token. The session is a cookie that scripts cannot read. */
import { useState } from "preact/hooks";

import { Problem } from "./api/client";
import { Button, Notice } from "./components/basics";
import { TextField } from "./components/field";
import { signIn } from "./session";

export function Login() {
  const [withToken, setWithToken] = useState(false);
  const [user, setUser] = useState("");
  const [password, setPassword] = useState("");
  const [token, setToken] = useState("");
  const [problem, setProblem] = useState("");
  const [busy, setBusy] = useState(false);

  async function submit(event: Event): Promise<void> {
    event.preventDefault();
    setBusy(true);
    setProblem("");
    try {
      await signIn(withToken ? { token } : { user, password });
    } catch (error) {
      setProblem(error instanceof Problem ? error.message : String(error));
    }
    setBusy(false);
  }

  return (
    <main class="login" id="main">
      <section class="card">
        <header>
          <h1>Sign in to OpenQ</h1>
        </header>
        <form class="inside stack" onSubmit={submit}>
          {problem && <Notice tone="bad">{problem}</Notice>}
          {withToken ? (
            <TextField label="Token" type="password" value={token} onValue={setToken} autocomplete="off" required autofocus />
          ) : (
            <>
              <TextField label="User" value={user} onValue={setUser} autocomplete="username" required autofocus />
              <TextField label="Password" type="password" value={password} onValue={setPassword} autocomplete="current-password" required />
            </>
          )}
          <Button kind="primary" type="submit" disabled={busy}>
            {busy ? "Signing in…" : "Sign in"}
          </Button>
          <Button kind="quiet" onClick={() => setWithToken(!withToken)}>
            {withToken ? "Use a password" : "Use a token"}
          </Button>
        </form>
      </section>
    </main>
  );
}
