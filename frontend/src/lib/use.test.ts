import { describe, expect, it } from "vitest";

import type { WorkerStats } from "./hints";
import { NO_USE, pieces, usesOf } from "./use";

const tenant = (tenant_id: string, kv_bytes: number, kv_cached_bytes: number): WorkerStats["tenants"][number] => ({
  tenant_id,
  kv_bytes,
  kv_cached_bytes,
  kv_peak_bytes: kv_bytes,
  running: 1,
  queued: 2,
  output_tokens_per_second: 3,
  kv_borrowed_bytes: kv_bytes / 2,
  host_bytes: 5,
  above_soft_seconds: kv_bytes,
  oldest_wait_seconds: kv_bytes / 10,
  disk_bytes: 6,
  num_sessions: 7,
});
const worker = (tenants: WorkerStats["tenants"], share_groups: WorkerStats["share_groups"]): WorkerStats =>
  ({ tenants, share_groups }) as WorkerStats;
const WORKERS = [
  worker([tenant("a", 30, 10)], [{ name: "a", kv_bytes: 8, kv_cached_bytes: 8 }]),
  worker([tenant("a", 10, 0), tenant("b", 40, 40)], [{ name: "a", kv_bytes: 2, kv_cached_bytes: 0 }]),
];

describe("usesOf", () => {
  it("adds each account up over the workers, times as the longest of them, and keeps a tenant and a group of one name apart", () => {
    const uses = usesOf(WORKERS);
    expect(uses.get("tenant:a")).toEqual({ kv: 40, cached: 10, running: 2, queued: 4, rate: 6, borrowed: 20, host: 10, disk: 12, sessions: 14, above: 30, wait: 3 });
    expect(uses.get("tenant:b")).toMatchObject({ kv: 40, cached: 40 });
    expect(uses.get("group:a")).toEqual({ ...NO_USE, kv: 10, cached: 8 });
  });
});

describe("pieces", () => {
  it("lie end to end, each with what is only cached at its end", () => {
    expect(pieces(["tenant:a", "tenant:gone", "group:a"], usesOf(WORKERS), 200)).toEqual([
      { from: 0, length: 20, held: 15, cached: 5 },
      { from: 20, length: 0, held: 20, cached: 0 },
      { from: 20, length: 5, held: 21, cached: 4 },
    ]);
  });
  it("are nothing while no pool is known", () => {
    expect(pieces(["tenant:a"], usesOf(WORKERS), 0)).toEqual([{ from: 0, length: 0, held: 0, cached: 0 }]);
  });
});
