// The AI SDK's own transport against the gateway: its schema checks each chunk, and it makes the message.
import assert from "node:assert/strict"
import { test } from "node:test"
import * as newest from "ai"
import * as five from "ai5"
import * as six from "ai6"

const gateway = process.env.GATEWAY_URL
const headers = { Authorization: `Bearer ${process.env.GATEWAY_TOKEN}` }
const unique = () => crypto.randomUUID()

for (const [name, ai, query] of [["7", newest, ""], ["6", six, ""], ["5", five, "?approvals=data"]]) {
  const transport = (handler) => new ai.DefaultChatTransport({
    api: `${gateway}/v1/ai-sdk/${handler}`,
    headers,
    prepareSendMessagesRequest: ({ api, id, messages, trigger, messageId }) =>
      ({ api: api + query, body: { id, messages, trigger, messageId } }),
    prepareReconnectToStreamRequest: ({ api, id }) =>
      ({ api: `${api}/${id}/stream${query}`, headers }),
  })
  const user = (text) => ({ id: unique(), role: "user", parts: [{ type: "text", text }] })
  const send = (handler, chatId, messages) =>
    transport(handler).sendMessages({ chatId, messages, trigger: "submit-message", headers })
  const resume = (handler, chatId) => transport(handler).reconnectToStream({ chatId })

  async function whole(stream, message) {
    const errors = []
    let last
    for await (const each of ai.readUIMessageStream({ stream, message, onError: (error) => errors.push(error) })) last = each
    return { message: last, errors }
  }
  const texts = (message) => message.parts.filter((each) => each.type === "text").map((each) => each.text)

  test(`AI SDK ${name}: a message, with all that it shows`, async () => {
    const { message, errors } = await whole(await send("talk", unique(), [user("hello")]))
    assert.deepEqual(errors, [])
    assert.deepEqual(texts(message), ["Hello"])
    const tool = message.parts.find((each) => each.type === "dynamic-tool")
    assert.equal(tool.state, "output-available")
    assert.deepEqual(tool.output, { found: 2 })
    assert.equal(message.parts.find((each) => each.type === "reasoning").text, "hm")
    assert.ok(message.parts.some((each) => each.type === "data-value"))
  })

  test(`AI SDK ${name}: a message with the texts of its children`, async () => {
    const more = new ai.DefaultChatTransport({ api: `${gateway}/v1/ai-sdk/delegate?children=text`, headers })
    const stream = await more.sendMessages({ chatId: unique(), messages: [user("hello")], trigger: "submit-message", headers })
    const { message, errors } = await whole(stream)
    assert.deepEqual(errors, [])
    const children = message.parts.filter((each) => each.type === "data-child").map((each) => each.data)
    assert.deepEqual(children.map((each) => [each.handler, each.state]), [["talk", "ended"], ["again", "ended"]])
    const dropped = message.parts.filter((each) => each.type === "data-dropped")
    assert.ok(dropped.length <= 1)
    const by = (each) => children.find((child) => child.task_id === each.providerMetadata?.redis_state.task_id)?.handler
    const said = message.parts.filter((each) => each.type === "text" && each.text !== "first").map((each) => [by(each), each.text])
    assert.deepEqual(said.sort(), [["again", "second try"], ["talk", "Hello"], [undefined, "One has."]].sort())
  })

  test(`AI SDK ${name}: left, resumed, stopped`, async () => {
    const chat = unique()
    assert.equal(await resume("wait", chat), null)
    const reader = (await send("wait", chat, [user("hello")])).getReader()
    let part
    do part = (await reader.read()).value
    while (part.type !== "text-delta")
    await reader.cancel()
    const resumed = await resume("wait", chat)
    const stopped = await fetch(`${gateway}/v1/ai-sdk/wait/${chat}/stop`, { method: "POST", headers })
    assert.equal(stopped.status, 202)
    const kinds = []
    let text = ""
    for await (const each of resumed) {
      kinds.push(each.type)
      if (each.type === "text-delta") text += each.delta
    }
    assert.equal(text, "one ")
    assert.equal(kinds.at(-1), "abort")
    assert.equal(await resume("wait", chat), null)
  })

  test(`AI SDK ${name}: an edited message, and answers that are made again`, async () => {
    const chat = unique()
    const asked = user("one")
    const edited = { ...asked, parts: [{ type: "text", text: "two" }] }
    const again = (messages) => transport("talk").sendMessages(
      { chatId: chat, messages, trigger: "regenerate-message", messageId: undefined, headers })
    const first = await whole(await send("talk", chat, [asked]))
    const second = await whole(await send("talk", chat, [edited]))
    const more = []
    for (let n = 0; n < 3; n++) more.push(await whole(await again([edited])))
    const made = [first, second, ...more]
    assert.deepEqual(made.map(({ message }) => texts(message)), made.map(() => ["Hello"]))
    assert.equal(new Set(made.map(({ message }) => message.id)).size, made.length)
    const repeated = await whole(await send("talk", chat, [edited]))
    assert.equal(repeated.message.id, second.message.id)
  })

  test(`AI SDK ${name}: a task that fails`, async () => {
    const { errors } = await whole(await send("fail", unique(), [user("hello")]))
    assert.match(String(errors[0]), /no luck/)
  })

  if (query) {
    test(`AI SDK ${name}: a pause is a data part`, async () => {
      const { message, errors } = await whole(await send("approve", unique(), [user("refund")]))
      assert.deepEqual(errors, [])
      assert.equal(message.parts.find((each) => each.type === "data-pause").data.state, "open")
    })
    continue
  }

  test(`AI SDK ${name}: an approval, answered in the chat`, async () => {
    const chat = unique()
    const asked = user("refund bob")
    const { message, errors } = await whole(await send("approve", chat, [asked]))
    assert.deepEqual(errors, [])
    const tool = message.parts.find((each) => each.type === "dynamic-tool")
    assert.equal(tool.state, "approval-requested")
    // As addToolApprovalResponse() leaves the message.
    tool.state = "approval-responded"
    tool.approval = { ...tool.approval, approved: true, reason: "fine" }
    assert.ok(ai.lastAssistantMessageIsCompleteWithApprovalResponses({ messages: [asked, message] }))
    const next = await whole(await send("approve", chat, [asked, message]), message)
    assert.deepEqual(next.errors, [])
    assert.equal(next.message.id, message.id)
    assert.match(texts(next.message)[1], /True, fine$/)
    const done = next.message.parts.find((each) => each.type === "dynamic-tool")
    assert.equal(done.state, "output-available")
    assert.equal(await resume("approve", chat), null)
  })

  test(`AI SDK ${name}: a rejection`, async () => {
    const chat = unique()
    const asked = user("refund bob")
    const { message } = await whole(await send("approve", chat, [asked]))
    const tool = message.parts.find((each) => each.type === "dynamic-tool")
    tool.state = "approval-responded"
    tool.approval = { ...tool.approval, approved: false }
    const next = await whole(await send("approve", chat, [asked, message]), message)
    assert.deepEqual(next.errors, [])
    assert.equal(next.message.parts.find((each) => each.type === "dynamic-tool").state, "output-denied")
    assert.match(texts(next.message)[1], /False/)
  })
}
