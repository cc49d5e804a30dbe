// AG-UI's own client against the gateway: it checks each event, and the order of all.
import assert from "node:assert/strict"
import { test } from "node:test"
import { HttpAgent, buildResumeArray, verifyEvents, runHttpRequest, transformHttpEventStream } from "@ag-ui/client"
import { from, lastValueFrom, toArray } from "rxjs"

const gateway = process.env.GATEWAY_URL
const headers = { Authorization: `Bearer ${process.env.GATEWAY_TOKEN}` }
const unique = () => crypto.randomUUID()

class Agent extends HttpAgent {
  constructor(handler, threadId = unique()) {
    super({ url: `${gateway}/v1/ag-ui/${handler}`, headers, threadId })
    this.subscribe({ onRunFailed: ({ error }) => { this.failure = error } })
  }

  // What connectAgent() calls: the run of a task.
  connect() {
    const url = this.connectionTo
    return transformHttpEventStream(runHttpRequest(() => fetch(url, { headers: this.headers })))
  }

  ask(text) {
    this.addMessage({ id: unique(), role: "user", content: text })
    return this
  }

  texts() {
    return this.messages.filter((each) => each.role === "assistant" && each.content).map((each) => each.content)
  }
}

const urlOf = (thread, task) => `${gateway}/v1/sessions/${thread}/tasks/${task}/ag-ui`

// Events as they come, with their ids; at most so many.
async function read(url, init = {}, most = Infinity) {
  const response = await fetch(url, { ...init, headers: { ...headers, ...init.headers } })
  const events = []
  if (response.status === 204) return events
  assert.equal(response.status, 200, await (response.ok ? "" : response.text()))
  let rest = "", id
  const decoder = new TextDecoder()
  for await (const chunk of response.body) {
    rest += decoder.decode(chunk, { stream: true })
    const lines = rest.split("\n")
    rest = lines.pop()
    for (const line of lines) {
      if (line.startsWith("id: ")) id = line.slice(4)
      if (line.startsWith("data: ")) {
        events.push({ id, event: JSON.parse(line.slice(6)) })
        if (events.length >= most) return events
      }
    }
  }
  return events
}

const verified = (events) => lastValueFrom(from(events).pipe(verifyEvents(), toArray()))

test("a run with the texts of its children", async () => {
  const agent = new Agent("delegate").ask("hello")
  const named = []
  agent.subscribe({ onCustomEvent: ({ event }) => { if (event.name === "redis_state.child") named.push(event.value) } })
  agent.url += "?children=text"
  await agent.runAgent({ runId: unique() })
  assert.equal(agent.failure, undefined)
  assert.deepEqual(agent.texts().sort(), ["Hello", "One has.", "second try"])
  const last = Object.fromEntries(named.map((each) => [each.task_id, each]))
  assert.deepEqual(Object.values(last).map((each) => each.state), ["ended", "ended"])
  const written = agent.messages.filter((each) => each.role === "assistant")
  const handlers = Object.fromEntries(written.map((each) => [each.content, last[each.subagentRunId]?.handler]))
  assert.deepEqual(handlers, { Hello: "talk", "One has.": undefined, "second try": "again" })
})

test("a run, with all that it shows", async () => {
  const agent = new Agent("talk").ask("hello")
  const { result } = await agent.runAgent({ runId: unique() })
  assert.equal(agent.failure, undefined)
  assert.deepEqual(result, { ok: true })
  assert.deepEqual(agent.texts(), ["Hello"])
  assert.deepEqual(agent.state, { count: 1, "a/b~c": [2] })
  const call = agent.messages.flatMap((each) => each.toolCalls ?? [])[0]
  assert.equal(call.function.name, "search")
  assert.equal(agent.messages.find((each) => each.role === "tool").toolCallId, call.id)
  assert.ok(agent.messages.some((each) => each.role === "reasoning"))
})

test("joined at every event, and read on behind every event", async () => {
  const agent = new Agent("talk").ask("hello")
  const task = unique()
  await agent.runAgent({ runId: task })
  const all = await read(`${urlOf(agent.threadId, task)}?after=0`)
  await verified(all.map((each) => each.event))
  for (let number = 0; number < all.length; number++) {
    const rest = await read(urlOf(agent.threadId, task), { headers: { "Last-Event-ID": all[number].id } })
    const joined = [...all.slice(0, number + 1), ...rest]
    assert.deepEqual(joined.map((each) => each.event), all.map((each) => each.event))
  }
  const late = new Agent("talk", agent.threadId)
  late.connectionTo = urlOf(agent.threadId, task)
  await late.connectAgent()
  assert.deepEqual(late.texts(), ["Hello"])
  assert.deepEqual(late.state, agent.state)
  assert.deepEqual(late.messages, agent.messages)
})

