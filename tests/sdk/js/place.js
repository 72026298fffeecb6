// Where the suite is pointed (the environment's SDK_PLACE, see tests/sdk/place.py), and what all of its files share.

import { randomUUID } from "node:crypto";
import OpenAI from "openai";

export const place = JSON.parse(process.env.SDK_PLACE ?? "{}");
export const HELLO = [{ role: "user", content: "hello world" }];
export const WHOLE = { ignore_eos: true }; // an extension: the output goes on to its limit

const LEDGER_MS = 120_000;

/** A client that may do everything and never tries again. */
export function dial(options = {}) {
  return new OpenAI({ baseURL: place.baseURL, apiKey: place.key, maxRetries: 0, timeout: 120_000, ...options });
}

export const client = dial();

/** Ask for 16 tokens, greedily, unless `body` says otherwise. */
export function chat(body = {}, options = {}, from = client) {
  const defaults = { model: place.model, messages: HELLO, max_completion_tokens: 16, temperature: 0 };
  return from.chat.completions.create({ ...defaults, ...body }, options);
}

/** The text of a choice. */
export function text(answer, index = 0) {
  return answer.choices[index].message.content;
}

/** All that an asynchronous iterable gives. */
export async function all(source) {
  const items = [];
  for await (const item of source) items.push(item);
  return items;
}

/** The text of one choice of a stream. */
export function joined(chunks, index = 0) {
  const choices = chunks.flatMap((chunk) => chunk.choices).filter((choice) => choice.index === index);
  return choices.map((choice) => choice.delta.content ?? "").join("");
}

/** A name that no other case has. */
export function newName() {
  return `sdk-${randomUUID().replaceAll("-", "")}`;
}

/** Call the management API as the operator. */
export async function manage(method, path, body) {
  const answer = await fetch(`${place.baseURL.replace(/\/v1$/, "")}/api/v1/${path}`, {
    method,
    headers: { authorization: `Bearer ${place.operator}`, "content-type": "application/json" },
    body: body === undefined ? undefined : JSON.stringify(body),
  });
  if (!answer.ok) throw new Error(`${method} ${path}: ${answer.status} ${await answer.text()}`);
  return answer.status === 204 ? {} : answer.json();
}

/** Make a tenant; `policy`: what differs from the default. */
export async function newTenant(policy = {}) {
  const slug = newName().slice(0, 20);
  await manage("POST", "tenants/", { slug, name: slug, policy });
  return {
    slug,
    /** Make a key. */
    key: async (options = {}) => (await manage("POST", `tenants/${slug}/keys/`, { name: "sdk", ...options })).secret,
    /** Wait for the usage record of a response or a request. */
    record: (id) => recordOf(slug, id),
  };
}

/** The error that a promise fails with; fails itself where it doesn't. */
export async function failure(promise) {
  try {
    await promise;
  } catch (error) {
    return error;
  }
  throw new Error("it was expected to fail");
}

/** What a client is given to meet a fault so many times. */
export function faulty(fault, times, name) {
  return `${place.faultyURL}/${fault}/${times}/${name}/v1`;
}

/** The headers of the requests that came under `name`. */
export async function seen(name) {
  return (await fetch(`${place.faultyURL}/seen/${name}`)).json();
}

/** Wait until `done` gives something, and return it. */
export async function until(done, what) {
  const deadline = Date.now() + LEDGER_MS;
  for (;;) {
    const value = await done();
    if (value) return value;
    if (Date.now() > deadline) throw new Error(`waited ${LEDGER_MS} ms for ${what}`);
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
}

async function recordOf(slug, id) {
  const wanted = `req_${id.split(id.includes("_") ? "_" : "-").at(-1)}`;
  return until(async () => {
    const page = await manage("GET", `usage/?tenant=${slug}`);
    return page.data.find((record) => record.request_id === wanted);
  }, `the usage record of ${wanted}`);
}
