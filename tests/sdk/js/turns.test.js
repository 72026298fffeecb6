// What an answer gave is input of the next turn, as the npm package `openai` gives it: nothing has to be taken out.

import assert from "node:assert/strict";
import { test } from "node:test";
import { all, chat, client, place } from "./place.js";

const ASK = { role: "user", content: "Is it high tide?" };
const SCHEMA = {
  type: "object",
  properties: { up: { type: "boolean" } },
  required: ["up"],
  additionalProperties: false,
};
const TIDE = { name: "tide", parameters: SCHEMA, strict: true };
const SHORT = { regex: "[a-c]" }; // an output that ends by itself
const ROOM = 300; // tokens, for JSON to end
const CALL = { tool_choice: "required", parallel_tool_calls: false };

const body = (more) => ({ model: place.model, messages: [ASK], max_completion_tokens: ROOM, ...more });
const asked = (more) => ({ model: place.model, input: ASK.content, max_output_tokens: ROOM, ...more });
const CHAT_CALL = { tools: [{ type: "function", function: TIDE }], ...CALL };
const CHAT_JSON = { response_format: { type: "json_schema", json_schema: { name: "tide", schema: SCHEMA } } };
const RESPONSE_CALL = { tools: [{ type: "function", ...TIDE }], ...CALL };
const RESPONSE_JSON = { text: { format: { type: "json_schema", name: "tide", schema: SCHEMA } } };

/** Send messages back, and tell how many tokens they have. */
async function length(...messages) {
  const answer = await chat({ messages: [ASK, ...messages, ASK], max_completion_tokens: 1 });
  return answer.usage.prompt_tokens;
}

/** Send items back, and tell how many tokens they have. */
async function inputLength(...items) {
  const input = [ASK, ...items, ASK];
  return (await client.responses.create(asked({ input, max_output_tokens: 1, store: false }))).usage.input_tokens;
}

/** Check that a message goes back as it is, and is then what it says and no more. */
async function checkMessage({ content, ...rest }) {
  const bare = await length({ role: "assistant", content });
  assert.equal(await length({ content, ...rest }), bare);
}

/** Check that a message's calls go back as they are. */
async function checkCalls(message) {
  const [call] = message.tool_calls;
  const result = { role: "tool", tool_call_id: call.id, content: "yes" };
  const bare = { id: call.id, type: "function", function: { name: "tide", arguments: call.function.arguments } };
  const expected = await length({ role: "assistant", tool_calls: [bare] }, result);
  assert.equal(await length(message, result), expected);
}

/** Check that the one item of an output goes back as it is. */
async function checkItem([item]) {
  const result = { type: "function_call_output", call_id: item.call_id, output: "yes" };
  const [bare, more] =
    item.type === "message"
      ? [{ role: "assistant", content: item.content[0].text }, []]
      : [{ type: item.type, call_id: item.call_id, name: item.name, arguments: item.arguments }, [result]];
  assert.equal(await inputLength(item, ...more), await inputLength(bare, ...more));
}

test("a message goes back", async () => {
  await checkMessage((await client.chat.completions.create(body(SHORT))).choices[0].message);
});

test("a message of a finished stream goes back", async () => {
  const final = await client.chat.completions.stream(body(SHORT)).finalChatCompletion();
  await checkMessage(final.choices[0].message);
});

test("a parsed message goes back", async () => {
  const { message } = (await client.chat.completions.parse(body(CHAT_JSON))).choices[0];
  assert.equal(typeof message.parsed.up, "boolean");
  await checkMessage(message);
});

test("a parsed message of a stream goes back", async () => {
  const final = await client.chat.completions.stream(body(CHAT_JSON)).finalChatCompletion();
  await checkMessage(final.choices[0].message);
});

test("calls go back", async () => {
  await checkCalls((await client.chat.completions.create(body(CHAT_CALL))).choices[0].message);
});

test("parsed calls go back", async () => {
  const { message } = (await client.chat.completions.parse(body(CHAT_CALL))).choices[0];
  assert.equal(typeof message.tool_calls[0].function.parsed_arguments.up, "boolean");
  await checkCalls(message);
});

test("calls of a finished stream go back", async () => {
  const final = await client.chat.completions.stream(body(CHAT_CALL)).finalChatCompletion();
  await checkCalls(final.choices[0].message);
});

test("calls that were put together by hand go back", async () => {
  const calls = {};
  for (const chunk of await all(await client.chat.completions.create(body({ ...CHAT_CALL, stream: true })))) {
    for (const piece of chunk.choices[0]?.delta.tool_calls ?? []) {
      if (calls[piece.index]) calls[piece.index].function.arguments += piece.function.arguments;
      else calls[piece.index] = piece;
    }
  }
  assert.equal(calls[0].index, 0);
  await checkCalls({ role: "assistant", tool_calls: Object.values(calls) });
});

test("an output goes back", async () => {
  const scores = { include: ["message.output_text.logprobs"], top_logprobs: 2 };
  const created = await client.responses.create(asked({ ...SHORT, ...scores }));
  await checkItem(created.output);
  await checkItem((await client.responses.retrieve(created.id)).output);
});

test("an output of a finished stream goes back", async () => {
  await checkItem((await client.responses.stream(asked(SHORT)).finalResponse()).output);
});

test("a parsed output goes back", async () => {
  const response = await client.responses.parse(asked(RESPONSE_JSON));
  assert.equal(typeof response.output_parsed.up, "boolean");
  await checkItem(response.output);
  await checkItem((await client.responses.stream(asked(RESPONSE_JSON)).finalResponse()).output);
});

test("a call of a response goes back", async () => {
  await checkItem((await client.responses.create(asked(RESPONSE_CALL))).output);
});

test("a parsed call of a response goes back", async () => {
  const { output } = await client.responses.parse(asked(RESPONSE_CALL));
  assert.equal(typeof output[0].parsed_arguments.up, "boolean");
  await checkItem(output);
  await checkItem((await client.responses.stream(asked(RESPONSE_CALL)).finalResponse()).output);
});

test("what went into a response goes into another", async () => {
  const call = { type: "function_call", call_id: "c", name: "tide", arguments: "{}" };
  const result = { type: "function_call_output", call_id: "c", output: [{ type: "input_text", text: "yes" }] };
  const input = [{ role: "developer", content: "Be brief." }, ASK, call, result];
  const first = await client.responses.create(asked({ input, max_output_tokens: 1 }));
  const listed = await all(client.responses.inputItems.list(first.id, { order: "asc" }));
  assert.equal(listed.length, 4);
  const again = await client.responses.inputTokens.count({ model: place.model, input: listed });
  assert.equal(again.input_tokens, first.usage.input_tokens);
});

test("the settings of a response are those of the next", async () => {
  const first = await client.responses.create(asked({ ...RESPONSE_CALL, ...RESPONSE_JSON, tool_choice: "none" }));
  const { tools, tool_choice, text, reasoning, truncation, metadata } = first;
  const again = await client.responses.create(asked({ tools, tool_choice, text, reasoning, truncation, metadata }));
  assert.deepEqual([again.tools, again.text], [tools, text]);
});
