/**
 * A client of a redis_state gateway: typed calls, and streams that lose no row.
 *
 *     const client = createGatewayClient({ baseUrl: "/agents", token: () => freshToken() });
 *     const { data, error } = await client.api.POST("/v1/tasks", { body: { ... } });
 *     for await (const event of client.events("s-1", { task: "t-1" })) { ... }
 */
import createClient, { type Client } from "openapi-fetch";

import { EventStream, type EventsOptions } from "./events.js";
import { authorised, checkBaseUrl, pathPart, type Token } from "./requests.js";
import type { components, paths } from "./schema.js";

export { EventStream } from "./events.js";
export type { EventsOptions, GatewayEvent, StateUpdate, TaskStatus, UpdateType } from "./events.js";
export { GatewayError } from "./errors.js";
export { idempotencyKey } from "./requests.js";
export type { Token } from "./requests.js";
export type { components, operations, paths } from "./schema.js";

/** The shapes of bodies and answers, by their names in the description of the gateway. */
export type Schemas = components["schemas"];

export interface GatewayOptions {
  /** Where the gateway is mounted. A page may give a path of its own origin. */
  baseUrl: string;
  /** What the gateway knows the caller by, or a function that returns the token to use now. */
  token?: Token;
  /** Another fetch than that of the platform. */
  fetch?: typeof globalThis.fetch;
}

export interface GatewayClient {
  /** Calls by method and path, typed by the gateway's description. See openapi-fetch. */
  api: Client<paths>;
  /** The updates of a session, once each and in order, however often the connection breaks. */
  events(session: string, options?: EventsOptions): EventStream;
}

/** Make a client. It opens nothing by itself. */
export function createGatewayClient(options: GatewayOptions): GatewayClient {
  const baseUrl = checkBaseUrl(options.baseUrl);
  const send = authorised(options.token, options.fetch);
  const api = createClient<paths>({
    baseUrl,
    fetch: send,
    pathSerializer: (path, parts) =>
      path.replace(/\{(\w+)\}/g, (_, name: string) => pathPart(name, parts[name])),
    // A list is repeated: status=FAILED&status=CANCELLED.
    querySerializer: { array: { style: "form", explode: true } },
  });
  return {
    api,
    events: (session, more = {}) => new EventStream(baseUrl, send, session, more),
  };
}
