/** Whose KV memory the workers' statistics count, added up over the workers. */

import type { WorkerStats } from "./hints";

export interface Use {
  kv: number;
  cached: number; // of `kv`, what no request holds
  running: number;
  queued: number;
  rate: number;
  borrowed: number; // of `kv`, above the guarantees of the workers that hold it
  host: number;
  disk: number;
  sessions: number;
  above: number; // seconds above the guarantee, of the worker that counts most
  wait: number; // seconds, of the oldest that waits
}

export const NO_USE: Use = { kv: 0, cached: 0, running: 0, queued: 0, rate: 0, borrowed: 0, host: 0, disk: 0, sessions: 0, above: 0, wait: 0 };

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
      borrowed: sum.borrowed + part.borrowed,
      host: sum.host + part.host,
      disk: sum.disk + part.disk,
      sessions: sum.sessions + part.sessions,
      above: Math.max(sum.above, part.above),
      wait: Math.max(sum.wait, part.wait),
    });
  };
  for (const worker of workers) {
    for (const tenant of worker.tenants) {
      add(`tenant:${tenant.tenant_id}`, {
        kv: tenant.kv_bytes,
        cached: tenant.kv_cached_bytes,
        running: tenant.running,
        queued: tenant.queued,
        rate: tenant.output_tokens_per_second,
        borrowed: tenant.kv_borrowed_bytes,
        host: tenant.host_bytes,
        disk: tenant.disk_bytes,
        sessions: tenant.num_sessions,
        above: tenant.above_soft_seconds,
        wait: tenant.oldest_wait_seconds,
      });
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
