/** Tells the beginning of typing from its going on. */

/** After so long without a key a reader who types again has begun anew. */
export const PAUSE_MS = 15_000;

export class Pause {
  private last = -Infinity;

  /** Note a key at `now` (ms); true when it is the first after a pause, or ever. */
  ends(now: number): boolean {
    const began = now - this.last > PAUSE_MS;
    this.last = now;
    return began;
  }

  /** What comes next is a beginning. */
  reset(): void {
    this.last = -Infinity;
  }
}
