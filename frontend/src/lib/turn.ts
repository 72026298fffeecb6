/** One turn of a conversation on the page, with what it cost. */

import { count, duration, rate, show, type Figure } from "./figure";
import type { Usage } from "./realtime";

const ENDINGS: Record<string, string> = {
  cancelled: "stopped",
  incomplete: "ended at the token limit",
};

export class Turn {
  private readonly element: HTMLElement;
  private readonly said: HTMLElement;
  private readonly sentAt = performance.now();
  private firstAt: number | null = null;
  private lastAt = 0;
  text = "";

  private constructor(transcript: HTMLElement, who: string, kind: string) {
    this.element = make("article", `turn ${kind}`);
    const name = make("p", "who");
    name.textContent = who;
    this.said = make("div", "said");
    this.element.append(name, this.said);
    transcript.append(this.element);
  }

  static user(transcript: HTMLElement, text: string): Turn {
    const turn = new Turn(transcript, "You", "user");
    turn.said.textContent = text;
    turn.text = text;
    return turn;
  }

  static assistant(transcript: HTMLElement, model: string): Turn {
    return new Turn(transcript, model, "assistant streaming");
  }

  add(delta: string): void {
    this.lastAt = performance.now();
    this.firstAt ??= this.lastAt;
    this.text += delta;
    this.said.append(delta);
  }

  finish(status: string, usage: Usage | null): void {
    this.element.classList.remove("streaming");
    this.said.normalize();
    const meter = make("p", "meter");
    const ending = ENDINGS[status];
    if (ending) meter.append(entry("", null, ending));
    if (usage) {
      const cached = usage.input_token_details?.cached_tokens ?? 0;
      meter.append(entry("prompt", count(usage.input_tokens, "tok")));
      if (cached) meter.append(entry("of it kept", count(cached, "tok")));
      meter.append(entry("output", count(usage.output_tokens, "tok")));
    }
    if (this.firstAt !== null) meter.append(entry("first token", duration(this.firstAt - this.sentAt)));
    const speed = this.speed(usage);
    if (speed !== null) meter.append(entry("speed", rate(speed)));
    this.element.append(meter);
  }

  fail(why: string): void {
    this.element.classList.remove("streaming");
    const reason = make("p", "failed");
    reason.textContent = why;
    this.element.append(reason);
  }

  /** Tokens a second after the first; null where one token makes no rate. */
  private speed(usage: Usage | null): number | null {
    if (!usage || usage.output_tokens < 2 || this.firstAt === null || this.lastAt <= this.firstAt) return null;
    return ((usage.output_tokens - 1) * 1000) / (this.lastAt - this.firstAt);
  }
}

function make(tag: string, className: string): HTMLElement {
  const element = document.createElement(tag);
  element.className = className;
  return element;
}

function entry(label: string, figure: Figure | null, words = ""): HTMLElement {
  const element = make("span", "entry");
  element.append(label ? `${label} ` : words);
  if (figure) {
    const value = make("span", "figure");
    show(value, figure);
    element.append(value);
  }
  return element;
}
