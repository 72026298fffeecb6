import { Island } from "../lib/island";

const SHOWN_MS = 1_500;

/** A button that copies `data-copy`, or the text of the element that `data-copy-from` names, and says so. */
export class Copy extends Island {
  private timer: number | undefined;

  override connect(): void {
    this.element.addEventListener("click", () => {
      void this.copy();
    });
  }

  override disconnect(): void {
    window.clearTimeout(this.timer);
  }

  private async copy(): Promise<void> {
    const from = this.element.dataset.copyFrom;
    const source = from === undefined ? null : document.getElementById(from);
    try {
      await navigator.clipboard.writeText(this.element.dataset.copy ?? source?.textContent.trim() ?? "");
      this.say("Copied");
    } catch {
      // no clipboard without https or permission: select the text, so that one key press copies it
      if (source) window.getSelection()?.selectAllChildren(source);
      this.say(source ? "Press Ctrl+C" : "Not allowed");
    }
  }

  private say(words: string): void {
    const label = this.element.querySelector("[data-part=label]") ?? this.element;
    this.element.dataset.words ??= label.textContent;
    label.textContent = words;
    window.clearTimeout(this.timer);
    this.timer = window.setTimeout(() => {
      label.textContent = this.element.dataset.words ?? "";
    }, SHOWN_MS);
  }
}
