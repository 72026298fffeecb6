/**
 * Islands: one class a file, mounted on `data-island="name"`, wherever and however the element enters the page.
 *
 * `connect` takes hold of the element, `disconnect` lets go of everything it started.
 */

export abstract class Island {
  readonly element: HTMLElement;

  constructor(element: HTMLElement) {
    this.element = element;
  }

  abstract connect(): void;

  disconnect(): void {
    // most islands listen on their own element only, and go with it
  }

  /** The one descendant that `data-part="name"` marks, which is of class `kind`. */
  part(name: string): HTMLElement;
  part<P extends HTMLElement>(name: string, kind: new () => P): P;
  part(name: string, kind: new () => HTMLElement = HTMLElement): HTMLElement {
    const found = this.element.querySelector(`[data-part="${name}"]`);
    if (!(found instanceof kind)) throw new Error(`island ${this.element.dataset.island ?? "?"}: no ${kind.name} is its part "${name}"`);
    return found;
  }
}

export type IslandClass = new (element: HTMLElement) => Island;

/** Mount islands under `root` now and whenever its tree changes, swaps by htmx included. */
export function mountIslands(root: HTMLElement, classes: Readonly<Record<string, IslandClass>>): void {
  const mounted = new Map<HTMLElement, Island>();
  const mount = (element: HTMLElement): void => {
    const name = element.dataset.island ?? "";
    const islandClass = classes[name];
    if (!islandClass) throw new Error(`no island is named "${name}"`);
    if (mounted.has(element)) return;
    const island = new islandClass(element);
    mounted.set(element, island);
    island.connect();
  };
  const observer = new MutationObserver(() => {
    for (const [element, island] of mounted) {
      if (!element.isConnected) {
        mounted.delete(element);
        island.disconnect();
      }
    }
    root.querySelectorAll<HTMLElement>("[data-island]").forEach(mount);
  });
  root.querySelectorAll<HTMLElement>("[data-island]").forEach(mount);
  observer.observe(root, { childList: true, subtree: true });
}
