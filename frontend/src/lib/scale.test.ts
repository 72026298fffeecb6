import { describe, expect, it } from "vitest";

import { ByteScale, read, written } from "./scale";

const MIB = 1 << 20;
const GIB = 1 << 30;

describe("the scale of a slider", () => {
  const scale = new ByteScale(4 * GIB);

  it("begins with nothing, rises, and ends at the top", () => {
    expect(scale.at(0)).toBe(0);
    expect(scale.at(1)).toBe(MIB);
    expect(scale.at(scale.last)).toBe(4 * GIB);
    expect(scale.values.every((value, place) => place === 0 || value > (scale.values[place - 1] ?? Infinity))).toBe(true);
  });

  it("takes sixteen steps from one doubling to the next", () => {
    expect(scale.placeOf(512 * MIB) - scale.placeOf(256 * MIB)).toBe(16);
    expect(scale.at(scale.placeOf(256 * MIB) + 1)).toBe(272 * MIB);
  });

  it.each([0, MIB, 64 * MIB, 256 * MIB, 1.5 * GIB, 4 * GIB])("finds the place of %d", (bytes) => {
    expect(scale.at(scale.placeOf(bytes))).toBe(bytes);
  });

  it("puts what lies between two places at the nearer one, and what lies outside at an end", () => {
    expect(scale.at(scale.placeOf(257 * MIB))).toBe(256 * MIB);
    expect(scale.at(scale.placeOf(271 * MIB))).toBe(272 * MIB);
    expect(scale.at(scale.placeOf(1))).toBe(MIB);
    expect(scale.at(scale.placeOf(100 * GIB))).toBe(4 * GIB);
    expect(scale.at(scale.last + 5)).toBe(4 * GIB);
    expect(scale.at(-5)).toBe(0);
  });

  it("ends at a top that is no step, and at one below the first step", () => {
    expect(new ByteScale(300 * MIB).values.at(-1)).toBe(300 * MIB);
    expect(new ByteScale(MIB / 2).values).toEqual([0, MIB / 2]);
    expect(new ByteScale(0).values).toEqual([0]);
  });
});

describe("bytes in a field", () => {
  it.each([
    [0, "0", "MiB"],
    [256 * MIB, "256", "MiB"],
    [1.5 * GIB, "1536", "MiB"],
    [2 * GIB, "2", "GiB"],
    [1.0625 * MIB, "1088", "KiB"],
    [1023, "1023", "B"],
  ])("writes %d as %s %s, and reads it back", (bytes, number, unit) => {
    expect(written(bytes)).toEqual({ number, unit });
    expect(read({ number, unit })).toBe(bytes);
  });

  it.each([
    ["1.5", "GiB", 1.5 * GIB],
    ["1,5", "GiB", 1.5 * GIB],
    [" 64 ", "MiB", 64 * MIB],
    ["", "MiB", null],
    ["-1", "MiB", null],
    ["lots", "MiB", null],
    ["0.3", "B", null],
    ["1", "parsec", null],
  ])("reads %s %s", (number, unit, bytes) => {
    expect(read({ number, unit })).toBe(bytes);
  });
});
