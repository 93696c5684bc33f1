import { render } from "preact";

import "./styles/tokens.css";
import "./styles/base.css";
import "./styles/shell.css";
import "./styles/components.css";
import { App } from "./app";
import { listenForKeys } from "./keys";
import { followLinks } from "./router";

followLinks();
listenForKeys();
render(<App />, document.getElementById("app")!);
