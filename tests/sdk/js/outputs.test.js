// Tools and formats with the npm package `openai`.

import assert from "node:assert/strict";
import { test } from "node:test";
import OpenAI from "openai";
import { all, chat, client, failure, joined, place, text } from "./place.js";

const ASK = [{ role: "user", content: "When is high tide in Husum?" }];
const TIDE = {
  type: "function",
  function: {
    name: "tide",
    description: "When the tide is high",
    parameters: {
      type: "object",
      properties: { place: { enum: ["Husum", "Kiel"] }, day: { type: "integer", minimum: 1, maximum: 7 } },
      required: ["place", "day"],
      additionalProperties: false,
    },
    strict: true,
  },
};
const SCHEMA = {
  type: "object",
  properties: { kind: { enum: ["river", "sea"] }, depth: { type: "integer", minimum: 0, maximum: 99 } },
  required: ["kind", "depth"],
  additionalProperties: false,
};
const FORMAT = { type: "json_schema", json_schema: { name: "harbour", schema: SCHEMA, strict: true } };

function call(body = {}) {
  return chat({ messages: ASK, tools: [TIDE], tool_choice: "required", max_completion_tokens: 300, ...body });
}

function checkTide(given) {
  assert.ok(["Husum", "Kiel"].includes(given.place), JSON.stringify(given));
  assert.ok(Number.isInteger(given.day) && given.day >= 1 && given.day <= 7);
}

function checkHarbour(given) {
  assert.deepEqual(Object.keys(given).sort(), ["depth", "kind"]);
  assert.ok(["river", "sea"].includes(given.kind));
  assert.ok(Number.isInteger(given.depth) && given.depth >= 0 && given.depth <= 99);
}

test("a required tool is called with arguments that fit", async () => {
  const choice = (await call()).choices[0];
  assert.equal(choice.finish_reason, "tool_calls");
  assert.equal(choice.message.tool_calls[0].function.name, "tide");
  checkTide(JSON.parse(choice.message.tool_calls[0].function.arguments));
});

test("the named tool is called", async () => {
  const clock = { type: "function", function: { name: "clock" } };
  const answer = await call({ tools: [clock, TIDE], tool_choice: { type: "function", function: { name: "tide" } } });
  assert.ok(answer.choices[0].message.tool_calls.every((one) => one.function.name === "tide"));
});

test("no tool is called where none may be", async () => {
  const { message } = (await call({ tool_choice: "none", max_completion_tokens: 8 })).choices[0];
  assert.ok(!message.tool_calls?.length);
  assert.ok(message.content);
});

test("a stream of a call joins to the call", async () => {
  const whole = (await call({ parallel_tool_calls: false })).choices[0].message.tool_calls[0];
  const chunks = await all(await call({ parallel_tool_calls: false, stream: true }));
  const pieces = chunks.flatMap((chunk) => chunk.choices[0]?.delta.tool_calls ?? []);
  assert.equal(pieces.map((piece) => piece.function?.name ?? "").join(""), "tide");
  assert.equal(pieces.map((piece) => piece.function?.arguments ?? "").join(""), whole.function.arguments);
  assert.ok(pieces[0].id);
});

test("the helper runs tools to the end", async () => {
  const called = [];
  const run = (given) => {
    called.push(given);
    return "at 14:05";
  };
  const runner = client.chat.completions.runTools(
    {
      model: place.model,
      messages: ASK,
      max_completion_tokens: 200,
      parallel_tool_calls: false,
      tool_choice: { type: "function", function: { name: "tide" } },
      tools: [{ type: "function", function: { ...TIDE.function, function: run, parse: JSON.parse } }],
    },
    { maxChatCompletions: 2 },
  );
  await runner.done();
  assert.equal(called.length, 1);
  checkTide(called[0]);
});

test("what came of a call goes back", async () => {
  const first = (await call({ parallel_tool_calls: false })).choices[0].message;
  const result = { role: "tool", tool_call_id: first.tool_calls[0].id, content: "at 14:05" };
  const answer = await call({ messages: [...ASK, first, result], tool_choice: "none", max_completion_tokens: 8 });
  assert.ok(answer.choices[0].message.content);
});

test("a tool that can't be is named", async () => {
  const error = await failure(call({ tools: [{ type: "retrieval" }] }));
  assert.ok(error instanceof OpenAI.BadRequestError);
  assert.match(error.param, /^tools/);
});

test("an output fits its schema", async () => {
  const options = { response_format: FORMAT, max_completion_tokens: 300, temperature: 1 };
  const answers = await Promise.all([1, 2, 3].map((seed) => chat({ ...options, seed })));
  for (const answer of answers) checkHarbour(JSON.parse(text(answer)));
});

test("a stream fits its schema", async () => {
  const options = { response_format: FORMAT, max_completion_tokens: 300, temperature: 1, stream: true };
  checkHarbour(JSON.parse(joined(await all(await chat(options)))));
});

test("the helper parses an output", async () => {
  const answer = await client.chat.completions.parse({
    model: place.model,
    messages: ASK,
    max_completion_tokens: 300,
    response_format: FORMAT,
  });
  checkHarbour(JSON.parse(text(answer)));
});

test("a cut output is told by the helper", async () => {
  const body = { model: place.model, messages: ASK, max_completion_tokens: 2, response_format: FORMAT };
  const error = await failure(client.chat.completions.stream(body).finalChatCompletion());
  assert.ok(error instanceof OpenAI.OpenAIError, String(error));
});

test("an output matches its expression", async () => {
  const options = { temperature: 1, max_completion_tokens: 100 };
  assert.match(text(await chat({ ...options, regex: "[0-9]{3}-[a-f]{2}" })), /^[0-9]{3}-[a-f]{2}$/);
  assert.match(text(await chat({ ...options, grammar: 'start: "north" | "south"' })), /^(north|south)$/);
});

test("a schema that is none is named", async () => {
  const bad = { type: "json_schema", json_schema: { name: "x", schema: { type: "wrong" } } };
  const error = await failure(chat({ response_format: bad }));
  assert.ok(error instanceof OpenAI.BadRequestError);
  assert.match(error.param, /^response_format/);
});
