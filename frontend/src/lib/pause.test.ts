import { expect, test } from "vitest";

import { Pause, PAUSE_MS } from "./pause";

test("the first key begins, the next ones go on, and one after a pause begins again", () => {
  const pause = new Pause();
  expect([0, 10, 20].map((now) => pause.ends(now))).toEqual([true, false, false]);
  expect(pause.ends(20 + PAUSE_MS)).toBe(false);
  expect(pause.ends(21 + 2 * PAUSE_MS)).toBe(true);
});

test("after a reset the next key begins", () => {
  const pause = new Pause();
  pause.ends(0);
  pause.reset();
  expect(pause.ends(1)).toBe(true);
});
