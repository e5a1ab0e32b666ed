// The one way to the API: typed requests with the session's cookie, and refusals as errors with what the server said.

import createClient, { type Middleware } from 'openapi-fetch';

import type { paths } from './schema';
import type { Page, Problem } from './types';

/** A refusal of the API (RFC 9457), or a server that did not answer. */
export class ApiError extends Error {
  constructor(
    readonly status: number,
    readonly detail: string,
    readonly field?: string | null,
  ) {
    super(detail);
  }

  /** Whether asking again later may help. */
  get isTemporary(): boolean {
    return this.status === 0 || this.status === 429 || this.status >= 500;
  }
}

let csrf = '';
let clockOffsetMs = 0;
let onSignedOut: () => void = () => {};

/** The value that requests under the session need to change anything. */
export function setCsrf(value: string): void {
  csrf = value;
}

/** What happens when the server knows the session no more. */
export function whenSignedOut(callback: () => void): void {
  onSignedOut = callback;
}

/** The server's clock, as far as its answers tell: durations do not depend on the browser's. */
export function now(): number {
  return Date.now() + clockOffsetMs;
}

function noteClock(response: Response): void {
  const date = Date.parse(response.headers.get('date') ?? '');
  // The header has whole seconds; less than two are no difference.
  const offset = date - Date.now();
  if (Number.isFinite(offset)) clockOffsetMs = Math.abs(offset) > 2000 ? offset : 0;
}

const middleware: Middleware = {
  onRequest({ request }) {
    if (!['GET', 'HEAD'].includes(request.method)) request.headers.set('Sluice-CSRF', csrf);
    return request;
  },
  onResponse({ response, schemaPath }) {
    noteClock(response);
    if (response.status === 401 && schemaPath !== '/api/v1/session') onSignedOut();
    return response;
  },
};

export const api = createClient<paths>({ baseUrl: '', cache: 'no-store', credentials: 'same-origin' });
api.use(middleware);

/** The answer of a request, or an {@link ApiError}. */
export async function answer<T>(
  request: Promise<{ data?: T; error?: unknown; response: Response }>,
): Promise<T> {
  let result;
  try {
    result = await request;
  } catch {
    throw new ApiError(0, 'the server did not answer');
  }
  if (result.data !== undefined) return result.data;
  const problem = result.error as Partial<Problem> | undefined;
  const detail = problem?.detail ?? `the server answered ${result.response.status}`;
  throw new ApiError(result.response.status, detail, problem?.field);
}

/** All pages of a list, up to a number of items. */
export async function all<T>(
  page: (cursor: string | undefined) => Promise<{ data?: Page<T>; error?: unknown; response: Response }>,
  max = 50_000,
): Promise<T[]> {
  const items: T[] = [];
  let cursor: string | undefined;
  do {
    const { items: more, next } = await answer(page(cursor));
    items.push(...more);
    cursor = next ?? undefined;
  } while (cursor && items.length < max);
  return items;
}

/** A key under which a request is done once, however often it is sent. */
export function onceKey(): { 'Idempotency-Key': string } {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return { 'Idempotency-Key': Array.from(bytes, (byte) => byte.toString(16).padStart(2, '0')).join('') };
}
