import { Island } from "../lib/island";
import { Socket } from "../lib/network";
import { Pause } from "../lib/pause";
import { parseEvent, type Message, type ResponseRequest, type ServerEvent } from "../lib/realtime";
import { newSessionId } from "../lib/session-id";
import { Turn } from "../lib/turn";

/** The running answer: its turn on the page, and its id once the server has given one. */
interface Running {
  turn: Turn;
  asked: string;
  event: string;
  id: string | null;
  stopping: boolean;
}

const NEAR_PX = 200;
const WAITS = "Connecting… This is sent as soon as there is a connection.";

/**
 * A conversation with a model, streamed over `/v1/realtime`. Its text is stored nowhere: a reload forgets it.
 *
 * Each conversation is a session: the server keeps its KV memory, and brings it up when the reader begins to type.
 */
export class Playground extends Island {
  private socket: Socket | null = null;
  private running: Running | null = null;
  private isWaiting = false; // what is in the composer is to be sent once there is a connection
  private history: Message[] = [];
  private session = newSessionId();
  private readonly typing = new Pause();
  private readonly form = this.part("composer", HTMLFormElement);
  private readonly prompt = this.part("prompt", HTMLTextAreaElement);
  private readonly transcript = this.part("transcript");
  private readonly action = this.part("action", HTMLButtonElement);

  override connect(): void {
    const tenant = this.element.dataset.tenant ?? "";
    this.socket = new Socket(`/v1/realtime?tenant=${encodeURIComponent(tenant)}`, {
      open: () => {
        this.say("");
        if (this.isWaiting && !this.running) this.send();
      },
      message: (text) => {
        const event = parseEvent(text);
        if (event) this.receive(event);
      },
      closed: () => {
        this.fail("The connection was lost. What had arrived is kept; send again to go on.");
        this.say(this.isWaiting ? WAITS : "Not connected. Trying again…");
      },
    });
    this.form.addEventListener("submit", (event) => {
      event.preventDefault();
      if (this.running) this.stop();
      else this.send();
    });
    this.form.addEventListener("keydown", this.onKey);
    this.prompt.addEventListener("input", () => {
      this.wait(false);
      if (this.history.length && !this.running && this.socket?.isOpen && this.typing.ends(performance.now())) this.prefetch();
    });
    this.part("clear").addEventListener("click", () => {
      this.clear();
    });
    document.addEventListener("keydown", this.onEscape);
  }

  override disconnect(): void {
    document.removeEventListener("keydown", this.onEscape);
    this.socket?.close();
  }

  private readonly onKey = (event: KeyboardEvent): void => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing || event.target !== this.prompt) return;
    event.preventDefault();
    if (!this.running) this.form.requestSubmit();
  };

  private readonly onEscape = (event: KeyboardEvent): void => {
    if (event.key === "Escape" && this.running) this.stop();
  };

  private send(): void {
    const asked = this.prompt.value.trim();
    const settings = this.part("settings", HTMLFormElement);
    if (!asked || !settings.reportValidity()) {
      if (!asked) this.prompt.focus();
      return;
    }
    if (!this.socket?.isOpen) {
      this.wait(true);
      return;
    }
    this.isWaiting = false;
    this.part("empty").hidden = true;
    Turn.user(this.transcript, asked);
    const event = `ask-${performance.now()}`;
    const request = this.request(asked, new FormData(settings));
    this.running = { turn: Turn.assistant(this.transcript, request.model), asked, event, id: null, stopping: false };
    this.socket.send({ type: "response.create", event_id: event, response: request });
    this.prompt.value = "";
    this.transcript.ariaBusy = "true";
    this.label("Stop", false);
    this.say("");
    this.follow(true);
  }

  /** Send when the connection is there, unless the reader goes on writing. */
  private wait(isWaiting: boolean): void {
    if (this.isWaiting === isWaiting) return;
    this.isWaiting = isWaiting;
    this.say(isWaiting ? WAITS : "");
  }

  private request(asked: string, settings: FormData): ResponseRequest {
    const text = (name: string): string => {
      const value = settings.get(name);
      return typeof value === "string" ? value.trim() : "";
    };
    const system: Message[] = text("system") ? [{ role: "system", content: text("system") }] : [];
    const most = text("max_output_tokens");
    return {
      model: text("model"),
      messages: [...system, ...this.history, { role: "user", content: asked }],
      temperature: Number(text("temperature")),
      session_id: this.session,
      ...(most ? { max_output_tokens: Number(most) } : {}),
    };
  }

  /** The next turn is about to come: what earlier ones left is to be there by then. */
  private prefetch(): void {
    const model = new FormData(this.part("settings", HTMLFormElement)).get("model");
    this.socket?.send({ type: "session.prefetch", session: this.session, ...(model ? { model } : {}) });
  }

  private stop(): void {
    if (!this.running || this.running.stopping) return;
    this.running.stopping = true;
    if (this.running.id && this.socket?.isOpen) this.cancel(this.running.id);
    this.label("Stopping", false);
  }

  private cancel(id: string): void {
    this.socket?.send({ type: "response.cancel", response_id: id });
  }

  private receive(event: ServerEvent): void {
    if (!this.running) return;
    switch (event.type) {
      case "response.created":
        this.running.id = event.response.id;
        if (this.running.stopping) this.cancel(event.response.id); // pressed before the server had named the response
        break;
      case "response.output_text.delta":
        if (event.response_id !== this.running.id) return;
        this.running.turn.add(event.delta);
        this.follow(false);
        break;
      case "response.done":
        if (event.response.id === this.running.id) this.done(event.response);
        break;
      case "error":
        if (event.error.event_id === this.running.event) this.fail(event.error.message);
    }
  }

  private done(response: Extract<ServerEvent, { type: "response.done" }>["response"]): void {
    if (!this.running) return;
    const { turn, asked } = this.running;
    if (response.status === "failed") {
      this.fail(response.status_details?.error?.message ?? "The model failed. Send again to try once more.");
      return;
    }
    turn.finish(response.status, response.usage ?? null);
    this.history.push({ role: "user", content: asked });
    if (turn.text) this.history.push({ role: "assistant", content: turn.text });
    this.end();
  }

  /** Keep what arrived, say why it ended, and put the question back where it can be sent again. */
  private fail(why: string): void {
    if (!this.running) return;
    this.running.turn.fail(why);
    if (!this.prompt.value) this.prompt.value = this.running.asked;
    this.end();
  }

  private end(): void {
    this.running = null;
    this.typing.reset();
    this.transcript.ariaBusy = "false";
    this.label("Send", true);
    this.follow(false);
  }

  private clear(): void {
    if (this.running) this.stop();
    this.wait(false);
    this.running = null;
    this.history = [];
    this.session = newSessionId();
    this.transcript.replaceChildren(this.part("empty"));
    this.part("empty").hidden = false;
    this.label("Send", true);
    this.prompt.focus();
  }

  private label(words: string, primary: boolean): void {
    this.action.textContent = words;
    this.action.classList.toggle("primary", primary);
    this.element.dataset.state = words.toLowerCase();
  }

  private say(words: string): void {
    this.part("status").textContent = words;
  }

  /** Keep the end of the conversation in view, unless the reader has scrolled away from it. */
  private follow(always: boolean): void {
    const conversation = this.part("conversation");
    const below = conversation.getBoundingClientRect().bottom - window.innerHeight;
    if (always || (below > 0 && below < NEAR_PX)) conversation.scrollIntoView({ block: "end" });
  }
}
