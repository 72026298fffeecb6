import { describe, expect, it } from "vitest";

import { backoff } from "./backoff";
import { Fleet, parseHint, Sequence, type WorkerStats } from "./hints";

describe("Sequence", () => {
  it("sees a lost hint once", () => {
    const sequence = new Sequence();
    expect([7, 8, 10, 11].map((seq) => sequence.gapBefore(seq))).toEqual([false, false, true, false]);
  });
  it("takes any number after a reset", () => {
    const sequence = new Sequence();
    sequence.gapBefore(7);
    sequence.reset();
    expect(sequence.gapBefore(1)).toBe(false);
  });
});

describe("parseHint", () => {
  it("takes the kinds it knows and no others", () => {
    expect(parseHint('{"type":"hint","kind":"workers","seq":1}')).toMatchObject({ kind: "workers" });
    expect(parseHint('{"type":"hint","kind":"later","seq":1}')).toBeNull();
    expect(parseHint('{"type":"hint","kind":"stats"}')).toBeNull();
    expect(parseHint("3")).toBeNull();
  });
});

describe("backoff", () => {
  it("doubles, is spread by a half and bounded", () => {
    expect(backoff(0, () => 1)).toBe(250);
    expect(backoff(0, () => 0)).toBe(125);
    expect(backoff(3, () => 1)).toBe(2000);
    expect(backoff(50, () => 1)).toBe(8000);
  });
});

describe("Fleet", () => {
  const stats = (worker_id: string): WorkerStats => ({ worker_id }) as WorkerStats;
  it("keeps a worker that a hint leaves out, until it has been silent for long", () => {
    const fleet = new Fleet();
    fleet.merge([stats("a"), stats("b")], 0);
    expect(fleet.merge([stats("a")], 4_000)).toHaveLength(2);
    expect(fleet.merge([stats("a")], 6_000)).toEqual([stats("a")]);
  });
});
