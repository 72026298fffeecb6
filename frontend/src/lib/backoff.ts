/** How long to wait before the n-th try (0 first), in ms: doubles from 250 to 8,000, spread by up to a half so that pages do not return as one. */
export function backoff(attempt: number, random: () => number = Math.random): number {
  const full = Math.min(8_000, 250 * 2 ** Math.min(attempt, 10));
  return full * (0.5 + random() / 2);
}
