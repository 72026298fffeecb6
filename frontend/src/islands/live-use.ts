import { bytes, count, duration, rate, show, type Figure } from "../lib/figure";
import type { Hint, WorkerStats } from "../lib/hints";
import { Island } from "../lib/island";
import { drawLimit } from "../lib/limit";
import { NO_USE, pieces, usesOf, type Use, type Uses } from "../lib/use";

/** Keeps the parts that `data-use` marks (`tenant:<id>` or `group:<name>`), the pool and the totals in step with the statistics of the feed. */
export class LiveUse extends Island {
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
    const uses = usesOf(workers);
    for (const part of this.element.querySelectorAll<HTMLElement>("[data-use]")) {
      drawUse(part, uses.get(part.dataset.use ?? "") ?? NO_USE);
    }
    drawTotals(this.element, workers, uses);
  }
}

function drawUse(part: HTMLElement, use: Use): void {
  const soft = Number(part.dataset.soft);
  const hard = Number(part.dataset.hard);
  write(part, "kv", bytes(use.kv));
  write(part, "kv-held", bytes(use.kv - use.cached));
  write(part, "kv-cached", bytes(use.cached));
  write(part, "running", count(use.running));
  write(part, "queued", count(use.queued));
  write(part, "rate", rate(use.rate));
  write(part, "borrowed", bytes(use.borrowed));
  write(part, "host", bytes(use.host));
  write(part, "disk", bytes(use.disk));
  write(part, "sessions", count(use.sessions));
  write(part, "above", duration(use.above * 1000));
  const waits = part.querySelector<HTMLElement>("[data-field=waits]");
  if (waits) {
    waits.hidden = use.wait === 0;
    show(waits.firstElementChild ?? waits, duration(use.wait * 1000));
  }
  const bar = part.querySelector<SVGElement>("[data-field=bar]");
  if (bar) drawLimit(bar, { use: use.kv, cached: use.cached, soft, hard });
  const over = part.querySelector<HTMLElement>("[data-field=over]");
  if (over) over.hidden = use.kv <= hard;
}

function drawTotals(root: HTMLElement, workers: WorkerStats[], uses: Uses): void {
  const sum = (of: (worker: WorkerStats) => number): number => workers.reduce((total, worker) => total + of(worker), 0);
  const pool = sum((worker) => worker.blocks_total * worker.block_bytes);
  const used = sum((worker) => (worker.blocks_total - worker.blocks_free - worker.blocks_cached) * worker.block_bytes);
  write(root, "total-kv", bytes(used));
  write(root, "total-pool", bytes(pool));
  write(root, "total-cached", bytes(sum((worker) => worker.blocks_cached * worker.block_bytes)));
  write(root, "total-running", count(sum((worker) => worker.running)));
  write(root, "total-queued", count(sum((worker) => worker.queued)));
  write(root, "total-rate", rate(sum((worker) => worker.output_tokens_per_second)));
  const bar = root.querySelector<SVGElement>("[data-field=pool-bar]");
  if (bar) drawPool(bar, uses, pool);
}

function drawPool(bar: SVGElement, uses: Uses, pool: number): void {
  const drawn = [...bar.querySelectorAll<SVGElement>("[data-account]")];
  const places = pieces(drawn.map((piece) => piece.dataset.account ?? ""), uses, pool);
  drawn.forEach((piece, at) => {
    const place = places[at];
    if (!place) return;
    stretch(piece, ".used", place.from, place.length);
    stretch(piece, ".twill", place.from, place.length);
    stretch(piece, ".cached", place.held, place.cached);
  });
}

function stretch(piece: SVGElement, part: string, from: number, length: number): void {
  const rect = piece.querySelector(part);
  rect?.setAttribute("x", `${from}%`);
  rect?.setAttribute("width", `${length}%`);
}

function write(root: HTMLElement, field: string, figure: Figure): void {
  const target = root.querySelector(`[data-field="${field}"]`);
  if (target) show(target, figure);
}
