/** Lines over time, drawn one way on all pages: few gridlines, labels at the lines' ends, gaps, a cursor that all charts of a page share. */

import uPlot from "uplot";

import type { Figure } from "./figure";
import { isolated, last, spread, type Column } from "./series";

export interface Line {
  name: string;
  ink: string; // name of a custom property: --tenant-0
  values: Column;
  dash?: readonly [number, number];
  width?: number;
  fillTo?: number; // place of the line up to which the band from this one is filled; then it has no stroke itself
}

export interface Mark {
  at: number;
  words: string;
}

export interface ChartSpec {
  label: string; // what the chart shows, for those who do not see it
  times: number[]; // unix seconds, when each step begins
  lines: Line[];
  marks?: readonly Mark[]; // levels drawn across
  top?: number; // of the scale; else what the lines need
  figure: (value: number) => Figure;
  binary?: boolean; // gridlines at powers of two, as bytes want them
}

const POWERS_OF_TWO = Array.from({ length: 51 }, (_, power) => 2 ** power);
const HEIGHT = 200;
const LABEL_HEIGHT = 13;
const MOST_LABELS = 10;
const SHARED_CURSOR = "page";

export class Chart {
  private readonly host: HTMLElement;
  private readonly tip: HTMLElement;
  private readonly resizing: ResizeObserver;
  private plot: uPlot | null = null;
  private spec: ChartSpec;

  constructor(host: HTMLElement, spec: ChartSpec) {
    this.host = host;
    this.spec = spec;
    this.tip = document.createElement("div");
    this.tip.className = "chart-tip";
    this.tip.hidden = true;
    host.tabIndex = 0;
    host.setAttribute("role", "group");
    host.addEventListener("keydown", this.onKey);
    host.addEventListener("blur", this.onBlur);
    this.resizing = new ResizeObserver(() => this.plot?.setSize({ width: host.clientWidth, height: HEIGHT }));
    this.resizing.observe(host);
    this.build();
  }

  /** Show other values; what the reader looks at stays where it is. */
  update(spec: ChartSpec): void {
    const same = spec.lines.length === this.spec.lines.length && spec.lines.every((line, n) => line.name === this.spec.lines[n]?.name);
    this.spec = spec;
    if (same) {
      this.plot?.setData(dataOf(spec));
      this.describe();
    } else this.build();
  }

  /** Take the colours anew, as after a change of theme. */
  repaint(): void {
    this.build();
  }

  close(): void {
    this.resizing.disconnect();
    this.host.removeEventListener("keydown", this.onKey);
    this.host.removeEventListener("blur", this.onBlur);
    this.plot?.destroy();
    this.plot = null;
  }

  private build(): void {
    this.plot?.destroy();
    this.plot = new uPlot(this.options(), dataOf(this.spec), this.host);
    this.plot.over.append(this.tip);
    this.describe();
  }

  private describe(): void {
    const ends = this.spec.lines.flatMap((line) => {
      const end = last(line.values);
      return end ? [`${line.name} ${inWords(this.spec.figure(end.value))}`] : [];
    });
    this.host.setAttribute("aria-label", `${this.spec.label}. Last: ${ends.join(", ") || "nothing"}. Left and right go through the times.`);
  }

