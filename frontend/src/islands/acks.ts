import { duration, show } from "../lib/figure";
import type { Hint } from "../lib/hints";
import { Island } from "../lib/island";

const ASK_AFTER_MS = 1_200;

/**
 * The line "saved → sent → applied on 1/1 workers in 38 ms → settled after 0.4 s" of one version of a policy or of a share group (no tenant's).
 *
 * Follows the feed's acks; a line that stands still asks the server, which also answers when the feed is away.
 */
export class Acks extends Island {
  private timer: number | undefined;

  override connect(): void {
    document.body.addEventListener("live:hint", this.onHint);
    this.askLater();
  }

  override disconnect(): void {
    document.body.removeEventListener("live:hint", this.onHint);
    window.clearTimeout(this.timer);
  }

  private readonly onHint = (event: Event): void => {
    const hint = (event as CustomEvent<Hint>).detail;
    const { tenantId, version } = this.element.dataset;
    if (hint.kind !== "policy" || hint.version < Number(version)) return;
    if (hint.version > Number(version)) {
      // a newer version of the same owner brings this one along, but its time is not this one's
      if (hint.tenant_id === tenantId) this.ask();
      return;
    }
    this.part("sent").className = "step done";
    const applied = this.part("applied");
    applied.classList.toggle("done", hint.applied >= hint.of);
    this.part("workers").textContent = `${hint.applied}/${hint.of}`;
    this.part("time").hidden = hint.applied === 0;
    const ms = this.element.querySelector("[data-field=ms]");
    if (ms) show(ms, duration(hint.ms));
    this.settled(hint.settled, hint.of, hint.settled_ms);
  };

  /** Once nobody is above the limits on any worker there is nothing more to ask. */
  private settled(settled: number, of: number, ms: number): void {
    const done = of > 0 && settled >= of;
    if (!done) return;
    this.part("settled").classList.add("done");
    this.part("settling").hidden = true;
    this.part("settled-time").hidden = false;
    const time = this.element.querySelector("[data-field=settled-ms]");
    if (time) show(time, duration(ms));
    window.clearTimeout(this.timer);
  }

  /** The answer replaces this element; a line that is not done mounts again and asks again. */
  private askLater(): void {
    if (this.element.dataset.done === "true") return;
    this.timer = window.setTimeout(() => {
      this.ask();
    }, ASK_AFTER_MS);
  }

  private ask(): void {
    this.element.dispatchEvent(new CustomEvent("acks:ask"));
  }
}
