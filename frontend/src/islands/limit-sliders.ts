import { bytes, show } from "../lib/figure";
import { sumWith, type Guarantees } from "../lib/guarantees";
import { Island } from "../lib/island";
import { ByteScale, read, written } from "../lib/scale";

interface Bound {
  number: HTMLInputElement;
  unit: HTMLSelectElement;
  slider: HTMLInputElement;
}

/**
 * A guarantee and its ceiling as two sliders, each bound to a number with a unit.
 *
 * The numbers are the truth and are what is posted. A slider stops where the other one stands, so that it never makes
 * a guarantee above its ceiling; whoever types may, and is told. The bar of all guarantees moves along.
 */
export class LimitSliders extends Island {
  private scale = new ByteScale(0);
  private soft: Bound | null = null;
  private hard: Bound | null = null;

  override connect(): void {
    this.scale = new ByteScale(Number(this.element.dataset.top));
    this.soft = this.bind("soft");
    this.hard = this.bind("hard");
    this.follow();
    this.element.addEventListener("input", this.onInput);
    this.element.addEventListener("change", this.follow);
  }

  private bind(name: string): Bound {
    const field = this.element.querySelector(`[data-bytes="${name}"]`);
    const number = field?.querySelector("input[type=text]");
    const unit = field?.querySelector("select");
    const slider = field?.querySelector("input[type=range]");
    if (!(number instanceof HTMLInputElement && unit instanceof HTMLSelectElement && slider instanceof HTMLInputElement)) {
      throw new Error(`no field of bytes is named "${name}"`);
    }
    slider.max = String(this.scale.last);
    slider.hidden = false;
    return { number, unit, slider };
  }

  private readonly onInput = (event: Event): void => {
    if (event.target === this.soft?.slider) this.slid(this.soft, Math.min(this.at(this.soft), this.amount(this.hard) ?? Infinity));
    else if (event.target === this.hard?.slider) this.slid(this.hard, Math.max(this.at(this.hard), this.amount(this.soft) ?? 0, 1));
    this.follow();
  };

  /** Write into the field what its slider says; only a person's hand on the slider changes a number. */
  private slid(bound: Bound, amount: number): void {
    const { number, unit } = written(amount);
    bound.number.value = number;
    bound.unit.value = unit;
  }

  private at(bound: Bound): number {
    return this.scale.at(Number(bound.slider.value));
  }

  private amount(bound: Bound | null): number | null {
    return bound ? read({ number: bound.number.value, unit: bound.unit.value }) : null;
  }

  /** Bring the sliders and the bar in step with the numbers; a number that is none leaves them where they are. */
  private readonly follow = (): void => {
    for (const bound of [this.soft, this.hard]) {
      const amount = this.amount(bound);
      if (!bound || amount === null) continue;
      bound.slider.value = String(this.scale.placeOf(amount));
      const { value, unit } = bytes(amount);
      bound.slider.setAttribute("aria-valuetext", `${value} ${unit}`);
      bound.slider.style.setProperty("--filled", `${(Number(bound.slider.value) / Math.max(this.scale.last, 1)) * 100}%`);
    }
    const own = this.amount(this.soft);
    if (own !== null) this.drawSum(own);
  };

  private drawSum(own: number): void {
    const part = this.element.querySelector<HTMLElement>("#guarantees");
    if (!part) return;
    const sum = sumWith(own, guaranteesOf(part));
    const bar = part.querySelector("[data-part=sum-bar]");
    if (bar) {
      stretch(bar.querySelector(".track"), 0, sum.poolAt);
      stretch(bar.querySelector(".others"), 0, sum.others);
      stretch(bar.querySelector(".own"), sum.others, sum.own);
      for (const line of bar.querySelectorAll(".halo, .watermark")) {
        line.setAttribute("x1", `${sum.roomAt}%`);
        line.setAttribute("x2", `${sum.roomAt}%`);
      }
      bar.querySelector(".hard-mark")?.setAttribute("x", `${sum.poolAt}%`);
    }
    write(part, "sum", sum.after);
    write(part, "kept-own", Math.floor(own * sum.keptPart));
    const percent = part.querySelector("[data-field=kept-percent]");
    if (percent) percent.textContent = `${Math.round(sum.keptPart * 100)} %`;
    hide(part, "sum-was", sum.after === Number(part.dataset.before));
    hide(part, "overcommit", sum.fits);
  }
}

function guaranteesOf({ dataset }: HTMLElement): Guarantees {
  return { others: Number(dataset.others), before: Number(dataset.before), room: Number(dataset.room), pool: Number(dataset.pool) };
}

function stretch(rect: Element | null, from: number, length: number): void {
  rect?.setAttribute("x", `${from}%`);
  rect?.setAttribute("width", `${length}%`);
}

function write(root: HTMLElement, field: string, amount: number): void {
  const target = root.querySelector(`[data-field="${field}"]`);
  if (target) show(target, bytes(amount));
}

function hide(root: HTMLElement, name: string, hidden: boolean): void {
  const part = root.querySelector<HTMLElement>(`[data-part="${name}"]`);
  if (part) part.hidden = hidden;
}