test("left in the middle, joined by two, and finished by another worker's hands", async () => {
  const agent = new Agent("wait").ask("hello")
  const task = unique()
  const body = JSON.stringify({ threadId: agent.threadId, runId: task, messages: agent.messages })
  const post = { method: "POST", body, headers: { "Content-Type": "application/json" } }
  const begun = await read(agent.url, post, 5)
  assert.equal(begun.at(-1).event.type, "TEXT_MESSAGE_CONTENT")
  const late = new Agent("wait", agent.threadId)
  late.connectionTo = urlOf(agent.threadId, task)
  const joining = late.connectAgent()
  const reading = read(urlOf(agent.threadId, task), { headers: { "Last-Event-ID": begun.at(-1).id } })
  await fetch(`${process.env.GATEWAY_SIGNAL}/${agent.threadId}/${task}`, { method: "POST" })
  await joining
  assert.deepEqual(late.texts(), ["one two"])
  const whole = [...begun, ...(await reading)].map((each) => each.event)
  await verified(whole)
  const text = whole.filter((each) => each.type === "TEXT_MESSAGE_CONTENT").map((each) => each.delta)
  assert.equal(text.join(""), "one two")
})

test("an interrupt, answered with the client's own helpers", async () => {
  const agent = new Agent("approve").ask("refund bob")
  await agent.runAgent({ runId: unique() })
  assert.equal(agent.failure, undefined)
  const [interrupt] = agent.pendingInterrupts
  assert.equal(interrupt.metadata.payload.who, "bob")
  const answer = { status: "resolved", payload: { approved: true, value: 7 } }
  const resume = buildResumeArray(agent.pendingInterrupts, { [interrupt.id]: answer })
  await agent.runAgent({ runId: unique(), resume })
  assert.equal(agent.failure, undefined)
  assert.deepEqual(agent.pendingInterrupts, [])
  assert.equal(agent.texts()[0], "May I?")
  assert.match(agent.texts()[1], /True, 7$/)
})

test("an interrupt that is cancelled is a rejection", async () => {
  const agent = new Agent("approve").ask("refund bob")
  await agent.runAgent({ runId: unique() })
  const [interrupt] = agent.pendingInterrupts
  const resume = buildResumeArray(agent.pendingInterrupts, { [interrupt.id]: { status: "cancelled" } })
  await agent.runAgent({ runId: unique(), resume })
  assert.match(agent.texts()[1], /False, None$/)
})

test("a run that fails", async () => {
  const agent = new Agent("fail").ask("hello")
  let message
  await agent.runAgent({ runId: unique() }, { onRunErrorEvent: ({ event }) => { message = event.message } })
  assert.match(message, /no luck/)
})

test("a text that is written again takes the place of the first", async () => {
  const agent = new Agent("again").ask("hello")
  const snapshots = []
  await agent.runAgent({ runId: unique() }, { onMessagesSnapshotEvent: ({ event }) => { snapshots.push(event) } })
  assert.equal(agent.failure, undefined)
  assert.deepEqual(agent.texts(), ["second try"])
  assert.equal(snapshots.length, 1)
  assert.deepEqual(agent.messages.map((each) => each.role), ["user", "assistant"])
})

test("random runs, each joined at a random moment", async () => {
  const runs = Number(process.env.RANDOM_RUNS ?? 50)
  for (let number = 0; number < runs; number++) {
    const agent = new Agent("random").ask(String(number))
    const task = unique()
    let running
    await new Promise((begun) => { running = agent.runAgent({ runId: task }, { onRunStartedEvent: begun }) })
    await new Promise((resolve) => setTimeout(resolve, Math.random() * 60))
    const late = new Agent("random", agent.threadId)
    late.connectionTo = urlOf(agent.threadId, task)
    const joining = late.connectAgent()
    await running
    await joining
    assert.equal(agent.failure, undefined)
    assert.equal(late.failure, undefined)
    assert.deepEqual(late.texts(), agent.texts())
    await verified((await read(`${urlOf(agent.threadId, task)}?after=0`)).map((each) => each.event))
  }
})
