import { Island } from "../lib/island";

const ASK_AFTER_MS = 2_000;

/**
 * A part of the page in which something is pending (`data-pending`): asks for it anew until nothing is.
 *
 * Not while somebody is at work in it: a question that waits for its answer, or a text that is being read, would go, and
 * what was just said (`data-said`, which has the focus) too.
 */
export class Refresh extends Island {
  private timer: number | undefined;

  override connect(): void {
    if (!this.element.dataset.pending) return;
    this.timer = window.setInterval(() => {
      if (!this.element.querySelector("form, [aria-expanded=true], [data-said]:focus")) this.element.dispatchEvent(new CustomEvent("refresh:ask"));
    }, ASK_AFTER_MS);
  }

  override disconnect(): void {
    window.clearInterval(this.timer);
  }
}
