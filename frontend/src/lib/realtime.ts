/** The events of `/v1/realtime` that the playground speaks. */

export type Role = "system" | "user" | "assistant";

export interface Message {
  role: Role;
  content: string;
}

export interface Usage {
  input_tokens: number;
  output_tokens: number;
  total_tokens: number;
  input_token_details?: { cached_tokens: number } | null;
}

export interface ResponseRequest {
  model: string;
  messages: Message[];
  temperature: number;
  session_id: string;
  max_output_tokens?: number;
}

export type ServerEvent =
  | { type: "response.created"; response: { id: string } }
  | { type: "response.output_text.delta"; response_id: string; delta: string }
  | { type: "response.done"; response: { id: string; status: string; usage?: Usage | null; status_details?: StatusDetails | null } }
  | { type: "error"; error: { message: string; event_id?: string | null } };

export interface StatusDetails {
  reason?: string | null;
  error?: { message?: string | null } | null;
}

const KNOWN: ReadonlySet<unknown> = new Set(["response.created", "response.output_text.delta", "response.done", "error"]);

/** Read one event; null for the kinds that the playground has no use for. */
export function parseEvent(text: string): ServerEvent | null {
  const event = JSON.parse(text) as { type?: unknown };
  return KNOWN.has(event.type) ? (event as ServerEvent) : null;
}
