import { Island } from "../lib/island";

/** The messages of a conversation in a form: more of them, and fewer. The list is what is posted. */
export class Messages extends Island {
  override connect(): void {
    this.part("add", HTMLButtonElement).addEventListener("click", () => {
      this.add();
    });
    this.element.addEventListener("click", (event) => {
      const drop = event.target instanceof Element ? event.target.closest("[data-part=drop]") : null;
      if (drop) this.drop(drop);
    });
    this.bound();
  }

  private get messages(): HTMLElement[] {
    return [...this.part("list").querySelectorAll<HTMLElement>("[data-part=message]")];
  }

  private add(): void {
    const before = this.messages.at(-1)?.querySelector("select")?.value;
    this.part("list").append(this.part("blank", HTMLTemplateElement).content.cloneNode(true));
    const added = this.messages.at(-1);
    const role = added?.querySelector("select");
    if (role) role.value = before === "user" ? "assistant" : "user"; // a conversation takes turns
    added?.querySelector("textarea")?.focus();
    this.bound();
  }

  /** The focus goes to what then stands in its place, so that it is not lost. */
  private drop(button: Element): void {
    const message = button.closest("[data-part=message]");
    const next = message?.nextElementSibling ?? message?.previousElementSibling;
    message?.remove();
    this.bound();
    const target = next?.querySelector<HTMLElement>("[data-part=drop]") ?? this.part("add");
    target.focus();
  }

  private bound(): void {
    this.part("add", HTMLButtonElement).disabled = this.messages.length >= Number(this.element.dataset.most);
  }
}