  private options(): uPlot.Options {
    const { spec } = this;
    const quiet = inkOf(this.host, "--quiet");
    const grid = { stroke: inkOf(this.host, "--line"), width: 1 };
    const font = `12px ${getComputedStyle(this.host).fontFamily}`;
    const narrow = this.host.clientWidth < 480;
    return {
      width: Math.max(this.host.clientWidth, 200),
      height: HEIGHT,
      padding: [10, narrow ? 76 : 116, 0, 0],
      legend: { show: false },
      cursor: { sync: { key: SHARED_CURSOR }, drag: { x: false, y: false }, points: { size: 6 }, y: false },
      scales: { y: { range: (_, __, high) => [0, spec.top ?? Math.max(high * 1.08, 1e-9)] } },
      axes: [
        { stroke: quiet, font, grid: { show: false }, ticks: { show: false }, size: 28, space: narrow ? 56 : 80, values: (_, splits, __, ___, step) => splits.map((at) => timeOf(at, step)) },
        { stroke: quiet, font, grid, ticks: { show: false }, size: 64, space: 56, ...(spec.binary ? { incrs: POWERS_OF_TWO } : {}), values: (_, splits) => splits.map((value) => inWords(spec.figure(value))) },
      ],
      series: [{}, ...spec.lines.map((line) => this.series(line))],
      bands: spec.lines.flatMap((line, n) =>
        line.fillTo === undefined ? [] : [{ series: [n + 1, line.fillTo + 1] as [number, number], fill: faded(inkOf(this.host, line.ink)) }],
      ),
      hooks: { draw: [this.drawMarks, this.drawLabels], setCursor: [this.showTip] },
    };
  }

  private series(line: Line): uPlot.Series {
    const stroke = inkOf(this.host, line.ink);
    const filter = (plot: uPlot, n: number): number[] => isolated(Array.from(plot.data[n] ?? []));
    return {
      label: line.name,
      width: line.fillTo === undefined ? (line.width ?? 1.5) : 0,
      ...(line.fillTo === undefined ? { stroke } : {}),
      ...(line.dash ? { dash: [...line.dash] } : {}),
      points: line.fillTo === undefined ? { show: true, size: 4, fill: stroke, filter } : { show: false },
    };
  }

  private readonly drawMarks = (plot: uPlot): void => {
    const { ctx, bbox } = plot;
    const ratio = devicePixelRatio;
    ctx.save();
    ctx.strokeStyle = ctx.fillStyle = inkOf(this.host, "--warn");
    ctx.lineWidth = ratio;
    ctx.setLineDash([3 * ratio, 2 * ratio]);
    ctx.textAlign = "left";
    ctx.textBaseline = "alphabetic";
    ctx.font = `${11 * ratio}px ${getComputedStyle(this.host).fontFamily}`;
    for (const { at, words } of this.spec.marks ?? []) {
      const y = Math.round(plot.valToPos(at, "y", true));
      ctx.beginPath();
      ctx.moveTo(bbox.left, y);
      ctx.lineTo(bbox.left + bbox.width, y);
      ctx.stroke();
      ctx.fillText(words, bbox.left + 4 * ratio, y + 11 * ratio);
    }
    ctx.restore();
  };

  /** The lines' names, each where its line ends, moved apart where they would lie on one another. */
  private readonly drawLabels = (plot: uPlot): void => {
    const { ctx, bbox } = plot;
    const ratio = devicePixelRatio;
    const ends = this.spec.lines
      .flatMap((line) => {
        const end = last(line.values);
        const shows = end !== null && line.fillTo === undefined && line.values.some((value) => (value ?? 0) > 0);
        return shows ? [{ line, y: plot.valToPos(end.value, "y", true) }] : [];
      })
      .slice(0, MOST_LABELS);
    const places = spread(ends.map(({ y }) => y), LABEL_HEIGHT * ratio, bbox.top + bbox.height);
    const room = plot.width * ratio - bbox.left - bbox.width - 12 * ratio;
    ctx.save();
    ctx.font = `${12 * ratio}px ${getComputedStyle(this.host).fontFamily}`;
    ctx.textBaseline = "middle";
    ctx.textAlign = "left";
    ends.forEach(({ line }, n) => {
      ctx.fillStyle = inkOf(this.host, line.ink);
      ctx.fillText(fitted(ctx, line.name, room), bbox.left + bbox.width + 8 * ratio, places[n] ?? 0);
    });
    ctx.restore();
  };

