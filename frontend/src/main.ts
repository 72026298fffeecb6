/** The console's entry: styles, htmx, and the islands by name. */

import "@fontsource-variable/inter/wght.css";
import "@fontsource/jetbrains-mono/latin-400.css";
import "@fontsource/jetbrains-mono/latin-ext-400.css";
import "./styles/tokens.css";
import "./styles/base.css";
import "./styles/controls.css";
import "./styles/parts.css";
import "./styles/limits.css";
import "./styles/pages.css";
import "htmx.org";

import { Acks } from "./islands/acks";
import { Copy } from "./islands/copy";
import { Feed } from "./islands/feed";
import { LiveUse } from "./islands/live-use";
import { Menu } from "./islands/menu";
import { Messages } from "./islands/messages";
import { Playground } from "./islands/playground";
import { Refresh } from "./islands/refresh";
import { Theme } from "./islands/theme";
import { Trouble } from "./islands/trouble";
import { mountIslands } from "./lib/island";

mountIslands(document.body, {
  acks: Acks,
  copy: Copy,
  feed: Feed,
  "live-use": LiveUse,
  menu: Menu,
  messages: Messages,
  playground: Playground,
  refresh: Refresh,
  theme: Theme,
  trouble: Trouble,
});
