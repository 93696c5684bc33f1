/** The frame of every page: login, menu, header, the screen, dialogs and toasts. */
import { useSignal } from "@preact/signals";
import type { FunctionComponent } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";

import { Problem } from "./api/client";
import { Failed, Loading } from "./components/basics";
import { Boundary } from "./components/boundary";
import { ActionHost } from "./components/dialog";
import { KeysDialog } from "./components/keys_dialog";
import { Toasts } from "./components/toast";
import { Header } from "./header";
import { useShortcuts } from "./keys";
import { FeedBanner } from "./feed_banner";
import { startLive, stopLive } from "./live";
import { Login } from "./login";
import { BASE, navigate, words } from "./router";
import { SCREENS, type Screen } from "./screens";
import { isAdmin, loadSession, maySeeServer, session } from "./session";

export function App() {
  const [problem, setProblem] = useState<Problem>();
  const now = session.value;
  useEffect(() => {
    const load = () => loadSession().then(() => setProblem(undefined), (error: unknown) => error instanceof Problem && setProblem(error));
    void load();
    const timer = setInterval(() => session.value === undefined && void load(), 2000);
    return () => clearInterval(timer);
  }, []);
  const isIn = now !== null && now !== undefined;
  useEffect(() => {
    if (!isIn) return;
    startLive();
    return stopLive;
  }, [isIn, now?.user]);
  if (now === undefined) return <main>{problem ? <Failed problem={problem} /> : <Loading />}</main>;
  if (now === null) return <Login />;
  return <Frame />;
}

function Frame() {
  const menuOpen = useSignal(false);
  const keysOpen = useSignal(false);
  const screen = screenOf(words.value[0] ?? "");
  useShortcuts([
    { keys: "?", what: "Show these keys", run: () => (keysOpen.value = true) },
    { keys: "/", what: "Search queues, message ids and bodies", run: () => document.getElementById("search")?.focus() },
    ...SCREENS.filter((each) => each.keys && isFor(each)).map((each) => ({
      keys: each.keys!,
      what: `Go to ${each.title.toLowerCase()}`,
      run: () => navigate(`${BASE}/${each.path}`),
    })),
  ]);
  useEffect(() => {
    menuOpen.value = false;
  }, [words.value.join("/")]);
  return (
    <div class="shell">
      <a class="skip" href="#main">
        Skip to the content
      </a>
      <Header menuOpen={menuOpen} />
      <Menu open={menuOpen.value} current={screen} />
      <div>
        <FeedBanner />
        <ScreenHost screen={screen} />
      </div>
      <ActionHost />
      {keysOpen.value && <KeysDialog onClose={() => (keysOpen.value = false)} />}
      <Toasts />
    </div>
  );
}

function screenOf(word: string): Screen | undefined {
  return SCREENS.find((each) => each.path === word);
}

/** Whether the user has any use of the screen. */
function isFor(screen: Screen): boolean {
  return (!screen.adminOnly || isAdmin()) && (!screen.serverOnly || maySeeServer());
}

function Menu({ open, current }: { open: boolean; current: Screen | undefined }) {
  const shown = SCREENS.filter((each) => !each.hidden && isFor(each));
  const sections = [...new Set(shown.map((each) => each.section))];
  return (
    <nav class={`side ${open ? "open" : ""}`} aria-label="Screens" id="menu">
      {sections.map((section) => (
        <div key={section}>
          {section && <h2>{section}</h2>}
          {shown
            .filter((each) => each.section === section)
            .map((each) => (
              <a key={each.path} href={`${BASE}/${each.path}`} aria-current={each === current ? "page" : undefined}>
                {each.title}
              </a>
            ))}
        </div>
      ))}
    </nav>
  );
}

function NoScreen() {
  return (
    <>
      <h1 class="visually-hidden">Not found</h1>
      <Failed problem={new Problem(404, "page", "There is no such page.")} />
    </>
  );
}

function ScreenHost({ screen }: { screen: Screen | undefined }) {
  const [loaded, setLoaded] = useState<{ screen: Screen; component: FunctionComponent }>();
  const [problem, setProblem] = useState<Problem>();
  const main = useRef<HTMLElement>(null);
  useEffect(() => {
    if (!screen) return;
    document.title = `${screen.title} · OpenQ`;
    setProblem(undefined);
    screen.load().then(
      (module) => setLoaded({ screen, component: module.default }),
      // A newer build is on the server: the files of this one are gone.
      () => setProblem(new Problem(0, "page", "This part of the page could not be loaded.", "Reload the page.")),
    );
  }, [screen]);
  const before = useRef<Screen | undefined>(undefined);
  useEffect(() => {
    // Screen readers and the keyboard start at the new screen; after a first load at the beginning of the page.
    if (loaded && before.current) main.current?.focus({ preventScroll: true });
    before.current = loaded?.screen;
  }, [loaded?.screen]);
  const Component = loaded && loaded.screen === screen ? loaded.component : undefined;
  return (
    <main id="main" tabIndex={-1} ref={main}>
      {!screen ? <NoScreen /> : problem ? <Failed problem={problem} again={() => location.reload()} /> : Component ? (
        <Boundary about={words.value.join("/")}>
          <Component />
        </Boundary>
      ) : (
        <Loading />
      )}
    </main>
  );
}
