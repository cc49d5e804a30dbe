import assert from "node:assert/strict";
import { test } from "node:test";

import { EventReader, type ServerEvent } from "../src/server-events.js";

const TEXT =
  "\uFEFFretry: 200\n\n:\n\nid: 1-5\nevent: PROGRESS\ndata: {\"é☃\":1}\n\ndata\ndata: b\r\n\r\n" +
  "id: 2-6\r\rid:\0\nother: x\nretry: soon\ndata:  c\n\nevent: resync\ndata: {}\n\nid: 9-9\ndata: cut";
const FOUND: ServerEvent[] = [
  { name: "PROGRESS", data: '{"é☃":1}', cursor: "1-5" },
  { name: "message", data: "\nb", cursor: "1-5" },
  { name: "message", data: " c", cursor: "2-6" },
  { name: "resync", data: "{}", cursor: "2-6" },
];

test("a long event that comes in many chunks is searched once", (t) => {
  let searched = 0;
  const split = String.prototype.split;
  t.mock.method(String.prototype, "split", function (this: string, ...given: [RegExp]) {
    searched += this.length;
    return split.apply(this, given);
  });
  const data = "x".repeat(1_000);
  const reader = new EventReader();
  const encoder = new TextEncoder();
  for (let n = 0; n < 1_000; n++) assert.deepEqual(reader.feed(encoder.encode(n ? data : `data: ${data}`)), []);
  const [event] = reader.feed(encoder.encode("\n\n"));
  assert.equal(event?.data.length, 1_000_000);
  assert.ok(searched > 1_000_000 && searched < 1_100_000, `${searched}`);
});

test("chunks of any size give the same events", () => {
  const bytes = new TextEncoder().encode(TEXT);
  for (let size = 1; size <= bytes.length; size++) {
    const reader = new EventReader();
    const found: ServerEvent[] = [];
    for (let at = 0; at < bytes.length; at += size) {
      found.push(...reader.feed(bytes.subarray(at, at + size)));
    }
    assert.deepEqual(found, FOUND);
    // An event that was cut leaves the cursor at the one before.
    assert.deepEqual([reader.cursor, reader.retryMs], ["2-6", 200]);
  }
});
