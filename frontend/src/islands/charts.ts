import { Chart, type ChartSpec, type Line } from "../lib/chart";
import { bytes, count, type Figure } from "../lib/figure";
import { Island } from "../lib/island";
import { getJson } from "../lib/network";
import { anyOf, column, grid, idleAsZero, inUse, type Column, type FairnessAnswer, type PressureAnswer, type TenantsAnswer } from "../lib/series";

type People = Readonly<Record<string, { name: string; colour: number }>>;

const REFRESH_MS = 10_000;
const SLOW_REFRESH_MS = 60_000;
const FINE_SECONDS = 3600; // a longer range has no points that a fast refresh would bring
const MARKS = [
  { at: 0.95, words: "" },
  { at: 0.9, words: "watermarks, 90 and 95 % of the pool" },
];
const MOST_TENANTS = 12; // lines of one chart: more cannot be told apart

/** The lines of the pressure page, asked of the API and kept fresh: pressure, use by tenant, fairness. */
export class Charts extends Island {
  private readonly charts = new Map<string, Chart>();
  private people: People = {};
  private timer: number | undefined;
  private readonly dark = window.matchMedia("(prefers-color-scheme: dark)");
  private readonly theme = new MutationObserver(() => {
    this.repaint();
  });
  private shownAt: Date | null = null;
  private closed = false;

  override connect(): void {
    this.people = JSON.parse(document.getElementById("people")?.textContent ?? "{}") as People;
    this.dark.addEventListener("change", this.repaint);
    this.theme.observe(document.documentElement, { attributeFilter: ["data-theme"] });
    document.body.addEventListener("live:refetch", this.onRefetch);
    void this.refresh();
    const every = Number(this.element.dataset.seconds) <= FINE_SECONDS ? REFRESH_MS : SLOW_REFRESH_MS;
    this.timer = window.setInterval(() => {
      if (!document.hidden) void this.refresh();
    }, every);
  }

  override disconnect(): void {
    this.closed = true;
    window.clearInterval(this.timer);
    this.dark.removeEventListener("change", this.repaint);
    this.theme.disconnect();
    document.body.removeEventListener("live:refetch", this.onRefetch);
    for (const chart of this.charts.values()) chart.close();
  }

  private readonly onRefetch = (): void => {
    void this.refresh();
  };

  private readonly repaint = (): void => {
    for (const chart of this.charts.values()) chart.repaint();
  };

  private async refresh(): Promise<void> {
    const to = new Date();
    const from = new Date(to.getTime() - Number(this.element.dataset.seconds) * 1000);
    const range = `from=${encodeURIComponent(from.toISOString())}&to=${encodeURIComponent(to.toISOString())}`;
    const trouble = this.part("trouble");
    try {
      const [pressure, tenants, fairness] = await Promise.all([
        getJson<PressureAnswer>(`/api/v1/series/pressure/?${range}`),
        getJson<TenantsAnswer>(`/api/v1/series/tenants/?${range}`),
        getJson<FairnessAnswer>(`/api/v1/fairness/?${range}`),
      ]);
      if (this.closed) return;
      this.draw(pressure, tenants, fairness);
      this.shownAt = to;
      trouble.hidden = true;
    } catch (error) {
      if (!(error instanceof Error)) throw error;
      const since = this.shownAt?.toLocaleTimeString("en-GB");
      trouble.textContent = since ? `◇ The lines are stale since ${since}: ${error.message}` : `◇ The lines cannot be shown: ${error.message}`;
      trouble.hidden = false;
    }
  }

  private draw(pressure: PressureAnswer, tenants: TenantsAnswer, fairness: FairnessAnswer): void {
    this.show("pressure", pressure.workers.length > 0, pressureSpecs(pressure));
    this.show("use", tenants.tenants.length > 0, [this.useSpec(tenants, pressure)]);
    this.show("fairness", fairness.tenants.length > 0, [this.serviceSpec(fairness, pressure), jainSpec(fairness)]);
    const index = this.part("jain");
    index.textContent = fairness.jain === null ? "–" : fairness.jain.toFixed(3);
    index.title = fairness.jain === null ? "nothing was shared out" : String(fairness.jain);
  }

  /** Fill one panel: with its charts, or with a word where there is nothing yet. */
  private show(name: string, any: boolean, specs: ChartSpec[]): void {
    const part = this.part(name);
    if (!any) {
      this.drop(name);
      const empty = document.createElement("p");
      empty.className = "quiet";
      empty.textContent = EMPTY[name] ?? "";
      part.replaceChildren(empty);
      return;
    }
    if (part.querySelectorAll(".chart").length !== specs.length) {
      this.drop(name);
      part.replaceChildren(...specs.map(() => frame()));
    }
    part.querySelectorAll<HTMLElement>(".chart").forEach((host, n) => {
      const spec = specs[n];
      if (!spec) return;
      const heading = host.previousElementSibling;
      if (heading && heading.textContent !== spec.label) heading.textContent = spec.label;
      const key = `${name}/${n}`;
      const chart = this.charts.get(key);
      if (chart) chart.update(spec);
      else this.charts.set(key, new Chart(host, spec));
    });
  }

