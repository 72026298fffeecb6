/** What the live websocket carries; the shapes are those of tenants/contracts.py. */

export interface TenantUse {
  tenant_id: string;
  kv_bytes: number;
  kv_cached_bytes: number; // of `kv_bytes`, what no request holds
  kv_peak_bytes: number;
  running: number;
  queued: number;
  output_tokens_per_second: number;
  kv_borrowed_bytes: number; // of `kv_bytes`, above the worker's share of the guarantee
  host_bytes: number;
  above_soft_seconds: number; // since the core started
  oldest_wait_seconds: number; // now; 0: nobody waits
  disk_bytes: number;
  num_sessions: number;
}

/** How short a worker's memory is, and what makes it so: each from 0 to 1. */
export interface Pressure {
  score: number;
  use: number;
  borrowed: number;
  wait: number;
  swap: number;
}

export interface ShareGroupUse {
  name: string;
  kv_bytes: number;
  kv_cached_bytes: number;
}

export interface WorkerStats {
  worker_id: string;
  at: number; // unix seconds
  core_ready: boolean;
  applied_version: number;
  blocks_total: number;
  blocks_free: number;
  blocks_cached: number;
  block_bytes: number;
  running: number;
  queued: number;
  prompt_tokens_per_second: number;
  output_tokens_per_second: number;
  tenants: TenantUse[];
  share_groups: ShareGroupUse[];
  pressure: Pressure;
}

interface Numbered {
  type: "hint";
  seq: number;
}

export type Hint =
  | (Numbered & { kind: "stats"; workers: WorkerStats[] })
  | (Numbered & { kind: "policy"; tenant_id: string; version: number; applied: number; of: number; ms: number; settled: number; settled_ms: number })
  | (Numbered & { kind: "workers" });

/** Read one message; null when it is no hint that this page knows. */
export function parseHint(text: string): Hint | null {
  const message: unknown = JSON.parse(text);
  if (typeof message !== "object" || message === null) return null;
  const { type, kind, seq } = message as { type?: unknown; kind?: unknown; seq?: unknown };
  const known = kind === "stats" || kind === "policy" || kind === "workers";
  return type === "hint" && known && typeof seq === "number" ? (message as Hint) : null;
}

const SILENT_AFTER_MS = 5_000;

/** The last statistics of every worker: a hint carries only the workers that spoke since the one before it. */
export class Fleet {
  private readonly heard = new Map<string, { stats: WorkerStats; at: number }>();

  /** Take what a hint carries, let go of workers that fell silent, and return all that is known. */
  merge(workers: WorkerStats[], now: number): WorkerStats[] {
    for (const stats of workers) this.heard.set(stats.worker_id, { stats, at: now });
    for (const [id, { at }] of this.heard) if (now - at > SILENT_AFTER_MS) this.heard.delete(id);
    return [...this.heard.values()].map(({ stats }) => stats);
  }
}

/** Follows the running number of the hints; says whether any was missed before this one. */
export class Sequence {
  private last: number | null = null;

  /** True when hints between the last one and this one were lost, or the numbering began anew. */
  gapBefore(seq: number): boolean {
    const gap = this.last !== null && seq !== this.last + 1;
    this.last = seq;
    return gap;
  }

  /** Forget the numbering, as after a reconnect. */
  reset(): void {
    this.last = null;
  }
}
