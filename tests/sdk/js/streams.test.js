// Streams with the npm package `openai`.

import assert from "node:assert/strict";
import { test } from "node:test";
import { HELLO, WHOLE, all, chat, client, dial, joined, newTenant, place, text } from "./place.js";

const ENDLESS = { max_completion_tokens: place.endless, stream: true, ...WHOLE };

test("a stream says what the whole answer says", async () => {
  const [whole, chunks] = [await chat({ ...WHOLE }), await all(await chat({ stream: true, ...WHOLE }))];
  assert.equal(joined(chunks), text(whole));
  assert.equal(new Set(chunks.map((chunk) => `${chunk.id} ${chunk.created} ${chunk.model}`)).size, 1);
});

test("the role comes first and the reason last", async () => {
  const chunks = await all(await chat({ stream: true, ...WHOLE }));
  assert.equal(chunks[0].choices[0].delta.role, "assistant");
  assert.equal(chunks.at(-1).choices[0].finish_reason, "length");
  assert.ok(chunks.slice(0, -1).every((chunk) => chunk.choices[0].finish_reason === null));
});

test("usage comes in a last chunk if asked for", async () => {
  const chunks = await all(await chat({ stream: true, stream_options: { include_usage: true }, ...WHOLE }));
  assert.ok(chunks.slice(0, -1).every((chunk) => chunk.usage === null));
  assert.deepEqual(chunks.at(-1).choices, []);
  assert.equal(chunks.at(-1).usage.completion_tokens, 16);
  assert.ok((await all(await chat({ stream: true }))).every((chunk) => !("usage" in chunk)));
});

test("several choices come in one stream", async () => {
  const options = { n: 3, temperature: 1, seed: 11, ...WHOLE };
  const [whole, chunks] = [await chat(options), await all(await chat({ ...options, stream: true }))];
  assert.deepEqual([0, 1, 2].map((index) => joined(chunks, index)), [0, 1, 2].map((index) => text(whole, index)));
});

test("logprobs come with their tokens", async () => {
  const options = { logprobs: true, top_logprobs: 1, ...WHOLE };
  const whole = (await chat(options)).choices[0].logprobs.content.map((token) => token.token);
  const chunks = await all(await chat({ ...options, stream: true }));
  const told = chunks.flatMap((chunk) => chunk.choices[0].logprobs?.content ?? []).map((token) => token.token);
  assert.deepEqual(told, whole);
});

test("no part of a stop string is told", async () => {
  const whole = text(await chat({ ...WHOLE }));
  const stop = [...whole].slice(8, 12).join("");
  const chunks = await all(await chat({ stop, stream: true, ...WHOLE }));
  assert.equal(joined(chunks), whole.slice(0, whole.indexOf(stop)));
});

test("the helper accumulates", async () => {
  const body = { model: place.model, messages: HELLO, max_completion_tokens: 16, temperature: 0, ...WHOLE };
  const stream = client.chat.completions.stream({ ...body, stream_options: { include_usage: true } });
  let told = "";
  stream.on("content", (delta) => {
    told += delta;
  });
  const final = await stream.finalChatCompletion();
  assert.equal(told, text(final));
  assert.equal((await stream.totalUsage()).completion_tokens, 16);
});

test("a stream can be split in two", async () => {
  const [left, right] = (await chat({ stream: true, ...WHOLE })).tee();
  assert.equal(joined(await all(left)), joined(await all(right)));
});

test("a stream can be sent on as lines of JSON", async () => {
  const lines = await new Response((await chat({ stream: true, ...WHOLE })).toReadableStream()).text();
  const chunks = lines.trim().split("\n").map((line) => JSON.parse(line));
  assert.equal(joined(chunks), text(await chat({ ...WHOLE })));
});

test("breaking off cancels the request", async () => {
  const tenant = await newTenant(place.room);
  const { data: stream, request_id } = await chat(ENDLESS, {}, dial({ apiKey: await tenant.key() })).withResponse();
  let count = 0;
  for await (const _ of stream) if (++count === 3) break;
  const record = await tenant.record(request_id);
  assert.equal(record.finish_reason, "cancelled");
  assert.ok(record.completion_tokens > 0 && record.completion_tokens < place.endless);
});

test("aborting by signal cancels the request", async () => {
  const tenant = await newTenant(place.room);
  const abort = new AbortController();
  const from = dial({ apiKey: await tenant.key() });
  const { data: stream, request_id } = await chat(ENDLESS, { signal: abort.signal }, from).withResponse();
  for await (const _ of stream) abort.abort();
  assert.equal((await tenant.record(request_id)).finish_reason, "cancelled");
});

test("many streams at once don't mix", async () => {
  const seeds = [0, 1, 2, 3, 0, 1, 2, 3];
  const texts = await Promise.all(
    seeds.map(async (seed) => joined(await all(await chat({ temperature: 1, seed, stream: true, ...WHOLE })))),
  );
  assert.deepEqual(texts.slice(0, 4), texts.slice(4));
  assert.ok(new Set(texts).size > 1);
});
