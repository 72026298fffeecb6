/** Ids of sessions: what a conversation is called, so that the server keeps its KV memory for the next turn. */

const BYTES = 12;

/** Return an id that nobody else has: `playground-` and random hexadecimal digits. */
export function newSessionId(): string {
  const bytes = crypto.getRandomValues(new Uint8Array(BYTES)); // randomUUID is there on https alone
  return `playground-${[...bytes].map((byte) => byte.toString(16).padStart(2, "0")).join("")}`;
}
