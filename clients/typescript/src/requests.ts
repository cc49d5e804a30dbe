/** A token, or a function that returns the one to use now. It is asked for each request. */
export type Token = string | (() => string | Promise<string>);

const UNAUTHORISED = 401;

/** A key that makes a call safe to repeat: give it as the header Idempotency-Key. */
export function idempotencyKey(): string {
  return globalThis.crypto.randomUUID();
}

/** Check where a gateway is. A login in a URL ends up in logs. */
export function checkBaseUrl(baseUrl: string): string {
  const url = new URL(baseUrl, globalThis.location?.href ?? "http://relative.invalid");
  if (url.username || url.password) throw new TypeError("baseUrl: credentials are given as token");
  if (url.search || url.hash) throw new TypeError("baseUrl: may have no query and no fragment");
  if (!/^https?:$/.test(url.protocol)) throw new TypeError("baseUrl: http or https is needed");
  if (url.hostname === "relative.invalid") {
    throw new TypeError("baseUrl: only a page may leave out the origin");
  }
  return url.href.replace(/\/+$/, "");
}

/** Write an id as a part of a path. */
export function pathPart(name: string, value: unknown): string {
  const text = String(value);
  // Every URL parser takes such parts out of a path, also encoded ones.
  if (value === undefined || text === "." || text === "..") {
    throw new TypeError(`${name}: this id can be no part of a URL`);
  }
  return encodeURIComponent(text);
}

/** Send requests with the caller's token, and once more with a newer one after a 401. */
export function authorised(token?: Token, given?: typeof fetch): (r: Request) => Promise<Response> {
  const send = (request: Request): Promise<Response> => (given ?? globalThis.fetch)(request);
  const now = async (): Promise<string | undefined> =>
    typeof token === "function" ? token() : token;
  return async (request) => {
    const first = await now();
    if (first === undefined) return send(request);
    const again = typeof token === "function" ? request.clone() : undefined;
    request.headers.set("authorization", `Bearer ${first}`);
    const response = await send(request);
    if (response.status !== UNAUTHORISED || again === undefined) return response;
    // It was refused before anything happened.
    const newer = await now();
    if (newer === undefined || newer === first) return response;
    await response.body?.cancel();
    again.headers.set("authorization", `Bearer ${newer}`);
    return send(again);
  };
}
