import { bytes, count, rate, show, type Figure } from "../lib/figure";
import type { Hint, WorkerStats } from "../lib/hints";
import { Island } from "../lib/island";
import { drawLimit, limitParts, limitWords } from "../lib/limit";

interface Use {
  kv: number;
  running: number;
  queued: number;
  rate: number;
}

const NONE: Use = { kv: 0, running: 0, queued: 0, rate: 0 };

/** Keeps `[data-tenant-id]` rows, the pool and the totals in step with the statistics of the feed. */
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
    const uses = useByTenant(workers);
    for (const row of this.element.querySelectorAll<HTMLElement>("[data-tenant-id]")) {
      drawRow(row, uses.get(row.dataset.tenantId ?? "") ?? NONE);
    }
    drawTotals(this.element, workers);
  }
}

/** Add up each tenant's use over the workers. */
function useByTenant(workers: WorkerStats[]): Map<string, Use> {
  const uses = new Map<string, Use>();
  for (const tenant of workers.flatMap((worker) => worker.tenants)) {
    const sum = uses.get(tenant.tenant_id) ?? NONE;
    uses.set(tenant.tenant_id, {
      kv: sum.kv + tenant.kv_bytes,
      running: sum.running + tenant.running,
      queued: sum.queued + tenant.queued,
      rate: sum.rate + tenant.output_tokens_per_second,
    });
  }
  return uses;
}

function drawRow(row: HTMLElement, use: Use): void {
  const soft = Number(row.dataset.soft);
  const hard = Number(row.dataset.hard);
  write(row, "kv", bytes(use.kv));
  write(row, "running", count(use.running));
  write(row, "queued", count(use.queued));
  write(row, "rate", rate(use.rate));
  const bar = row.querySelector<SVGElement>("[data-field=bar]");
  if (bar) drawLimit(bar, limitParts(use.kv, soft, hard), limitWords(...([use.kv, soft, hard].map(inWords) as [string, string, string])));
  const over = row.querySelector<HTMLElement>("[data-field=over]");
  if (over) over.hidden = use.kv <= hard;
}

function drawTotals(root: HTMLElement, workers: WorkerStats[]): void {
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
  if (bar) drawPool(bar, workers, pool);
}

/** Lay the tenants' use end to end along the pool. */
function drawPool(bar: SVGElement, workers: WorkerStats[], pool: number): void {
  const uses = useByTenant(workers);
  let from = 0;
  for (const piece of bar.querySelectorAll<SVGElement>("[data-tenant]")) {
    const length = pool > 0 ? ((uses.get(piece.dataset.tenant ?? "")?.kv ?? 0) / pool) * 100 : 0;
    piece.setAttribute("x", `${from}%`);
    piece.setAttribute("width", `${length}%`);
    from += length;
  }
}

function write(root: HTMLElement, field: string, figure: Figure): void {
  const target = root.querySelector(`[data-field="${field}"]`);
  if (target) show(target, figure);
}

function inWords(amount: number): string {
  const { value, unit } = bytes(amount);
  return `${value} ${unit}`;
}
