/** Numbers as the console shows them: a short value, a quiet unit, the exact value for the title. Mirrors tenants/console/figures.py. */

export interface Figure {
  value: string;
  unit: string;
  exact: string;
}

const THIN = "\u2009";
const BYTE_UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];

/** Group the digits of a whole number by thin spaces. */
export function grouped(value: number): string {
  return String(Math.round(value)).replace(/\B(?=(\d{3})+(?!\d))/g, THIN);
}

/** Bytes in the largest binary unit that keeps a whole digit; a multiple of the unit has no decimals. */
export function bytes(amount: number): Figure {
  const exact = `${grouped(amount)} bytes`;
  let power = 0;
  while (power < BYTE_UNITS.length - 1 && amount >= 1024 ** (power + 1)) power += 1;
  // 1023.9 KiB must not read "1024 KiB": what rounds up to the next unit is written in it
  if (power > 0 && power < BYTE_UNITS.length - 1 && Math.round(amount / 1024 ** power) >= 1024) power += 1;
  const scaled = amount / 1024 ** power;
  const value = Number.isInteger(scaled) ? String(scaled) : digits(scaled);
  return { value, unit: BYTE_UNITS[power] ?? "B", exact };
}

/** A whole number with its unit, grouped by thin spaces. */
export function count(amount: number, unit = ""): Figure {
  return { value: grouped(amount), unit, exact: unit ? `${grouped(amount)} ${unit}` : grouped(amount) };
}

/** A rate a second: one decimal under 100, whole above. */
export function rate(amount: number, unit = "tok/s"): Figure {
  const value = amount === 0 ? "0" : amount < 99.95 ? amount.toFixed(1) : grouped(amount);
  return { value, unit, exact: `${amount.toFixed(3)} ${unit}` };
}

/** Milliseconds in the unit that keeps two or three digits. */
export function duration(ms: number): Figure {
  const exact = `${ms.toFixed(3)} ms`;
  if (ms < 9.95) return { value: ms.toFixed(1), unit: "ms", exact };
  if (ms < 999.5) return { value: ms.toFixed(0), unit: "ms", exact };
  if (ms < 99_950) return { value: digits(ms / 1000), unit: "s", exact };
  return { value: digits(ms / 60_000), unit: "min", exact };
}

/** Write a figure into an element: value, quiet unit, exact value as title. Touches the page only on a change. */
export function show(target: Element, figure: Figure): void {
  const [value, unit] = target.childNodes;
  if (value instanceof Text && (unit instanceof HTMLElement || !figure.unit)) {
    if (value.data !== figure.value) value.data = figure.value;
    if (unit && unit.textContent !== figure.unit) unit.textContent = figure.unit;
  } else {
    target.replaceChildren(figure.value, ...unitOf(figure));
  }
  if (target.getAttribute("title") !== figure.exact) target.setAttribute("title", figure.exact);
}

function unitOf(figure: Figure): HTMLElement[] {
  if (!figure.unit) return [];
  const unit = document.createElement("span");
  unit.className = "unit";
  unit.textContent = figure.unit;
  return [unit];
}

function digits(value: number): string {
  return value.toFixed(value < 9.995 ? 2 : value < 99.95 ? 1 : 0);
}
