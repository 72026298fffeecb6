/** The places of a slider over bytes: zero, then sixteen a doubling from 1 MiB up, and its end. */

const STEPS_A_DOUBLING = 16;
const FIRST = 1 << 20;

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB"] as const;

/** A number and its unit as a field of bytes takes them. */
export interface Written {
  number: string;
  unit: string;
}

export class ByteScale {
  /** Bytes at each place, rising. */
  readonly values: readonly number[];

  /** @param top bytes at the last place */
  constructor(top: number) {
    const values = [0];
    for (let step = 0; ; step += 1) {
      const value = FIRST * 2 ** Math.floor(step / STEPS_A_DOUBLING) * (1 + (step % STEPS_A_DOUBLING) / STEPS_A_DOUBLING);
      if (value >= top) break;
      values.push(value);
    }
    if (top > 0) values.push(top);
    this.values = values;
  }

  /** The last place. */
  get last(): number {
    return this.values.length - 1;
  }

  /** Bytes at a place. */
  at(place: number): number {
    return this.values[Math.min(Math.max(Math.round(place), 0), this.last)] ?? 0;
  }

  /** The place nearest to an amount, by ratio; zero has its own. */
  placeOf(bytes: number): number {
    if (bytes <= 0) return 0;
    let best = 0;
    let distance = Infinity;
    this.values.forEach((value, place) => {
      const apart = value > 0 ? Math.abs(Math.log(value / bytes)) : Infinity;
      if (apart < distance) [best, distance] = [place, apart];
    });
    return best;
  }
}

/** Write bytes in the largest unit that takes them in whole. */
export function written(bytes: number): Written {
  if (bytes <= 0) return { number: "0", unit: "MiB" };
  let power = UNITS.length - 1;
  while (power > 0 && bytes % 1024 ** power !== 0) power -= 1;
  return { number: String(bytes / 1024 ** power), unit: UNITS[power] ?? "B" };
}

/** Read what a field of bytes holds; null where it is no amount that the field would take. */
export function read({ number, unit }: Written): number | null {
  const power = UNITS.indexOf(unit as (typeof UNITS)[number]);
  const text = number.trim().replace(",", ".");
  if (power < 0 || !/^\d*\.?\d+(e\d{1,2})?$|^\d+\.$/i.test(text)) return null;
  const bytes = Number(text) * 1024 ** power;
  return Number.isInteger(bytes) ? bytes : null;
}
