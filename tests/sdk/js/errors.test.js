// Errors and retries with the npm package `openai`.

import assert from "node:assert/strict";
import { test } from "node:test";
import OpenAI from "openai";
import { WHOLE, all, chat, client, dial, failure, faulty, newName, newTenant, place, seen } from "./place.js";

async function refusedField(body, param) {
  const error = await failure(chat(body));
  assert.ok(error instanceof OpenAI.BadRequestError, String(error));
  assert.ok(error.param?.startsWith(param), `${error.param}: ${error.message}`);
  assert.equal(error.type, "invalid_request_error");
  assert.match(error.requestID, /^req_/);
}

test("a value out of range is named", () => refusedField({ temperature: 3 }, "temperature"));
test("an unknown field is named", () => refusedField({ colour: "red" }, "colour"));
test("an unknown field within is named", () =>
  refusedField({ messages: [{ role: "user", content: "x", colour: 1 }] }, "messages[0].colour"));
test("an unknown role is named", () =>
  refusedField({ messages: [{ role: "wizard", content: "x" }] }, "messages[0].role"));
test("no messages are too few", () => refusedField({ messages: [] }, "messages"));
test("a bias out of range is named", () => refusedField({ logit_bias: { 70: 1000 } }, "logit_bias"));
test("audio is refused by name", () => refusedField({ modalities: ["text", "audio"] }, "modalities"));
test("options of a stream without a stream are named", () =>
  refusedField({ stream_options: { include_usage: true } }, "stream_options"));

test("a prompt that can't fit has a code", async () => {
  const error = await failure(chat({ messages: [{ role: "user", content: "hello ".repeat(20_000) }] }));
  assert.equal(error.code, "context_length_exceeded");
});

test("a wrong key is an AuthenticationError", async () => {
  const error = await failure(chat({}, {}, dial({ apiKey: "nonsense" })));
  assert.ok(error instanceof OpenAI.AuthenticationError);
  assert.equal(error.code, "invalid_api_key");
});

test("a scope that is missing is a PermissionDeniedError", async () => {
  const apiKey = await (await newTenant()).key({ scopes: ["models"] });
  const error = await failure(chat({}, {}, dial({ apiKey })));
  assert.ok(error instanceof OpenAI.PermissionDeniedError);
  assert.equal(error.code, "insufficient_scope");
});

test("an unknown model is a NotFoundError", async () => {
  const error = await failure(chat({ model: "gpt-nothing" }));
  assert.ok(error instanceof OpenAI.NotFoundError);
  assert.equal(error.code, "model_not_found");
});

test("an unknown path is a NotFoundError", async () => {
  const error = await failure(client.files.list());
  assert.ok(error instanceof OpenAI.NotFoundError);
  assert.equal(error.code, "not_found");
});

test("a body that is too large is an APIError of 413", async () => {
  const error = await failure(chat({ messages: [{ role: "user", content: "a".repeat(5 << 20) }] }));
  assert.ok(error instanceof OpenAI.APIError);
  // The server answers and closes while the body is still being sent: some platforms see only the close.
  assert.ok(error.status === 413 || error instanceof OpenAI.APIConnectionError, String(error));
});

test("a limit is a RateLimitError with the time to wait", async () => {
  const limited = dial({ apiKey: await (await newTenant({ rpm: 1 })).key() });
  await chat({}, {}, limited);
  const error = await failure(chat({}, {}, limited));
  assert.ok(error instanceof OpenAI.RateLimitError);
  assert.equal(error.code, "rate_limit_exceeded");
  assert.ok(Number(error.headers.get("retry-after-ms")) > 0);
});

test("what can never fit isn't tried again", async () => {
  const limited = dial({ apiKey: await (await newTenant({ tpm: 3 })).key(), maxRetries: 5 });
  const error = await failure(chat({}, {}, limited));
  assert.equal(error.headers.get("x-should-retry"), "false");
});

test("a server's error is an InternalServerError", async () => {
  const error = await failure(chat({}, {}, dial({ baseURL: faulty("overloaded", 1, newName()) })));
  assert.ok(error instanceof OpenAI.InternalServerError);
  assert.equal(error.status, 503);
});

test("no answer in time is a timeout", async () => {
  const slow = dial({ baseURL: faulty("silent", 1, newName()), timeout: 300 });
  assert.ok((await failure(chat({}, {}, slow))) instanceof OpenAI.APIConnectionTimeoutError);
});

test("a closed connection is a connection error", async () => {
  const cut = dial({ baseURL: faulty("cut", 1, newName()) });
  assert.ok((await failure(chat({}, {}, cut))) instanceof OpenAI.APIConnectionError);
});

test("aborting is an APIUserAbortError", async () => {
  const slow = dial({ baseURL: faulty("silent", 1, newName()) });
  const signal = AbortSignal.timeout(200);
  assert.ok((await failure(chat({}, { signal }, slow))) instanceof OpenAI.APIUserAbortError);
});

async function triedAgain(fault) {
  const name = newName();
  const answer = await chat({}, {}, dial({ baseURL: faulty(fault, 2, name), maxRetries: 2 }));
  assert.ok(answer.choices.length);
  const counts = (await seen(name)).map((request) => request["x-stainless-retry-count"]);
  assert.deepEqual(counts, ["0", "1", "2"]);
}

test("503 is tried again", () => triedAgain("overloaded"));
test("429 is tried again", () => triedAgain("limited"));
test("502 is tried again", () => triedAgain("failed"));
test("a lost connection is tried again", () => triedAgain("cut"));

test("after so many retries it gives up", async () => {
  const name = newName();
  const error = await failure(chat({}, {}, dial({ baseURL: faulty("overloaded", 9, name), maxRetries: 2 })));
  assert.equal(error.status, 503);
  assert.equal((await seen(name)).length, 3);
});

test("x-should-retry is obeyed", async () => {
  const name = newName();
  await failure(chat({}, {}, dial({ baseURL: faulty("never", 9, name), maxRetries: 5 })));
  assert.equal((await seen(name)).length, 1);
});

test("a wrong request isn't tried again", async () => {
  const name = newName();
  await failure(chat({ temperature: 9 }, {}, dial({ baseURL: faulty("cut", 0, name), maxRetries: 5 })));
  assert.equal((await seen(name)).length, 1);
});

test("a stream is tried again until it begins", async () => {
  const name = newName();
  const from = dial({ baseURL: faulty("overloaded", 1, name), maxRetries: 1 });
  const chunks = await all(await chat({ stream: true, ...WHOLE }, {}, from));
  assert.ok(chunks.at(-1).choices[0].finish_reason);
});

test("retries are set for one request", async () => {
  const from = dial({ baseURL: faulty("limited", 1, newName()) });
  assert.ok((await chat({}, { maxRetries: 1 }, from)).choices.length);
});

test("two requests under one idempotency key are carried out once", async () => {
  const key = newName();
  const body = { temperature: 1, ...WHOLE };
  const options = { headers: { "Idempotency-Key": key } };
  const [first, second] = [await chat(body, options), await chat(body, options)];
  assert.equal(first.id, second.id);
  assert.equal(first.choices[0].message.content, second.choices[0].message.content);
  assert.notEqual((await chat(body)).id, first.id);
});

test("a key of idempotency isn't for another request", async () => {
  const options = { headers: { "Idempotency-Key": newName() } };
  await chat({}, options);
  const error = await failure(chat({ max_completion_tokens: 3 }, options));
  assert.ok(error.status >= 400 && error.status < 500);
});
