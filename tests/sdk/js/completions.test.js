// Completions, embeddings and models with the npm package `openai`.

import assert from "node:assert/strict";
import { test } from "node:test";
import OpenAI from "openai";
import { WHOLE, all, client, dial, failure, newTenant, place } from "./place.js";

function complete(prompt, body = {}) {
  return client.completions.create({
    model: place.model,
    prompt,
    max_tokens: 12,
    temperature: 0,
    ...WHOLE,
    ...body,
  });
}

function embed(input, body = {}) {
  return client.embeddings.create({ model: place.model, input, ...body });
}

const close = (left, right) => left.every((value, index) => Math.abs(value - right[index]) < 1e-4);

test("a prompt is continued", async () => {
  const answer = await complete("the tenant holds");
  assert.match(answer.id, /^cmpl-/);
  assert.equal(answer.object, "text_completion");
  assert.ok(answer.choices[0].text);
  assert.equal(answer.usage.total_tokens, answer.usage.prompt_tokens + 12);
});

test("several prompts are as if each were alone", async () => {
  const prompts = ["one two", "hello world"];
  const together = (await complete(prompts)).choices.map((choice) => choice.text);
  const alone = await Promise.all(prompts.map(async (prompt) => (await complete(prompt)).choices[0].text));
  assert.deepEqual(together, alone);
});

test("a prompt may be token ids", async () => {
  const answer = await complete([
    [60, 61, 62],
    [70, 71],
  ]);
  assert.equal(answer.usage.prompt_tokens, 5);
  assert.equal(answer.choices.length, 2);
});

test("the prompt is echoed", async () => {
  const plain = (await complete("hello world")).choices[0].text;
  assert.equal((await complete("hello world", { echo: true })).choices[0].text, `hello world${plain}`);
});

test("logprobs of a text", async () => {
  const told = (await complete("hello", { logprobs: 2 })).choices[0].logprobs;
  assert.equal(told.tokens.length, 12);
  assert.equal(told.token_logprobs.length, 12);
  assert.equal(told.text_offset.length, 12);
});

test("the best of several comes back", async () => {
  const answer = await complete("hello", { n: 1, best_of: 3, temperature: 1 });
  assert.equal(answer.choices.length, 1);
  assert.equal(answer.usage.completion_tokens, 36);
});

test("a stream of a text", async () => {
  const whole = (await complete("hello")).choices[0].text;
  const chunks = await all(await complete("hello", { stream: true }));
  assert.equal(chunks.map((chunk) => chunk.choices[0].text).join(""), whole);
});

test("a suffix is refused by name", async () => {
  const error = await failure(complete("hello", { suffix: "world" }));
  assert.ok(error instanceof OpenAI.BadRequestError);
  assert.equal(error.param, "suffix");
});

test("an embedding has length one", async () => {
  const answer = await embed("hello world");
  const vector = answer.data[0].embedding;
  assert.equal(answer.data.length, 1);
  assert.ok(Math.abs(Math.hypot(...vector) - 1) < 1e-3);
  assert.ok(answer.usage.prompt_tokens > 0);
});

test("floats and base64 are one vector", async () => {
  const [plain, packed] = await Promise.all([embed("hello", { encoding_format: "float" }), embed("hello")]);
  assert.ok(close(plain.data[0].embedding, packed.data[0].embedding));
});

test("an embedding for each text", async () => {
  const answer = await embed(["one", "two", "one"]);
  const [first, second, third] = answer.data.map((entry) => entry.embedding);
  assert.ok(close(first, third));
  assert.ok(!close(first, second));
});

test("embeddings of token ids", async () => {
  assert.equal((await embed([[60, 61, 62], [70]])).usage.prompt_tokens, 4);
});

test("an empty input is refused", async () => {
  const error = await failure(embed([]));
  assert.ok(error instanceof OpenAI.BadRequestError);
  assert.match(error.param, /^input/);
});

test("models are listed", async () => {
  const models = await all(client.models.list());
  assert.ok(models.some((model) => model.id === place.model && model.owned_by === "tollgate"));
});

test("a model is retrieved", async () => {
  assert.equal((await client.models.retrieve(place.model)).id, place.model);
});

test("a hidden model doesn't exist", async () => {
  const hidden = dial({ apiKey: await (await newTenant()).key({ models: ["another"] }) });
  assert.deepEqual(await all(hidden.models.list()), []);
  assert.ok((await failure(hidden.models.retrieve(place.model))) instanceof OpenAI.NotFoundError);
});
