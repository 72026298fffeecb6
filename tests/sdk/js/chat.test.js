// Chat with the npm package `openai`.

import assert from "node:assert/strict";
import { test } from "node:test";
import { HELLO, WHOLE, chat, client, dial, newTenant, place, text } from "./place.js";

test("a whole answer has all that its type names", async () => {
  const answer = await chat({ ...WHOLE });
  assert.match(answer.id, /^chatcmpl-/);
  assert.equal(answer.object, "chat.completion");
  assert.equal(answer.model, place.model);
  assert.match(answer.system_fingerprint, /^fp_/);
  assert.equal(answer.choices[0].message.role, "assistant");
  assert.equal(answer.choices[0].message.refusal, null);
  assert.equal(answer.choices[0].finish_reason, "length");
  assert.equal(answer.usage.completion_tokens, 16);
  assert.equal(answer.usage.total_tokens, answer.usage.prompt_tokens + 16);
});

test("instructions have two names and one effect", async () => {
  const plain = await chat();
  const told = await Promise.all(
    ["system", "developer"].map((role) => chat({ messages: [{ role, content: "be brief" }, ...HELLO] })),
  );
  assert.equal(text(told[0]), text(told[1]));
  assert.ok(told[0].usage.prompt_tokens > plain.usage.prompt_tokens);
});

test("parts of a text are joined by line breaks", async () => {
  const parts = ["hello", "world"].map((part) => ({ type: "text", text: part }));
  const [split, whole] = await Promise.all([
    chat({ messages: [{ role: "user", content: parts }] }),
    chat({ messages: [{ role: "user", content: "hello\nworld" }] }),
  ]);
  assert.equal(text(split), text(whole));
});

test("an answer goes back as it came", async () => {
  const first = await chat();
  const again = await chat({ messages: [...HELLO, first.choices[0].message, { role: "user", content: "go on" }] });
  assert.ok(again.usage.prompt_tokens > first.usage.prompt_tokens + 4);
});

test("max_tokens is the old name of the limit", async () => {
  const answer = await chat({ max_completion_tokens: undefined, max_tokens: 5, ...WHOLE });
  assert.equal(answer.usage.completion_tokens, 5);
});

test("a seed repeats", async () => {
  const drawn = await Promise.all([1, 2, 3, 2].map((seed) => chat({ temperature: 1, seed, ...WHOLE })));
  assert.equal(text(drawn[1]), text(drawn[3]));
  assert.ok(new Set(drawn.map((answer) => text(answer))).size > 1);
});

test("top_p close to nothing is greedy", async () => {
  assert.equal(text(await chat({ temperature: 1, top_p: 1e-6 })), text(await chat()));
});

test("a stop string ends the output and is no part of it", async () => {
  const whole = text(await chat({ ...WHOLE }));
  const stop = [...whole].slice(6, 9).join("");
  const answer = await chat({ stop, ...WHOLE });
  assert.equal(text(answer), whole.slice(0, whole.indexOf(stop)));
  assert.equal(answer.choices[0].finish_reason, "stop");
});

test("n choices are numbered and the prompt counts once", async () => {
  const one = await chat({ temperature: 1, ...WHOLE });
  const several = await chat({ temperature: 1, seed: 5, n: 3, ...WHOLE });
  assert.deepEqual(
    several.choices.map((choice) => choice.index),
    [0, 1, 2],
  );
  assert.equal(several.usage.prompt_tokens, one.usage.prompt_tokens);
  assert.equal(several.usage.completion_tokens, 48);
});

test("logprobs tell each token", async () => {
  const answer = await chat({ logprobs: true, ...WHOLE });
  const tokens = answer.choices[0].logprobs.content;
  assert.equal(tokens.length, 16);
  assert.ok(tokens.every((token) => token.logprob <= 0));
  assert.equal(Buffer.from(tokens.flatMap((token) => token.bytes)).toString(), text(answer));
  assert.equal((await chat()).choices[0].logprobs, null);
});

test("top_logprobs come best first", async () => {
  const answer = await chat({ logprobs: true, top_logprobs: 4, ...WHOLE });
  for (const token of answer.choices[0].logprobs.content) {
    const ranks = token.top_logprobs.map((top) => top.logprob);
    assert.deepEqual(ranks, [...ranks].sort((a, b) => b - a));
    assert.equal(token.top_logprobs.length, 4);
    assert.equal(token.top_logprobs[0].token, token.token);
  }
});

