/** What a gateway, or a proxy before it, answers instead of a stream. */
export class GatewayError extends Error {
  override readonly name = "GatewayError";

  constructor(
    readonly status: number,
    readonly code: string,
    message: string,
    readonly facts: Readonly<Record<string, unknown>> = {},
  ) {
    super(message);
  }

  /** Whether it may be over soon. */
  get passing(): boolean {
    return [0, 408, 429, 502, 503, 504].includes(this.status);
  }

  /** Read the error of an answer. */
  static async of(response: Response): Promise<GatewayError> {
    try {
      const { error } = (await response.json()) as { error: { code: string; message: string } };
      const { code, message, ...facts } = error;
      return new GatewayError(response.status, code, message, facts);
    } catch {
      const message = `no gateway has answered: status ${response.status}`;
      return new GatewayError(response.status, "foreign", message);
    }
  }
}
