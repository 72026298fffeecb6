import { describe, expect, it } from "vitest";

import cases from "./limit.cases.json";
import { limitParts, limitWords } from "./limit";

const MIB = 1 << 20;

describe("limit bars", () => {
  it.each(cases)("lays out $use, of it $cached cached, against $soft and $hard", ({ parts, ...limit }) => {
    expect(limitParts(limit)).toEqual(parts);
  });

  it("names what is only cached, and nothing where nothing is", () => {
    const limit = { use: 82 * MIB, cached: 0, soft: 64 * MIB, hard: 96 * MIB };
    expect(limitWords(limit)).toBe("uses 82 MiB, soft limit 64 MiB, hard limit 96 MiB");
    expect(limitWords({ ...limit, cached: 20 * MIB })).toBe("uses 82 MiB, of it 20 MiB only cached, soft limit 64 MiB, hard limit 96 MiB");
  });
});
