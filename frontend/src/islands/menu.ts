import { Island } from "../lib/island";

/** A `<details>` menu that closes on Escape, on a click elsewhere and when focus leaves it. */
export class Menu extends Island {
  private readonly menu = detailsOf(this.element);

  override connect(): void {
    document.addEventListener("pointerdown", this.closeOutside);
    this.element.addEventListener("focusout", (event) => {
      if (event.relatedTarget instanceof Node && !this.element.contains(event.relatedTarget)) this.menu.open = false;
    });
    this.element.addEventListener("keydown", (event) => {
      if (event.key !== "Escape" || !this.menu.open) return;
      this.menu.open = false;
      this.element.querySelector("summary")?.focus();
    });
  }

  override disconnect(): void {
    document.removeEventListener("pointerdown", this.closeOutside);
  }

  private readonly closeOutside = (event: PointerEvent): void => {
    if (event.target instanceof Node && !this.element.contains(event.target)) this.menu.open = false;
  };
}

function detailsOf(element: HTMLElement): HTMLDetailsElement {
  if (!(element instanceof HTMLDetailsElement)) throw new Error("a menu is a <details>");
  return element;
}
