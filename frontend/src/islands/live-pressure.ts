import type { Hint, Pressure, WorkerStats } from "../lib/hints";
import { Island } from "../lib/island";

const PARTS = ["score", "use", "borrowed", "wait", "swap"] as const;

/** Keeps each worker's pressure in step with the statistics of the feed. */
export class LivePressure extends Island {
  override connect(): void {
    document.body.addEventListener("live:hint", this.onHint);
  }

  override disconnect(): void {
    document.body.removeEventListener("live:hint", this.onHint);
  }

  private readonly onHint = (event: Event): void => {
    const hint = (event as CustomEvent<Hint>).detail;
    if (hint.kind === "stats") this.draw(hint.workers);
  };

  private draw(workers: WorkerStats[]): void {
    const told = new Map(workers.map((worker) => [worker.worker_id, worker.pressure]));
    for (const row of this.element.querySelectorAll<HTMLElement>("[data-worker]")) {
      const pressure = told.get(row.dataset.worker ?? "");
      if (pressure) drawRow(row, pressure);
    }
  }
}

function drawRow(row: HTMLElement, pressure: Pressure): void {
  for (const part of PARTS) {
    const target = row.querySelector(`[data-field="${part}"]`);
    const value = pressure[part].toFixed(2);
    if (!target) continue;
    if (target.textContent !== value) target.textContent = value;
    target.setAttribute("title", pressure[part].toFixed(4));
  }
  row.querySelector("[data-field=gauge]")?.setAttribute("width", `${Math.round(pressure.score * 10_000) / 100}%`);
}
