import { isTouched } from "../lib/forms";
import type { Hint } from "../lib/hints";
import { Island } from "../lib/island";

const SETTLE_MS = 300;

/**
 * A policy's page: when the policy has moved on, each part (`data-follows`) that shows an older version fetches itself anew.
 *
 * A part in which somebody is at work stays: a form with changed values (`clean`), or one that has a question open (`idle`).
 */
export class PolicyWatch extends Island {
  private newest = 0;
  private isOwn = false; // this page wrote the newest version: an open question about an older one is answered
  private timer: number | undefined;

  override connect(): void {
    document.body.addEventListener("live:hint", this.onHint);
    document.body.addEventListener("live:refetch", this.onRefetch);
    document.body.addEventListener("limits:saved", this.onSaved);
  }

  override disconnect(): void {
    document.body.removeEventListener("live:hint", this.onHint);
    document.body.removeEventListener("live:refetch", this.onRefetch);
    document.body.removeEventListener("limits:saved", this.onSaved);
    window.clearTimeout(this.timer);
  }

  private readonly onHint = (event: Event): void => {
    const hint = (event as CustomEvent<Hint>).detail;
    if (hint.kind !== "policy" || hint.tenant_id !== this.element.dataset.tenantId || hint.version <= this.newest) return;
    this.newest = hint.version;
    this.later();
  };

  /** Hints were missed: any part may be old. */
  private readonly onRefetch = (): void => {
    this.newest = Infinity;
    this.later();
  };

  /** This page has written a new version itself: the part that shows the newest one knows which. */
  private readonly onSaved = (): void => {
    for (const part of this.parts()) this.newest = Math.max(this.newest, Number(part.dataset.version));
    this.isOwn = true;
    this.later();
  };

  /** Not at once: the answer to what this page did is on its way, and brings some parts along. */
  private later(): void {
    window.clearTimeout(this.timer);
    this.timer = window.setTimeout(() => {
      this.follow();
    }, SETTLE_MS);
  }

  private follow(): void {
    for (const part of this.parts()) {
      if (Number(part.dataset.version) >= this.newest) continue;
      const busy = part.dataset.follows === "idle" ? !this.isOwn && part.querySelector("[data-keep]") !== null : isTouched(part);
      if (busy) continue;
      const asker = part.id === "editor" ? this.part("editor") : part;
      asker.dispatchEvent(new CustomEvent("follow:ask"));
    }
    this.isOwn = false;
    if (this.newest === Infinity) this.newest = 0;
  }

  private parts(): HTMLElement[] {
    return [...this.element.querySelectorAll<HTMLElement>("[data-follows]")];
  }
}
