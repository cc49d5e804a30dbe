import assert from "node:assert/strict";
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { after, before, test } from "node:test";
import { setImmediate } from "node:timers/promises";
import { setFlagsFromString } from "node:v8";
import { runInNewContext } from "node:vm";

import {
  createGatewayClient,
  GatewayError,
  idempotencyKey,
  type EventStream,
  type GatewayClient,
  type GatewayEvent,
} from "../src/index.js";
import { Gateway } from "./gateway.js";

let gateway: Gateway;
let client: GatewayClient;

before(async () => {
  gateway = await Gateway.start();
  client = createGatewayClient({ baseUrl: gateway.served.url, token: gateway.served.token });
});
after(() => gateway.stop());

async function submit(handler: string, session: string, task: string, input: unknown = null) {
  const { data, error } = await client.api.POST("/v1/tasks", {
    body: { handler, session_id: session, input },
    params: { header: { "Idempotency-Key": task } },
  });
  assert.equal(error, undefined);
  return data;
}

async function until(stream: EventStream, wanted: (event: GatewayEvent) => boolean) {
  const seen: GatewayEvent[] = [];
  for await (const event of stream) {
    seen.push(event);
    if (wanted(event)) break;
  }
  return seen;
}

async function pauseOf(session: string): Promise<string> {
  for await (const event of client.events(session)) {
    if (event.kind === "update" && event.update.update_type === "CHECKPOINT") break;
  }
  for (;;) {
    const { data } = await client.api.GET("/v1/pauses", {
      params: { query: { session_id: session } },
    });
    const found = data?.pauses[0]?.pause_id;
    if (found != null) return found;
  }
}

function numbers(events: GatewayEvent[]): number[] {
  return events.flatMap((event) => {
    const content = event.kind === "update" ? event.update.content : null;
    const n = (content as { n?: number } | null)?.n;
    return n === undefined ? [] : [n];
  });
}

test("a task is submitted once, streamed to its end and read", async () => {
  const made = await submit("echo", "a/b é%", "t/1", { n: [1, null] });
  assert.deepEqual(made, { session_id: "a/b é%", task_id: "t/1", created: true });
  assert.equal((await submit("echo", "a/b é%", "t/1", { n: [1, null] }))?.created, false);
  const seen = await until(client.events("a/b é%", { task: "t/1" }), (e) => e.kind === "end");
  assert.deepEqual(seen.at(-1), { kind: "end", taskId: "t/1", status: "COMPLETE" });
  const path = { session: "a/b é%", task: "t/1" };
  const { data } = await client.api.GET("/v1/sessions/{session}/tasks/{task}", { params: { path } });
  assert.deepEqual([data?.status, data?.result], ["COMPLETE", { n: [1, null] }]);
  const found = await client.api.GET("/v1/tasks", {
    params: { query: { status: ["COMPLETE", "FAILED"], session_id: "a/b é%" } },
  });
  assert.deepEqual(found.data?.tasks.map((task) => task.task_id), ["t/1"]);
});

test("the second one to decide a pause learns who was first", async () => {
  await submit("ask", "decide", "t");
  const pause = await pauseOf("decide");
  const ann = createGatewayClient({ baseUrl: gateway.served.url, token: gateway.served.ann });
  const decision = "/v1/pauses/{pause}/decision" as const;
  const params = { path: { pause }, header: { "Idempotency-Key": idempotencyKey() } };
  for (let times = 0; times < 2; times++) {
    const { data } = await ann.api.POST(decision, { params, body: { approved: true, value: 7 } });
    assert.equal(data?.by, "ann");
  }
  const lost = await client.api.POST(decision, {
    params: { path: { pause } },
    body: { approved: false, value: null },
  });
  assert.equal(lost.response.status, 409);
  assert.deepEqual([lost.error?.error.code, lost.error?.error["by"]], ["already_resolved", "ann"]);
});

test("a stream that is cut again and again has every row once, in order", async () => {
  await submit("ask", "s", "t");
  await pauseOf("s");
  const seen: GatewayEvent[] = [];
  const stream = client.events("s", { task: "t" });
  for await (const event of stream) {
    seen.push(event);
    const last = numbers(seen).at(-1) ?? 0;
    if (seen.length === 1) await gateway.tell("rows 9 s");
    if (last === 4 || last === 17) await gateway.tell("cut");
    if (last === 8 && numbers(seen).length === 9) {
      await gateway.tell("down");
      await gateway.tell("rows 12 s");
      await gateway.tell("up");
    }
    if (last === 20) break;
  }
  assert.deepEqual(numbers(seen), Array.from({ length: 21 }, (_, n) => n));
  const last = seen.at(-1);
  assert.equal(last?.kind === "update" ? last.cursor : undefined, stream.cursor);
  assert.deepEqual(last?.kind === "update" ? last.update.content : undefined, { n: 20, text: "é☃" });
  const rest = client.events("s", { task: "t", after: stream.cursor! });
  await gateway.tell("rows 1 s");
  assert.deepEqual(numbers(await until(rest, () => true)), [21]);
});

test("rows that are gone are told, and the stream goes on with the others", async () => {
  await gateway.tell("rows 2 gone");
  // Nobody watched the session when the first row came: only its log has that row.
  const early = client.events("gone", { types: ["PROGRESS"] });
  await until(early, () => true);
  await gateway.tell("rows 60 gone");
  const late = client.events("gone", { after: early.cursor! });
  const seen: GatewayEvent[] = [];
  for await (const event of late) {
    seen.push(event);
    if (numbers(seen).length === 20) break;
  }
  const [first] = seen;
  assert.equal(first?.kind, "resync");
  assert.ok(first.kind === "resync" && first.reason === "trimmed" && (first.missed ?? 0) > 0);
  const kept = numbers(seen);
  assert.deepEqual(kept, kept.map((_, n) => (kept[0] ?? 0) + n));
});

