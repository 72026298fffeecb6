/** Answers of the API's time series as columns over one grid of times. */

/** A value a time, null where there is none: never a line across it. */
export type Column = (number | null)[];

export interface Answer {
  from: string; // as the three below: ISO 8601
  to: string;
  step_seconds: number;
}

export interface PressurePoint {
  at: string;
  score: number;
  score_peak: number;
  use: number;
  borrowed: number;
  wait: number;
  swap: number;
  pool_use: number;
}

export interface PressureAnswer extends Answer {
  workers: { worker_id: string; points: PressurePoint[] }[];
}

export interface UsePoint {
  at: string;
  kv_bytes: number;
  kv_cached_bytes: number; // of them, no request's
}

export interface TenantsAnswer extends Answer {
  num_tenants: number;
  tenants: { tenant: string; points: UsePoint[] }[];
}

export interface FairnessAnswer extends Answer {
  jain: number | null;
  num_tenants: number;
  points: { at: string; jain: number | null }[];
  tenants: { tenant: string; service: number; points: { at: string; share: number }[] }[];
}

/** The beginnings of all steps of an answer, unix seconds; steps count from the epoch. */
export function grid({ from, to, step_seconds: step }: Answer): number[] {
  const first = Math.floor(seconds(from) / step) * step;
  const times: number[] = [];
  for (let at = first; at < seconds(to); at += step) times.push(at);
  return times;
}

/** Put points where they lie in the grid. */
export function column<P extends { at: string }>(times: readonly number[], points: readonly P[], value: (point: P) => number | null): Column {
  const at = new Map(points.map((point) => [seconds(point.at), value(point)]));
  return times.map((time) => at.get(time) ?? null);
}

/** Nothing where nothing was told, and zero where the fleet was heard: a tenant without a point was idle. */
export function idleAsZero(values: Column, heard: Column): Column {
  return values.map((value, n) => value ?? (heard[n] == null ? null : 0));
}

/**
 * What a tenant's requests held. Points are kept of the times in which it had any: without one it held nothing where the fleet was heard.
 *
 * What it has cached is not in it: of an idle tenant nobody keeps how that dwindles.
 */
export function inUse(times: readonly number[], points: readonly UsePoint[], heard: Column): Column {
  return idleAsZero(
    column(times, points, (point) => point.kv_bytes - point.kv_cached_bytes),
    heard,
  );
}

/** Where any of the columns has a value. */
export function anyOf(columns: readonly Column[], length: number): Column {
  return Array.from({ length }, (_, n) => (columns.some((values) => values[n] != null) ? 1 : null));
}

/** Places with a value and none beside it: a line alone would not show them. */
export function isolated(values: readonly (number | null | undefined)[]): number[] {
  return values.flatMap((value, n) => (value != null && values[n - 1] == null && values[n + 1] == null ? [n] : []));
}

/** The last value of a column, and its place. */
export function last(values: readonly (number | null | undefined)[]): { place: number; value: number } | null {
  for (let place = values.length - 1; place >= 0; place -= 1) {
    const value = values[place];
    if (value != null) return { place, value };
  }
  return null;
}

/** Move labels apart, from the top down, so that none lies on another; what does not fit below is pushed up again. */
export function spread(wanted: readonly number[], height: number, bottom: number): number[] {
  const order = wanted.map((y, n) => ({ y, n })).sort((one, other) => one.y - other.y);
  order.forEach((label, n) => {
    const above = order[n - 1];
    if (above) label.y = Math.max(label.y, above.y + height);
  });
  for (let n = order.length - 1; n >= 0; n -= 1) {
    const label = order[n];
    const below = order[n + 1];
    if (label) label.y = Math.min(label.y, below ? below.y - height : bottom);
  }
  const places = wanted.map(() => 0);
  for (const { y, n } of order) places[n] = y;
  return places;
}

function seconds(iso: string): number {
  return Date.parse(iso) / 1000;
}
