/** Whose KV memory the workers' statistics count, added up over the workers. */

import type { WorkerStats } from "./hints";

export interface Use {
  kv: number;
  cached: number; // of `kv`, what no request holds
  running: number;
  queued: number;
  rate: number;
}

export const NO_USE: Use = { kv: 0, cached: 0, running: 0, queued: 0, rate: 0 };

/** Each account's use by its key: `tenant:<id>` or `group:<name>`. */
export type Uses = ReadonlyMap<string, Use>;

export function usesOf(workers: WorkerStats[]): Uses {
  const uses = new Map<string, Use>();
  const add = (key: string, part: Use): void => {
    const sum = uses.get(key) ?? NO_USE;
    uses.set(key, {
      kv: sum.kv + part.kv,
      cached: sum.cached + part.cached,
      running: sum.running + part.running,
      queued: sum.queued + part.queued,
      rate: sum.rate + part.rate,
    });
  };
  for (const worker of workers) {
    for (const tenant of worker.tenants) {
      const { running, queued, output_tokens_per_second: rate } = tenant;
      add(`tenant:${tenant.tenant_id}`, { kv: tenant.kv_bytes, cached: tenant.kv_cached_bytes, running, queued, rate });
    }
    for (const group of worker.share_groups) {
      add(`group:${group.name}`, { ...NO_USE, kv: group.kv_bytes, cached: group.kv_cached_bytes });
    }
  }
  return uses;
}

/** Where an account's part of the pool's bar lies, in per cent: all of it, and the end that is only cached. */
export interface Piece {
  from: number;
  length: number;
  held: number;
  cached: number;
}

/** Lay the accounts' use end to end along the pool, in the order of `keys`. */
export function pieces(keys: readonly string[], uses: Uses, pool: number): Piece[] {
  let from = 0;
  return keys.map((key) => {
    const { kv, cached } = uses.get(key) ?? NO_USE;
    const per = (amount: number): number => (pool > 0 ? (amount / pool) * 100 : 0);
    const piece = { from, length: per(kv), held: from + per(kv - cached), cached: per(cached) };
    from += piece.length;
    return piece;
  });
}
