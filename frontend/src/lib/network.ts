/** All that leaves the page by script: the socket that comes back by itself, and the live feed on top of it. */

import { backoff } from "./backoff";
import { parseHint, Sequence, type Hint } from "./hints";

export interface SocketEvents {
  open: () => void;
  message: (text: string) => void;
  closed: (event: CloseEvent) => void;
}

/** A websocket to a path of this host that reconnects with back-off until it is closed. */
export class Socket {
  private readonly path: string;
  private readonly events: SocketEvents;
  private socket: WebSocket | null = null;
  private attempt = 0;
  private timer: number | undefined;
  private ended = false;

  constructor(path: string, events: SocketEvents) {
    this.path = path;
    this.events = events;
    this.dial();
    window.addEventListener("online", this.hurry);
    document.addEventListener("visibilitychange", this.hurry);
  }

  get isOpen(): boolean {
    return this.socket?.readyState === WebSocket.OPEN;
  }

  send(message: unknown): void {
    if (!this.socket || !this.isOpen) throw new Error("the socket is not open");
    this.socket.send(JSON.stringify(message));
  }

  close(): void {
    this.ended = true;
    window.clearTimeout(this.timer);
    window.removeEventListener("online", this.hurry);
    document.removeEventListener("visibilitychange", this.hurry);
    this.socket?.close(1000);
  }

  private dial(): void {
    const socket = new WebSocket(this.path); // a relative URL takes this page's host, and wss under https
    this.socket = socket;
    socket.onopen = (): void => {
      this.attempt = 0;
      this.events.open();
    };
    socket.onmessage = (event: MessageEvent<unknown>): void => {
      if (typeof event.data === "string") this.events.message(event.data);
    };
    socket.onclose = (event): void => {
      if (this.ended) return;
      this.events.closed(event);
      this.timer = window.setTimeout(() => {
        this.dial();
      }, backoff(this.attempt));
      this.attempt += 1;
    };
  }

  /** The network or the reader came back: try now rather than at the end of a long wait. */
  private readonly hurry = (): void => {
    if (this.ended || this.socket?.readyState !== WebSocket.CLOSED || document.hidden) return;
    window.clearTimeout(this.timer);
    this.dial();
  };
}

export interface FeedEvents {
  hint: (hint: Hint) => void;
  /** Hints were missed: what the page shows may be old, fetch it anew. */
  refetch: () => void;
  /** "live" while statistics come, "open" before the first of them, else the time of the last. */
  freshness: (state: "live" | "open" | Date) => void;
  closed: (code: number) => void;
}

const STALE_AFTER_MS = 3_000;

/** The operators' hints: finds gaps, and says since when the picture is stale. */
export class LiveFeed {
  private readonly socket: Socket;
  private readonly sequence = new Sequence();
  private readonly watch: number;
  private connectedBefore = false;
  private last: Date | null = null;

  constructor(events: FeedEvents) {
    const openedAt = new Date();
    this.socket = new Socket("/ws/live/", {
      open: (): void => {
        this.sequence.reset();
        if (this.connectedBefore) events.refetch();
        this.connectedBefore = true;
        if (!this.last) events.freshness("open");
      },
      message: (text): void => {
        const hint = parseHint(text);
        if (!hint) return;
        if (this.sequence.gapBefore(hint.seq)) events.refetch();
        if (hint.kind === "stats" && hint.workers.length > 0) {
          this.last = new Date();
          events.freshness("live");
        }
        events.hint(hint);
      },
      closed: (event): void => {
        events.freshness(this.last ?? openedAt);
        events.closed(event.code);
      },
    });
    this.watch = window.setInterval(() => {
      if (this.last && Date.now() - this.last.getTime() > STALE_AFTER_MS) events.freshness(this.last);
    }, 1_000);
  }

  close(): void {
    window.clearInterval(this.watch);
    this.socket.close();
  }
}

/** Read JSON of the management API as the signed-in reader. Throws an Error whose message says what went wrong. */
export async function getJson<T>(path: string): Promise<T> {
  let response: Response;
  try {
    response = await fetch(path, { headers: { Accept: "application/json" } });
  } catch {
    throw new Error("the server did not answer");
  }
  if (response.status === 401 || response.status === 403) throw new Error("you are no longer signed in, reload the page");
  if (!response.ok) throw new Error(`the server failed (${response.status})`);
  return (await response.json()) as T;
}
