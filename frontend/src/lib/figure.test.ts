import { describe, expect, it } from "vitest";

import cases from "./figure.cases.json";
import { bytes, count, duration, rate } from "./figure";

describe("figures read the same here and on the server", () => {
  it.each(cases.bytes)("bytes %s", (amount, value, unit) => {
    expect(bytes(Number(amount))).toMatchObject({ value, unit });
  });
  it.each(cases.count)("count %s", (amount, value) => {
    expect(count(Number(amount)).value).toBe(value);
  });
  it.each(cases.rate)("rate %s", (amount, value) => {
    expect(rate(Number(amount)).value).toBe(value);
  });
  it.each(cases.duration)("duration %s", (amount, value, unit) => {
    expect(duration(Number(amount))).toMatchObject({ value, unit });
  });
});
