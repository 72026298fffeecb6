/** Where the parts of a limit bar lie, in per cent of its length. Mirrors tenants/console/limit.py. */

import { bytes } from "./figure";

export interface LimitParts {
  used: number; // what lies within the soft limit
  borrowed: number; // what lies between soft and hard
  over: number; // what lies above hard until it has settled
  held: number; // where what requests hold ends and what is only cached begins
  cached: number; // the length of that, up to the end of the use
  soft: number;
  hard: number;
}

export interface Limit {
  use: number;
  cached: number; // of `use`, what no request holds
  soft: number;
  hard: number;
}

/** Lay out use against soft and hard (bytes); the bar grows past the hard end only while the use does. */
export function limitParts({ use, cached, soft, hard }: Limit): LimitParts {
  const scale = Math.max(use, hard, 1);
  const per = (amount: number): number => Math.round((amount / scale) * 10_000) / 100;
  const within = Math.min(use, soft, hard);
  const held = use - Math.min(Math.max(cached, 0), use);
  return {
    used: per(within),
    borrowed: per(Math.max(0, Math.min(use, hard) - within)),
    over: per(Math.max(0, use - hard)),
    held: per(held),
    cached: per(use - held),
    soft: per(Math.min(soft, scale)),
    hard: per(hard),
  };
}

/** Say in words what the bar shows; the server says the same. */
export function limitWords({ use, cached, soft, hard }: Limit): string {
  const part = cached > 0 ? `, of it ${inWords(cached)} only cached` : "";
  return `uses ${inWords(use)}${part}, soft limit ${inWords(soft)}, hard limit ${inWords(hard)}`;
}

/** Move the parts of an existing bar. */
export function drawLimit(bar: SVGElement, limit: Limit): void {
  const parts = limitParts(limit);
  place(bar, "used", 0, parts.used);
  place(bar, "borrowed", parts.used, parts.borrowed);
  place(bar, "twill", 0, parts.used + parts.borrowed);
  place(bar, "cached", parts.held, parts.cached);
  place(bar, "weave", parts.used, parts.borrowed);
  place(bar, "over", parts.used + parts.borrowed, parts.over);
  move(bar, "soft", parts.soft);
  move(bar, "hard", parts.hard);
  const words = limitWords(limit);
  bar.setAttribute("aria-label", words);
  const title = bar.querySelector("title");
  if (title && title.textContent !== words) title.textContent = words;
}

function place(bar: SVGElement, name: string, from: number, length: number): void {
  const part = bar.querySelector(`.${name}`);
  part?.setAttribute("x", `${from}%`);
  part?.setAttribute("width", `${length}%`);
}

function move(bar: SVGElement, name: string, at: number): void {
  bar.querySelector(`.${name}-mark`)?.setAttribute("x", `${at}%`);
}

function inWords(amount: number): string {
  const { value, unit } = bytes(amount);
  return `${value} ${unit}`;
}
