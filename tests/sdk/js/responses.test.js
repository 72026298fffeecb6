// Responses and the realtime websocket with the npm package `openai`.

import assert from "node:assert/strict";
import { test } from "node:test";
import OpenAI from "openai";
import { OpenAIRealtimeWS } from "openai/realtime/ws";
import { all, chat, client, dial, failure, newTenant, place, text, until } from "./place.js";

const TIDE = {
  type: "function",
  name: "tide",
  parameters: {
    type: "object",
    properties: { place: { enum: ["Husum", "Kiel"] } },
    required: ["place"],
    additionalProperties: false,
  },
  strict: true,
};

function respond(input = "hello world", body = {}, from = client) {
  return from.responses.create({ model: place.model, input, max_output_tokens: 16, temperature: 0, ...body });
}

test("a response says what chat says", async () => {
  const response = await respond();
  assert.match(response.id, /^resp_/);
  assert.equal(response.output_text, text(await chat()));
  assert.equal(response.usage.total_tokens, response.usage.input_tokens + response.usage.output_tokens);
});

test("items and instructions", async () => {
  const plain = await respond([{ role: "user", content: [{ type: "input_text", text: "hello world" }] }]);
  const told = await respond("hello world", { instructions: "be brief" });
  assert.equal(plain.output_text, (await respond()).output_text);
  assert.ok(told.usage.input_tokens > plain.usage.input_tokens);
});

test("a limit makes a response incomplete", async () => {
  const response = await respond("hello", { ignore_eos: true });
  assert.equal(response.status, "incomplete");
  assert.equal(response.incomplete_details.reason, "max_output_tokens");
});

test("events of a response are numbered", async () => {
  const events = await all(await respond("hello world", { stream: true }));
  assert.equal(events[0].type, "response.created");
  assert.deepEqual(
    events.map((event) => event.sequence_number),
    events.map((_, index) => index),
  );
  const deltas = events.filter((event) => event.type === "response.output_text.delta");
  assert.equal(deltas.map((event) => event.delta).join(""), (await respond()).output_text);
});

test("the helper gives the final response", async () => {
  const stream = client.responses.stream({ model: place.model, input: "hello", max_output_tokens: 16 });
  assert.match((await stream.finalResponse()).id, /^resp_/);
});

test("a response is kept until it is deleted", async () => {
  const made = await respond();
  assert.equal((await client.responses.retrieve(made.id)).output_text, made.output_text);
  await client.responses.delete(made.id);
  assert.ok((await failure(client.responses.retrieve(made.id))) instanceof OpenAI.NotFoundError);
});

test("what went in is listed", async () => {
  const made = await respond("what went in");
  const items = await all(client.responses.inputItems.list(made.id));
  assert.equal(items[0].content[0].text, "what went in");
});

test("store false keeps nothing", async () => {
  const made = await respond("hello", { store: false });
  assert.ok((await failure(client.responses.retrieve(made.id))) instanceof OpenAI.NotFoundError);
});

test("a response goes on from another", async () => {
  const first = await respond();
  const second = await respond("go on", { previous_response_id: first.id });
  assert.equal(second.previous_response_id, first.id);
  assert.ok(second.usage.input_tokens > first.usage.total_tokens);
});

test("a response in the background is there at the end", async () => {
  const made = await respond("hello world", { background: true });
  const done = await until(async () => {
    const now = await client.responses.retrieve(made.id);
    return ["queued", "in_progress"].includes(now.status) ? null : now;
  }, "the end of a response");
  assert.equal(done.output_text, (await respond()).output_text);
});

test("a response in the background is cancelled", async () => {
  const tenant = await newTenant(place.room);
  const from = dial({ apiKey: await tenant.key() });
  const body = { background: true, max_output_tokens: place.endless, ignore_eos: true };
  const { data: made, request_id } = await respond("hello", body, from).withResponse();
  assert.equal((await from.responses.cancel(made.id)).status, "cancelled");
  assert.equal((await tenant.record(request_id)).finish_reason, "cancelled");
});

test("a response calls a function", async () => {
  const made = await respond("tide?", { tools: [TIDE], tool_choice: "required", max_output_tokens: 300 });
  const called = made.output.find((item) => item.type === "function_call");
  assert.equal(called.name, "tide");
  assert.ok(["Husum", "Kiel"].includes(JSON.parse(called.arguments).place));
});

test("a field of a response that is wrong is named", async () => {
  const error = await failure(respond("hello", { temperature: 9 }));
  assert.ok(error instanceof OpenAI.BadRequestError);
  assert.equal(error.param, "temperature");
});

/** Dial the realtime socket; collects events until `isLast` likes one. */
async function realtime(isLast, onEvent = () => {}, from = client) {
  const secure = from.withOptions({ baseURL: place.secureURL }); // this class speaks `wss` alone
  const socket = new OpenAIRealtimeWS({ model: place.model, options: { ca: place.certificate } }, secure);
  const events = [];
  try {
    await new Promise((resolve, reject) => {
      socket.on("error", (error) => (isLast({ type: "error", error }) ? resolve() : reject(error)));
      socket.on("event", (event) => {
        events.push(event);
        try {
          onEvent(event, socket);
          if (isLast(event)) resolve();
        } catch (error) {
          reject(error);
        }
      });
    });
  } finally {
    socket.close();
  }
  return events;
}

const isDone = (event) => event.type === "response.done";
const TURN = { type: "message", role: "user", content: [{ type: "input_text", text: "hello world" }] };

function create(most, more = {}) {
  const response = { input: [TURN], max_output_tokens: most, temperature: 0, ignore_eos: true, ...more };
  return { type: "response.create", response };
}

test("realtime says what chat says", async () => {
  const events = await realtime(isDone, (event, socket) => {
    if (event.type === "session.created") socket.send(create(16));
  });
  const deltas = events.filter((event) => event.type === "response.output_text.delta");
  const said = deltas.map((event) => event.delta).join("");
  assert.equal(said, text(await chat({ ignore_eos: true })));
  assert.equal(events.find(isDone).response.usage.output_tokens, 16);
});

test("realtime runs several at once", async () => {
  const ends = [];
  await realtime(
    () => ends.length === 2,
    (event, socket) => {
      if (event.type === "session.created") for (const most of [5, 9]) socket.send(create(most));
      if (isDone(event)) ends.push(event.response.usage.output_tokens);
    },
  );
  assert.deepEqual(ends.sort(), [5, 9]);
});

test("realtime cancels", async () => {
  const from = dial({ apiKey: await (await newTenant(place.room)).key() });
  let asked = false;
  const onEvent = (event, socket) => {
    if (event.type === "session.created") socket.send(create(place.endless));
    if (event.type === "response.output_text.delta" && !asked) {
      asked = true;
      socket.send({ type: "response.cancel" });
    }
  };
  const events = await realtime(isDone, onEvent, from);
  assert.equal(events.find(isDone).response.status, "cancelled");
});

test("realtime tells errors as events", async () => {
  const events = await realtime(
    (event) => event.type === "error",
    (event, socket) => {
      if (event.type === "session.created") socket.send({ event_id: "mine", ...create(2, { temperature: 9 }) });
    },
  );
  const told = events.find((event) => event.type === "error");
  assert.equal(told.error.event_id, "mine");
  assert.equal(told.error.param, "response.temperature");
});

test("realtime refuses a wrong key", async () => {
  const error = await failure(realtime(isDone, () => {}, dial({ apiKey: "nonsense" })));
  assert.match(String(error.message), /40[13]/);
});