  private readonly showTip = (plot: uPlot): void => {
    const { idx, left = -1 } = plot.cursor;
    const at = idx == null ? undefined : this.spec.times[idx];
    this.tip.hidden = at === undefined || left < 0;
    if (this.tip.hidden || at === undefined || idx == null) return;
    const head = document.createElement("strong");
    head.textContent = exactTime(at);
    const rows = this.spec.lines.flatMap((line) => {
      const value = line.values[idx];
      return value == null ? [] : [this.tipRow(line, value)];
    });
    this.tip.replaceChildren(head, ...(rows.length > 0 ? rows : [noData()]));
    const width = plot.over.clientWidth;
    const onLeft = left > width / 2;
    this.tip.style.left = onLeft ? "" : `${left + 12}px`;
    this.tip.style.right = onLeft ? `${width - left + 12}px` : "";
  };

  private tipRow(line: Line, value: number): HTMLElement {
    const row = document.createElement("div");
    const key = document.createElement("span");
    key.className = "key";
    key.style.background = inkOf(this.host, line.ink);
    const figure = document.createElement("span");
    figure.className = "figure";
    figure.textContent = this.spec.figure(value).exact;
    row.append(key, line.name, figure);
    return row;
  }

  private readonly onKey = (event: KeyboardEvent): void => {
    const steps: Record<string, number> = { ArrowLeft: -1, ArrowRight: 1, PageUp: -10, PageDown: 10, Home: -Infinity, End: Infinity };
    const step = steps[event.key];
    if (event.key === "Escape") this.onBlur();
    if (step === undefined || !this.plot) return;
    event.preventDefault();
    const end = this.spec.times.length - 1;
    const from = this.plot.cursor.idx ?? (step < 0 ? end + 1 : -1);
    const place = Math.min(Math.max(from + step, 0), end);
    this.plot.setCursor({ left: this.plot.valToPos(this.spec.times[place] ?? 0, "x"), top: 0 });
    this.tip.setAttribute("role", "status");
  };

  private readonly onBlur = (): void => {
    this.tip.removeAttribute("role");
    this.plot?.setCursor({ left: -10, top: -10 });
  };
}

function dataOf(spec: ChartSpec): uPlot.AlignedData {
  return [spec.times, ...spec.lines.map((line) => line.values)];
}

/** A custom property's colour as the canvas takes it: the browser works out `light-dark()`. */
function inkOf(host: HTMLElement, name: string): string {
  const probe = document.createElement("span");
  probe.style.color = `var(${name})`;
  host.append(probe);
  const colour = getComputedStyle(probe).color;
  probe.remove();
  return colour;
}

function faded(colour: string): string {
  return colour.replace(/^rgb\((.*)\)$/, "rgb($1, 0.18)");
}

function inWords({ value, unit }: Figure): string {
  return `${value} ${unit}`.trim();
}

function noData(): HTMLElement {
  const row = document.createElement("div");
  row.className = "quiet";
  row.textContent = "no data";
  return row;
}

function fitted(ctx: CanvasRenderingContext2D, words: string, room: number): string {
  if (ctx.measureText(words).width <= room) return words;
  let kept = words;
  while (kept.length > 1 && ctx.measureText(`${kept}…`).width > room) kept = kept.slice(0, -1);
  return `${kept}…`;
}

function timeOf(at: number, step: number): string {
  const date = new Date(at * 1000);
  if (step >= 86_400) return date.toLocaleDateString("en-GB", { day: "numeric", month: "short" });
  const midnight = date.getHours() === 0 && date.getMinutes() === 0;
  if (midnight && step >= 3600) return date.toLocaleDateString("en-GB", { day: "numeric", month: "short" });
  return date.toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit", ...(step < 60 ? { second: "2-digit" } : {}) });
}

function exactTime(at: number): string {
  return new Date(at * 1000).toLocaleString("en-GB", { day: "numeric", month: "short", hour: "2-digit", minute: "2-digit", second: "2-digit" });
}