test("a token that expires is replaced", async () => {
  await submit("ask", "tokens", "t");
  let asked = 0;
  const { token } = await gateway.tell("token");
  const changing = createGatewayClient({
    baseUrl: gateway.served.url,
    token: async () => (asked++ === 0 ? token : gateway.served.token),
  });
  const kinds: string[] = [];
  for await (const event of changing.events("tokens")) {
    kinds.push(event.kind);
    if (event.kind === "expired") {
      const params = { path: { session: "tokens", task: "t" } };
      await client.api.POST("/v1/sessions/{session}/tasks/{task}/cancel", { params, body: {} });
    }
    const content = event.kind === "update" ? (event.update.content as { status?: string }) : {};
    if (content.status === "CANCELLED") break;
  }
  assert.equal(kinds.filter((kind) => kind === "expired").length, 1);
  // Before anything is done it is refused, and sent again with the newer one.
  let worn = 0;
  const retried = createGatewayClient({
    baseUrl: gateway.served.url,
    token: () => (worn++ === 0 ? "worn out" : gateway.served.token),
  });
  const { data } = await retried.api.POST("/v1/tasks", {
    body: { handler: "echo", session_id: "tokens", task_id: "u" },
  });
  assert.equal(data?.task_id, "u");
});

test("streams that end at once are no gateway, and are asked for later each time", async () => {
  for (const said of ["", "retry: 0\n\n", "event: expired\ndata: {}\n\n"]) {
    let asked = 0;
    const server = createServer((_, response) => {
      asked++;
      response.writeHead(200, { "content-type": "text/event-stream" });
      response.end(said);
    });
    await new Promise<void>((done) => server.listen(0, "127.0.0.1", done));
    const { port } = server.address() as AddressInfo;
    const odd = createGatewayClient({ baseUrl: `http://127.0.0.1:${port}`, token: "t" });
    await assert.rejects(until(odd.events("s", { patienceMs: 500 }), () => false), { status: 0 });
    assert.ok(asked > 1 && asked < 9, `${asked}`);
    server.close();
  }
});

test("a connection that hangs ends with its caller, whatever the collector of garbage does", async () => {
  setFlagsFromString("--expose-gc");
  const collect = runInNewContext("gc") as () => void;
  const server = createServer((_, response) => {
    response.writeHead(200, { "content-type": "text/event-stream" });
    response.write("id: 1-1\ndata: {}\n\n");
  });
  await new Promise<void>((done) => server.listen(0, "127.0.0.1", done));
  const { port } = server.address() as AddressInfo;
  const held = createGatewayClient({ baseUrl: `http://127.0.0.1:${port}`, token: "t" });
  const stopped = new AbortController();
  const events = held.events("s", { signal: stopped.signal })[Symbol.asyncIterator]();
  assert.equal((await events.next()).value?.kind, "update");
  const quiet = events.next();
  await setImmediate();
  collect();
  stopped.abort(new Error("enough"));
  await assert.rejects(quiet, /enough/);
  server.closeAllConnections();
  server.close();
});

test("a patience without an end gives no connection up", async () => {
  let asked = 0;
  const server = createServer((_, response) => {
    asked++;
    response.writeHead(200, { "content-type": "text/event-stream" });
    response.write(":\n\n");
    setTimeout(() => response.write("id: 1-1\ndata: {}\n\n"), 100);
  });
  await new Promise<void>((done) => server.listen(0, "127.0.0.1", done));
  const { port } = server.address() as AddressInfo;
  const patient = createGatewayClient({ baseUrl: `http://127.0.0.1:${port}`, token: "t" });
  const endless = { idleMs: Infinity, patienceMs: 2_000 };
  assert.equal((await until(patient.events("s", endless), () => true)).length, 1);
  assert.equal(asked, 1);
  server.closeAllConnections();
  server.close();
});

test("what cannot be read is an error, and a stream ends when its caller has enough", async () => {
  const wrong = createGatewayClient({ baseUrl: gateway.served.url, token: "worn out" });
  await assert.rejects(until(wrong.events("s"), () => true), (error: unknown) => {
    assert.ok(error instanceof GatewayError);
    assert.deepEqual([error.status, error.code], [401, "unauthenticated"]);
    assert.ok(!`${error.stack}`.includes("worn out"));
    return true;
  });
  await assert.rejects(until(client.events("s", { after: "garbage" }), () => true), { status: 400 });
  await assert.rejects(until(client.events("s", { task: "none" }), () => true), { status: 404 });
  const nobody = createGatewayClient({ baseUrl: "http://127.0.0.1:1", token: "t" });
  await assert.rejects(until(nobody.events("s", { patienceMs: 300 }), () => true), { status: 0 });
  const stopped = new AbortController();
  const quiet = until(client.events("s", { after: "$", signal: stopped.signal }), () => true);
  setTimeout(() => stopped.abort(new Error("enough")), 50);
  await assert.rejects(quiet, /enough/);
  for (const odd of [".", ".."]) assert.throws(() => client.events(odd), TypeError);
  for (const baseUrl of ["http://a:b@host", "http://host?x=1", "ftp://host", "/agents"]) {
    assert.throws(() => createGatewayClient({ baseUrl }), TypeError);
  }
});
