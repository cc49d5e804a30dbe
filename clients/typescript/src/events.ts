import { GatewayError } from "./errors.js";
import { pathPart } from "./requests.js";
import type { components, operations } from "./schema.js";
import { EventReader, type ServerEvent } from "./server-events.js";

export type TaskStatus = components["schemas"]["TaskStatus"];
export type UpdateType =
  | "THINKING"
  | "PROGRESS"
  | "TOOL_CALL"
  | "RESULT"
  | "ERROR"
  | "CHECKPOINT"
  | "STATUS_CHANGE"
  | "NOTIFICATION";

/** One update of a task. `run` is the epoch of the run that published it. */
export interface StateUpdate {
  session_id: string;
  task_id: string;
  trace_id: string | null;
  update_id: string;
  update_type: UpdateType;
  content: unknown;
  step_index: number | null;
  total_steps: number | null;
  created_at: string;
  run?: number;
}

/**
 * What a stream has. `cursor` reads on after an update, also in another process.
 * `resync`: rows are missing, and the stream goes on with those that are kept.
 * `end`: the task is terminal; the status is null if its record is gone.
 * `expired`: the right to read has ended; the stream goes on with a newer token.
 */
export type GatewayEvent =
  | { kind: "update"; cursor: string; update: StateUpdate }
  | { kind: "resync"; missed: number | null; reason: string; resumeAfter: string }
  | { kind: "end"; taskId: string; status: TaskStatus | null }
  | { kind: "expired" };

type Query = NonNullable<operations["stream_events"]["parameters"]["query"]>;

export interface EventsOptions {
  /** A cursor to read on after, `$` for what comes from now on; else all that is kept. */
  after?: string;
  /** Only the updates of this task, until it is terminal. */
  task?: string;
  /** Only updates of these types. */
  types?: readonly UpdateType[];
  /** Ends the stream. */
  signal?: AbortSignal;
  /** After so long without a word, a heartbeat for example, the connection is given up: 45 s. */
  idleMs?: number;
  /** After so long without the gateway the stream ends with an error: five minutes. */
  patienceMs?: number;
}

const SOONEST_MS = 100;
const LATEST_MS = 2_000;
const LONGEST_RETRY_MS = 10_000;
/** A connection that ended sooner, and brought no event, was of no use. */
const SHORTEST_MS = 1_000;
/** A longer timer, such as one without an end, is over at once. */
const LONGEST_TIMER_MS = 2 ** 31 - 1;

/**
 * The updates of a session, as an async iterable. The cursor is kept while it is read: a broken
 * connection is opened again after the last event that came whole. Read it once.
 */
export class EventStream implements AsyncIterable<GatewayEvent> {
  #cursor: string | undefined;
  #retryMs = SOONEST_MS;
  readonly #url: string;

  constructor(
    baseUrl: string,
    private readonly send: (request: Request) => Promise<Response>,
    session: string,
    private readonly options: EventsOptions,
  ) {
    this.#cursor = options.after;
    const query: Query = {
      ...(options.after === undefined ? {} : { after: options.after }),
      ...(options.task === undefined ? {} : { task: options.task }),
    };
    const search = new URLSearchParams(query as Record<string, string>);
    for (const type of options.types ?? []) search.append("types", type);
    const written = search.toString();
    const path = `${baseUrl}/v1/sessions/${pathPart("session", session)}/events`;
    this.#url = written === "" ? path : `${path}?${written}`;
  }

  /** Where the stream is: give it as `after` to read on in another one. */
  get cursor(): string | undefined {
    return this.#cursor;
  }

