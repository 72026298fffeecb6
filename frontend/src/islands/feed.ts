import { Fleet, type Hint } from "../lib/hints";
import { Island } from "../lib/island";
import { LiveFeed } from "../lib/network";

const SIGNED_OUT = 4401;

/** The page's one live feed and the word about its freshness. Tells other islands by events on the body: `live:hint`, `live:refetch`. */
export class Feed extends Island {
  private feed: LiveFeed | null = null;
  private readonly fleet = new Fleet();

  override connect(): void {
    this.feed = new LiveFeed({
      hint: (hint) => {
        const detail = hint.kind === "stats" ? { ...hint, workers: this.fleet.merge(hint.workers, Date.now()) } : hint;
        document.body.dispatchEvent(new CustomEvent<Hint>("live:hint", { detail }));
        if (hint.kind === "workers") this.refetch();
      },
      refetch: () => {
        this.refetch();
      },
      freshness: (state) => {
        this.show(state);
      },
      closed: (code) => {
        if (code === SIGNED_OUT) window.location.reload();
      },
    });
  }

  override disconnect(): void {
    this.feed?.close();
  }

  private refetch(): void {
    document.body.dispatchEvent(new CustomEvent("live:refetch"));
  }

  private show(state: "live" | "open" | Date): void {
    const stale = state instanceof Date;
    this.element.classList.toggle("off", state === "open");
    this.element.classList.toggle("stale", stale);
    this.element.classList.toggle("warn", stale);
    this.element.classList.toggle("good", state === "live");
    const words = stale ? `stale since ${clock(state)}` : state === "live" ? "live" : "connected, no readings yet";
    const label = this.part("label");
    if (label.textContent !== words) label.textContent = words;
  }
}

function clock(at: Date): string {
  return at.toLocaleTimeString("en-GB", { hour12: false });
}
