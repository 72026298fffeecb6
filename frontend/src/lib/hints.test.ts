import { describe, expect, it } from "vitest";

import { backoff } from "./backoff";
import { parseHint, Sequence } from "./hints";

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
