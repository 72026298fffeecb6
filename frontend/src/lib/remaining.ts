/** Words for the time that is left: the two largest units that say something. */

const UNITS: readonly (readonly [number, string])[] = [
  [86_400, "d"],
  [3600, "h"],
  [60, "min"],
  [1, "s"],
];

const THIN = "\u2009";

/** "1 h 12 min", "42 s"; whole seconds, rounded up, so that it is 0 only at the end. */
export function remaining(ms: number): string {
  let seconds = Math.max(0, Math.ceil(ms / 1000));
  const parts: string[] = [];
  for (const [size, unit] of UNITS) {
    const whole = Math.floor(seconds / size);
    seconds -= whole * size;
    if (whole > 0 || (parts.length > 0 && parts.length < 2)) parts.push(`${whole}${THIN}${unit}`);
    if (parts.length === 2) break;
  }
  return parts.join(" ") || `0${THIN}s`;
}
