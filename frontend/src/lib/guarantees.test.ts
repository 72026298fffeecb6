import { describe, expect, it } from "vitest";

import { sumWith } from "./guarantees";

const POOL = { others: 400, before: 500, room: 900, pool: 1000 };

describe("guarantees while one moves", () => {
  it("lays others and the one that moves end to end along the pool", () => {
    expect(sumWith(250, POOL)).toEqual({ after: 650, fits: true, keptPart: 1, others: 40, own: 25, roomAt: 90, poolAt: 100 });
  });

  it("does not fit above the low watermark, and scales nothing down while the pool still holds all", () => {
    expect(sumWith(550, POOL)).toMatchObject({ fits: false, keptPart: 1 });
    expect(sumWith(500, POOL).fits).toBe(true);
  });

  it("scales every guarantee down once the pool does not hold them, and draws past the pool's end", () => {
    expect(sumWith(850, POOL)).toMatchObject({ after: 1250, fits: false, keptPart: 0.8, poolAt: 80, others: 32, own: 68 });
  });

  it("takes what rises no further, however much is guaranteed", () => {
    expect(sumWith(600, { ...POOL, before: 1100 }).fits).toBe(true);
  });

  it("says nothing against a pool that is not there", () => {
    expect(sumWith(600, { others: 0, before: 0, room: 0, pool: 0 })).toMatchObject({ fits: true, keptPart: 1 });
  });
});