  private drop(name: string): void {
    for (const [key, chart] of this.charts) {
      if (!key.startsWith(`${name}/`)) continue;
      chart.close();
      this.charts.delete(key);
    }
  }

  private useSpec(answer: TenantsAnswer, pressure: PressureAnswer): ChartSpec {
    const times = grid(answer);
    const heard = heardIn(times, pressure);
    const lines = answer.tenants.slice(0, MOST_TENANTS).map((line) => this.tenantLine(line.tenant, inUse(times, line.points, heard)));
    return { label: "Device KV in use by tenant", times, lines, figure: bytes, binary: true };
  }

  private serviceSpec(answer: FairnessAnswer, pressure: PressureAnswer): ChartSpec {
    const times = grid(answer);
    const heard = heardIn(times, pressure);
    const lines = answer.tenants.slice(0, MOST_TENANTS).map((line) => {
      const rate = column(times, line.points, (point) => point.share / answer.step_seconds);
      return this.tenantLine(line.tenant, idleAsZero(rate, heard));
    });
    return { label: "Service ÷ weight, tokens a second", times, lines, figure: perSecond };
  }

  private tenantLine(slug: string, values: Column): Line {
    const who = this.people[slug];
    return { name: who?.name ?? slug, ink: who ? `--tenant-${who.colour}` : "--quiet", values };
  }
}

const EMPTY: Readonly<Record<string, string>> = {
  pressure: "No worker was heard in this range. Its pressure is drawn here from the first ten seconds on.",
  use: "No tenant used any memory in this range.",
  fairness: "Nobody was served in this range. Send requests, and each tenant’s service is drawn here.",
};

function pressureSpecs(answer: PressureAnswer): ChartSpec[] {
  const times = grid(answer);
  const figure = (value: number): Figure => ({ value: value.toFixed(2), unit: "", exact: value.toFixed(4) });
  return answer.workers.map(({ worker_id, points }) => {
    const of = (name: "score" | "score_peak" | "use" | "borrowed" | "wait" | "swap" | "pool_use"): Column => column(times, points, (point) => point[name]);
    const lines: Line[] = [
      { name: "score", ink: "--accent", values: of("score"), width: 2 },
      { name: "peak score", ink: "--accent", values: of("score_peak"), fillTo: 0 },
      { name: "pool held", ink: "--text", values: of("pool_use"), width: 1 },
      { name: "use", ink: "--quiet", values: of("use"), width: 1, dash: [2, 2] },
      { name: "borrowed", ink: "--tenant-3", values: of("borrowed"), width: 1, dash: [4, 2] },
      { name: "wait", ink: "--tenant-1", values: of("wait"), width: 1, dash: [4, 2] },
      { name: "swap", ink: "--tenant-5", values: of("swap"), width: 1, dash: [4, 2] },
    ];
    return { label: worker_id, times, lines, marks: MARKS, top: 1, figure };
  });
}

function jainSpec(answer: FairnessAnswer): ChartSpec {
  const times = grid(answer);
  const figure = (value: number): Figure => ({ value: value.toFixed(1), unit: "", exact: value.toFixed(4) });
  const lines: Line[] = [{ name: "Jain index", ink: "--accent", values: column(times, answer.points, (point) => point.jain) }];
  return { label: "Jain index: 1 is even", times, lines, top: 1, figure };
}

function heardIn(times: number[], pressure: PressureAnswer): Column {
  return anyOf(
    pressure.workers.map((worker) => nearest(times, pressure, worker.points)),
    times.length,
  );
}

/** The two answers may have other steps: a step was heard in if any point of the finer one lies in it. */
function nearest(times: number[], { step_seconds: own }: PressureAnswer, points: readonly { at: string }[]): Column {
  const step = (times[1] ?? 0) - (times[0] ?? 0) || own;
  const starts = points.map((point) => Date.parse(point.at) / 1000);
  return times.map((at) => (starts.some((start) => start < at + step && start + own > at) ? 1 : null));
}

function perSecond(value: number): Figure {
  const shown = value > 0 && value < 9.95 ? value.toFixed(1) : count(value).value;
  return { value: shown, unit: "", exact: `${value.toFixed(3)} tok/s` };
}

function frame(): DocumentFragment {
  const fragment = document.createDocumentFragment();
  const heading = document.createElement("h3");
  heading.className = "chart-head";
  const host = document.createElement("div");
  host.className = "chart";
  fragment.append(heading, host);
  return fragment;
}
