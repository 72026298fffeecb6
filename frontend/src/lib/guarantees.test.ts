import { describe, expect, it } from "vitest";

import { sumWith } from "./guarantees";

const POOL = { others: 400, before: 500, room: 900, pool: 1000 };

describe("guarantees while one moves", () => {
  it("lays others and the one that moves end to end along the pool", () => {
    expect(sumWith(250, POOL)).toEqual({ after: 650, fits: true, keptPart: 1, others: 40, own: 25, roomAt: 90, poolAt: 100 });
  });

  it("fits up to the low watermark, and scales every guarantee down above it", () => {
    expect(sumWith(500, POOL)).toMatchObject({ fits: true, keptPart: 1 });
    expect(sumWith(560, POOL)).toMatchObject({ fits: false, keptPart: 0.9375 });
  });

  it("draws past the pool's end", () => {
    expect(sumWith(850, POOL)).toMatchObject({ after: 1250, fits: false, keptPart: 0.72, poolAt: 80, others: 32, own: 68 });
  });

  it("takes what rises no further, however much is guaranteed", () => {
    expect(sumWith(600, { ...POOL, before: 1100 }).fits).toBe(true);
  });

  it("says nothing against a pool that is not there", () => {
    expect(sumWith(600, { others: 0, before: 0, room: 0, pool: 0 })).toMatchObject({ fits: true, keptPart: 1 });
  });
});
