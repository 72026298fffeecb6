import { Island } from "../lib/island";

/** One line at the foot of the page when a request of htmx got no answer, or one that is no part of this page. */
export class Trouble extends Island {
  override connect(): void {
    document.addEventListener("htmx:error", this.unanswered);
    document.addEventListener("htmx:before:response", this.refused);
    document.addEventListener("htmx:after:swap", this.clear);
  }

  override disconnect(): void {
    document.removeEventListener("htmx:error", this.unanswered);
    document.removeEventListener("htmx:before:response", this.refused);
    document.removeEventListener("htmx:after:swap", this.clear);
  }

  private readonly unanswered = (event: Event): void => {
    if (isPoll(event)) return; // a page that refreshes itself says so in its own place
    this.say("The server did not answer. Nothing was changed; try again in a moment.");
  };

  /** Whole error pages are not swapped into a part of this page. */
  private readonly refused = (event: Event): void => {
    const status = statusOf(event);
    if (status < 400 || status === 409 || status === 422) return;
    event.preventDefault();
    if (isPoll(event)) return;
    const words: Record<number, string> = {
      403: "Your sign-in has changed since this page was opened. Reload the page, then try again.",
      404: "This is no longer here, or no longer yours to change. Reload the page.",
      413: "This is more than the server takes. Shorten it, then try again.",
      429: "Too many tries. Wait a minute, then try again.",
    };
    this.say(words[status] ?? `The server failed (${status}). Nothing was changed; try again in a moment.`);
  };

  private readonly clear = (): void => {
    this.element.hidden = true;
  };

  private say(words: string): void {
    this.element.hidden = false;
    this.element.textContent = words;
  }
}

interface RequestDetail {
  ctx?: { response?: { status?: number }; sourceElement?: Element };
}

function detailOf(event: Event): RequestDetail {
  return event instanceof CustomEvent ? (event.detail as RequestDetail) : {};
}

function statusOf(event: Event): number {
  return detailOf(event).ctx?.response?.status ?? 0;
}

function isPoll(event: Event): boolean {
  return detailOf(event).ctx?.sourceElement?.hasAttribute("data-poll") ?? false;
}
