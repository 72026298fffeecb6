/** Where the parts of a limit bar lie, in per cent of its length. Mirrors tenants/console/limit.py. */

export interface LimitParts {
  used: number; // what lies within the soft limit
  borrowed: number; // what lies between soft and hard
  over: number; // what lies above hard until it has settled
  soft: number;
  hard: number;
}

/** Lay out use against soft and hard (bytes); the bar grows past the hard end only while the use does. */
export function limitParts(use: number, soft: number, hard: number): LimitParts {
  const scale = Math.max(use, hard, 1);
  const per = (amount: number): number => Math.round((amount / scale) * 10_000) / 100;
  const within = Math.min(use, soft, hard);
  const borrowed = Math.max(0, Math.min(use, hard) - within);
  return { used: per(within), borrowed: per(borrowed), over: per(Math.max(0, use - hard)), soft: per(Math.min(soft, scale)), hard: per(hard) };
}

/** Say in words what the bar shows. */
export function limitWords(use: string, soft: string, hard: string): string {
  return `uses ${use}, soft limit ${soft}, hard limit ${hard}`;
}

/** Move the parts of an existing bar. */
export function drawLimit(bar: SVGElement, parts: LimitParts, words: string): void {
  place(bar, "used", 0, parts.used);
  place(bar, "borrowed", parts.used, parts.borrowed);
  place(bar, "weave", parts.used, parts.borrowed);
  place(bar, "over", parts.used + parts.borrowed, parts.over);
  move(bar, "soft", parts.soft);
  move(bar, "hard", parts.hard);
  bar.setAttribute("aria-label", words);
}

function place(bar: SVGElement, name: string, from: number, length: number): void {
  const part = bar.querySelector(`.${name}`);
  part?.setAttribute("x", `${from}%`);
  part?.setAttribute("width", `${length}%`);
}

function move(bar: SVGElement, name: string, at: number): void {
  bar.querySelector(`.${name}-mark`)?.setAttribute("x", `${at}%`);
}
