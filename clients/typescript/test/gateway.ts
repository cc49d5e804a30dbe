/** A real gateway, with its pool and its server, for the tests. */
import { spawn, type ChildProcess } from "node:child_process";
import { createInterface } from "node:readline";
import { fileURLToPath } from "node:url";

// Compiled, this file is in clients/typescript/build/test.
const CHECKOUT = fileURLToPath(new URL("../../../../", import.meta.url));
const PYTHON = process.env["REDIS_STATE_PYTHON"] ?? `${CHECKOUT}.venv/bin/python`;

export interface Served {
  url: string;
  /** May do everything. */
  token: string;
  /** May decide pauses of the tag finance, as ann. */
  ann: string;
}

export class Gateway {
  private constructor(
    readonly served: Served,
    private readonly process: ChildProcess,
    private readonly lines: AsyncIterator<string>,
  ) {}

  static async start(): Promise<Gateway> {
    const child = spawn(PYTHON, ["-m", "tests.processes.serve_gateway"], {
      cwd: CHECKOUT,
      stdio: ["pipe", "pipe", "inherit"],
    });
    const lines = createInterface({ input: child.stdout })[Symbol.asyncIterator]();
    const first = await lines.next();
    if (first.done) throw new Error("the gateway has not started");
    return new Gateway(JSON.parse(first.value) as Served, child, lines);
  }

  /** Do what `tests/processes/serve_gateway.py` knows. */
  async tell(command: string): Promise<{ token: string }> {
    this.process.stdin?.write(`${command}\n`);
    const { value } = await this.lines.next();
    return JSON.parse(value) as { token: string };
  }

  async stop(): Promise<void> {
    const ended = new Promise((resolve) => this.process.once("exit", resolve));
    this.process.stdin?.end();
    await ended;
  }
}
