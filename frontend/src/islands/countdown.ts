import { Island } from "../lib/island";
import { remaining } from "../lib/remaining";

const TICK_MS = 500;
const ASK_EVERY_MS = 1_500;

/** The time until `data-ends`, counting down; at its end it asks (`boost:ask`) until it is taken away. */
export class Countdown extends Island {
  private timer: number | undefined;
  private asked = 0;

  override connect(): void {
    this.draw();
    this.timer = window.setInterval(this.draw, TICK_MS);
  }

  override disconnect(): void {
    window.clearInterval(this.timer);
  }

  private readonly draw = (): void => {
    const left = Date.parse(this.element.dataset.ends ?? "") - Date.now();
    const words = left > 0 ? remaining(left) : "ending";
    const label = this.part("left");
    if (label.textContent !== words) label.textContent = words;
    if (left > 0 || Date.now() - this.asked < ASK_EVERY_MS) return;
    this.asked = Date.now();
    this.element.dispatchEvent(new CustomEvent("boost:ask", { bubbles: true }));
  };
}
