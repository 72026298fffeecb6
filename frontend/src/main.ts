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
import "uplot/dist/uPlot.min.css";
import "./styles/charts.css";
import "htmx.org";

import { Acks } from "./islands/acks";
import { Charts } from "./islands/charts";
import { Copy } from "./islands/copy";
import { Countdown } from "./islands/countdown";
import { Feed } from "./islands/feed";
import { LimitSliders } from "./islands/limit-sliders";
import { LivePressure } from "./islands/live-pressure";
import { LiveUse } from "./islands/live-use";
import { Menu } from "./islands/menu";
import { Messages } from "./islands/messages";
import { Playground } from "./islands/playground";
import { PolicyWatch } from "./islands/policy-watch";
import { Refresh } from "./islands/refresh";
import { Theme } from "./islands/theme";
import { Trouble } from "./islands/trouble";
import { mountIslands } from "./lib/island";

mountIslands(document.body, {
  acks: Acks,
  charts: Charts,
  copy: Copy,
  countdown: Countdown,
  feed: Feed,
  "limit-sliders": LimitSliders,
  "live-pressure": LivePressure,
  "live-use": LiveUse,
  menu: Menu,
  messages: Messages,
  playground: Playground,
  "policy-watch": PolicyWatch,
  refresh: Refresh,
  theme: Theme,
  trouble: Trouble,
});