test("logit_bias makes a token certain", async () => {
  const answer = await chat({ logit_bias: { 70: 100 }, logprobs: true, ...WHOLE });
  assert.equal(new Set(answer.choices[0].logprobs.content.map((token) => token.token)).size, 1);
});

test("penalties change what is said", async () => {
  for (const penalty of ["frequency_penalty", "presence_penalty"]) {
    const changed = [];
    for (let bias = 1; bias < 9; bias++) {
      const texts = [0, 2].map(async (fine) => text(await chat({ logit_bias: { 70: bias }, [penalty]: fine, ...WHOLE })));
      const [plain, fined] = await Promise.all(texts);
      changed.push(plain !== fined);
    }
    assert.ok(changed.some(Boolean), penalty);
  }
});

test("what changes nothing is taken", async () => {
  const told = await chat({
    user: "somebody",
    metadata: { a: "b" },
    store: false,
    modalities: ["text"],
    response_format: { type: "text" },
    presence_penalty: 0,
  });
  assert.equal(text(told), text(await chat()));
});

test("the tier that was used is told", async () => {
  assert.equal((await chat({ service_tier: "auto" })).service_tier, "default");
  assert.equal((await chat({ service_tier: "flex" })).service_tier, "flex");
});

test("cached tokens are told", async () => {
  const messages = [{ role: "user", content: "the block holds the tokens of the tenant ".repeat(9) }];
  await chat({ messages });
  const again = await chat({ messages });
  assert.ok(again.usage.prompt_tokens_details.cached_tokens > 0);
});

test("the response comes with its headers", async () => {
  const { data, response, request_id } = await chat().withResponse();
  assert.equal(response.status, 200);
  assert.equal(request_id, response.headers.get("x-request-id"));
  assert.equal(data.id.replace("chatcmpl-", "req_"), request_id);
  assert.equal(data._request_id, request_id);
});

test("rate limits are in the headers", async () => {
  const tenant = await newTenant({ rpm: 600, tpm: 60_000 });
  const { response } = await chat({}, {}, dial({ apiKey: await tenant.key() })).withResponse();
  assert.equal(response.headers.get("x-ratelimit-limit-requests"), "600");
  assert.ok(Number(response.headers.get("x-ratelimit-remaining-tokens")) <= 60_000);
});

test("usage is metered", async () => {
  const tenant = await newTenant();
  const answer = await chat({ max_completion_tokens: 7, ...WHOLE }, {}, dial({ apiKey: await tenant.key() }));
  const record = await tenant.record(answer.id);
  assert.equal(record.completion_tokens, 7);
  assert.equal(record.prompt_tokens, answer.usage.prompt_tokens);
});

test("extensions are fields like any other", async () => {
  const greedy = text(await chat({ ...WHOLE }));
  assert.equal(text(await chat({ temperature: 1.5, top_k: 1, ...WHOLE })), greedy);
  const drawn = await chat({ temperature: 1, min_p: 0.5, logprobs: true, top_logprobs: 1, ...WHOLE });
  for (const token of drawn.choices[0].logprobs.content) {
    assert.ok(token.logprob >= token.top_logprobs[0].logprob + Math.log(0.5) - 0.01);
  }
  const ended = await chat({ logit_bias: { 70: 100 }, stop_token_ids: [70], ...WHOLE });
  assert.equal(ended.usage.completion_tokens, 1);
});

test("a beam search gives the likeliest", async () => {
  const answer = await chat({ temperature: undefined, n: 2, use_beam_search: true, beam_width: 4 });
  assert.notEqual(text(answer), text(answer, 1));
});

test("a session keeps what was said", async () => {
  const messages = [{ role: "user", content: "a memory that is shared by many is never empty ".repeat(6) }];
  const session_id = `js-${Date.now()}-${Math.random()}`;
  const first = await chat({ messages, session_id });
  const more = [...messages, first.choices[0].message, { role: "user", content: "go on" }];
  const second = await chat({ messages: more, session_id });
  assert.ok(second.usage.prompt_tokens_details.cached_tokens > 50);
  assert.equal((await client.get(`/sessions/${session_id}`)).num_turns, 2);
});
