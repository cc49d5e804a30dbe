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
  /** What may belong to the next chunk. */
  #held = "";
  /** The parts of the line that is not over yet. To search all of it for each chunk is work by its square. */
  #parts: string[] = [];
  #name = "";
  #id: string | undefined;
  #data: string[] = [];

  /** Return the events that a chunk completes. */
  feed(chunk: Uint8Array): ServerEvent[] {
    const text = this.#held + this.#decoder.decode(chunk, { stream: true });
    // A line feed may follow in the next chunk, and belongs to this line.
    this.#held = text.endsWith("\r") ? "\r" : "";
    const lines = text.slice(0, text.length - this.#held.length).split(/\r\n|\n|\r/);
    const rest = lines.pop() ?? "";
    if (lines.length === 0) {
      this.#parts.push(rest);
      return [];
    }
    lines[0] = this.#parts.join("") + (lines[0] ?? "");
    this.#parts = [rest];
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
