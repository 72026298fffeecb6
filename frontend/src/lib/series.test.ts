import { describe, expect, it } from "vitest";

import { anyOf, column, grid, idleAsZero, inUse, isolated, last, spread } from "./series";

const ANSWER = { from: "2026-01-01T00:00:05Z", to: "2026-01-01T00:00:40Z", step_seconds: 10 };
const START = Date.parse("2026-01-01T00:00:00Z") / 1000;

describe("the grid of an answer", () => {
  it("has the beginning of every step, the one that the range begins in included", () => {
    expect(grid(ANSWER)).toEqual([START, START + 10, START + 20, START + 30]);
  });
});

describe("columns", () => {
  const times = grid(ANSWER);
  const points = [
    { at: "2026-01-01T00:00:10Z", value: 3 },
    { at: "2026-01-01T00:00:30+00:00", value: 0 },
  ];

  it("have nothing where there is no point, and keep a zero", () => {
    expect(column(times, points, (point) => point.value)).toEqual([null, 3, null, 0]);
  });

  it("are zero where a tenant was idle, and a gap where the fleet was not heard", () => {
    expect(idleAsZero([null, 3, null, null], [1, 1, null, 1])).toEqual([0, 3, null, 0]);
  });

  it("of use have what requests held: zero of an idle tenant whatever it has cached, and a gap where nobody was heard", () => {
    const use = [
      { at: "2026-01-01T00:00:10Z", kv_bytes: 30, kv_cached_bytes: 10 },
      { at: "2026-01-01T00:00:20Z", kv_bytes: 12, kv_cached_bytes: 12 },
    ];
    expect(inUse(times, use, [1, 1, 1, 1])).toEqual([0, 20, 0, 0]);
    expect(inUse(times, use, [null, 1, 1, null])).toEqual([null, 20, 0, null]);
    expect(inUse(times, [], [1, null, 1, 1])).toEqual([0, null, 0, 0]);
  });

  it("know where anything was heard", () => {
    expect(anyOf([[null, 2, null], [null, null, 0]], 3)).toEqual([null, 1, 1]);
    expect(anyOf([], 2)).toEqual([null, null]);
  });
});

describe("lines", () => {
  it("show a value that has none beside it", () => {
    expect(isolated([null, 2, null, 3, 4, null, 0])).toEqual([1, 6]);
  });

  it("are labelled at their last value", () => {
    expect(last([1, 2, null])).toEqual({ place: 1, value: 2 });
    expect(last([null, undefined])).toBeNull();
  });

  it("keep their labels apart and above the bottom", () => {
    expect(spread([10, 50, 12], 14, 100)).toEqual([10, 50, 24]);
    expect(spread([95, 96, 97], 10, 100)).toEqual([80, 90, 100]);
    expect(spread([], 10, 100)).toEqual([]);
  });
});
