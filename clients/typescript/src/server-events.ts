/** One server-sent event. `cursor` is the id that the stream has at it. */
export interface ServerEvent {
  name: string;
  data: string;
  cursor: string | undefined;
}

/** Read server-sent events from chunks of any size, as the specification of HTML says. */
export class EventReader {
  /** The id of the last whole event. */
  cursor: string | undefined;
  /** After how long to connect again, if the server said so. */
  retryMs: number | undefined;
  readonly #decoder = new TextDecoder();
  #rest = "";
  #name = "";
  #id: string | undefined;
  #data: string[] = [];

  /** Return the events that a chunk completes. */
  feed(chunk: Uint8Array): ServerEvent[] {
    let text = this.#rest + this.#decoder.decode(chunk, { stream: true });
    // A line feed may follow in the next chunk, and belongs to this line.
    const held = text.endsWith("\r") ? "\r" : "";
    if (held) text = text.slice(0, -1);
    const lines = text.split(/\r\n|\n|\r/);
    this.#rest = (lines.pop() ?? "") + held;
    return lines.map((line) => this.#line(line)).filter((event) => event !== undefined);
  }

  #line(line: string): ServerEvent | undefined {
    if (line === "") return this.#dispatch();
    const colon = line.indexOf(":");
    const name = colon < 0 ? line : line.slice(0, colon);
    const value = colon < 0 ? "" : line.slice(colon + 1).replace(/^ /, "");
    if (name === "data") this.#data.push(value);
    else if (name === "event") this.#name = value;
    else if (name === "id" && !value.includes("\0")) this.#id = value;
    else if (name === "retry" && /^[0-9]{1,9}$/.test(value)) this.retryMs = Number(value);
    return undefined;
  }

  #dispatch(): ServerEvent | undefined {
    this.cursor = this.#id;
    const data = this.#data;
    const name = this.#name || "message";
    this.#data = [];
    this.#name = "";
    return data.length > 0 ? { name, data: data.join("\n"), cursor: this.cursor } : undefined;
  }
}