  async *[Symbol.asyncIterator](): AsyncGenerator<GatewayEvent, void, undefined> {
    const patienceMs = this.options.patienceMs ?? 300_000;
    let failingSince: number | undefined;
    let backoffMs = 0;
    for (;;) {
      let trouble: unknown;
      let openedAt = Infinity;
      let heard = false;
      const connection = new Connection(this.options);
      try {
        for await (const chunk of connection.chunks(this.send, this.#url, this.#cursor)) {
          openedAt = Math.min(openedAt, Date.now());
          for (const event of connection.reader.feed(chunk)) {
            const read = readEvent(event);
            this.#cursor = event.cursor ?? this.#cursor;
            heard ||= read.kind !== "expired";
            yield read;
            if (read.kind === "end") return;
          }
          // An id without data is no event: it is where the stream is now.
          this.#cursor = connection.reader.cursor ?? this.#cursor;
          this.#retryMs = Math.min(connection.reader.retryMs ?? this.#retryMs, LONGEST_RETRY_MS);
        }
      } catch (error) {
        if (error instanceof GatewayError && !error.passing) throw error;
        trouble = error;
      } finally {
        connection.close();
      }
      this.options.signal?.throwIfAborted();
      if (heard || Date.now() - openedAt >= SHORTEST_MS) failingSince = undefined;
      else trouble ??= new GatewayError(0, "unreachable", "the stream ended at once");
      failingSince ??= Date.now();
      if (trouble === undefined) backoffMs = 0;
      else if (Date.now() - failingSince >= patienceMs) throw trouble;
      else backoffMs = Math.min(Math.max(this.#retryMs, backoffMs, SOONEST_MS) * 2, LATEST_MS);
      await pause(Math.max(this.#retryMs, backoffMs), this.options.signal);
    }
  }
}

/** One connection of a stream: it is aborted when it is silent, or when the caller has enough. */
class Connection {
  readonly reader = new EventReader();
  readonly #abort = new AbortController();
  readonly #idleMs: number;
  readonly #signal: AbortSignal | undefined;
  #timer: ReturnType<typeof setTimeout> | undefined;
  readonly #stop = (): void => this.#abort.abort();

  constructor(options: EventsOptions) {
    this.#idleMs = Math.min(options.idleMs ?? 45_000, LONGEST_TIMER_MS);
    this.#signal = options.signal;
    this.#signal?.throwIfAborted();
    this.#signal?.addEventListener("abort", this.#stop);
  }

  async *chunks(
    send: (request: Request) => Promise<Response>,
    url: string,
    cursor: string | undefined,
  ): AsyncGenerator<Uint8Array, void, undefined> {
    this.#wait();
    const headers: Record<string, string> = { accept: "text/event-stream" };
    if (cursor !== undefined) headers["last-event-id"] = cursor;
    const request = new Request(url, { headers, signal: this.#abort.signal, cache: "no-store" });
    const response = await failing(this.#unless(send(request)));
    if (!response.ok) throw await GatewayError.of(response);
    const kind = response.headers.get("content-type") ?? "";
    if (response.body === null || !kind.startsWith("text/event-stream")) {
      throw new GatewayError(response.status, "foreign", "the answer is no stream of a gateway's");
    }
    const body = response.body.getReader();
    try {
      for (;;) {
        const { done, value } = await failing(this.#unless(body.read()));
        if (done) return;
        this.#wait();
        yield value;
      }
    } finally {
      // Of a connection that is gone there is nothing to cancel. One that hangs is not waited for.
      void body.cancel().catch(() => undefined);
    }
  }

  close(): void {
    clearTimeout(this.#timer);
    this.#signal?.removeEventListener("abort", this.#stop);
    this.#abort.abort();
  }

  /**
   * Wait for something, until this connection is aborted. Its request alone cannot say so: Node
   * forgets that a request has a signal once the request itself is garbage.
   */
  #unless<T>(work: Promise<T>): Promise<T> {
    const { signal } = this.#abort;
    return new Promise((resolve, reject) => {
      const stop = (): void => reject(new DOMException("the connection is aborted", "AbortError"));
      const leave = (): void => signal.removeEventListener("abort", stop);
      signal.addEventListener("abort", stop);
      if (signal.aborted) stop();
      work.then(resolve, reject).finally(leave);
    });
  }

  #wait(): void {
    clearTimeout(this.#timer);
    this.#timer = setTimeout(this.#stop, this.#idleMs);
  }
}

/** Tell what fetch says of a lost connection, in words of its own on each platform, as one error. */
async function failing<T>(sent: Promise<T>): Promise<T> {
  try {
    return await sent;
  } catch (error) {
    // A wrong call, or what the caller's own function throws, stays what it is.
    const name = error instanceof Error ? error.name : "";
    if (!["TypeError", "AbortError", "TimeoutError", "NetworkError"].includes(name)) throw error;
    throw new GatewayError(0, "unreachable", "the connection failed");
  }
}

function readEvent(event: ServerEvent): GatewayEvent {
  const said = JSON.parse(event.data) as never;
  switch (event.name) {
    case "resync": {
      const gap: { missed: number | null; reason: string; resume_after: string } = said;
      const { missed, reason, resume_after: resumeAfter } = gap;
      return { kind: "resync", missed, reason, resumeAfter };
    }
    case "end": {
      const end: { task_id: string; status: TaskStatus | null } = said;
      return { kind: "end", taskId: end.task_id, status: end.status };
    }
    case "expired":
      return { kind: "expired" };
    default:
      return { kind: "update", cursor: event.cursor ?? "", update: said };
  }
}

function pause(ms: number, signal?: AbortSignal): Promise<void> {
  return new Promise((resolve, reject) => {
    const stop = (): void => {
      clearTimeout(timer);
      reject(signal?.reason as Error);
    };
    const timer = setTimeout(() => {
      signal?.removeEventListener("abort", stop);
      resolve();
    }, ms);
    signal?.addEventListener("abort", stop, { once: true });
  });
}
