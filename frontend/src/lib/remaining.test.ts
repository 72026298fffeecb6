import { describe, expect, it } from "vitest";

import { remaining } from "./remaining";

describe("the time that is left", () => {
  it.each([
    [0, "0 s"],
    [-5_000, "0 s"],
    [1, "1 s"],
    [42_000, "42 s"],
    [60_000, "1 min 0 s"],
    [899_001, "15 min 0 s"],
    [3_600_000, "1 h 0 min"],
    [4_320_000, "1 h 12 min"],
    [2 * 86_400_000, "2 d 0 h"],
  ])("says %d ms as %s", (ms, words) => {
    expect(remaining(ms).replaceAll("\u2009", " ")).toBe(words);
  });
});
