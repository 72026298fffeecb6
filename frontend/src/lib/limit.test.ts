import { expect, it } from "vitest";

import cases from "./limit.cases.json";
import { limitParts } from "./limit";

it.each(cases)("lays out $use against $soft and $hard", ({ use, soft, hard, parts }) => {
  expect(limitParts(use, soft, hard)).toEqual(parts);
});
