// What a page has read of the API: kept current, and never shown as newer than it is.

import { ApiError, now } from '../api/client';
import { live } from './live.svelte';

type Kinds = Parameters<typeof live.on>[0];

export interface Options {
  /** Kinds of changes after which it is read again. */
  on?: Kinds;
  /** Read again after so many milliseconds, for what no stream tells. */
  everyMs?: number;
}

/** Changes that come together are one reason to read again. */
const TOGETHER_MS = 150;
/** Pauses are this many times as long as the last read took, so that a large fleet costs the server and the page no more. */
const PAUSE_OF_CHANGES = 4;
const PAUSE_OF_TIMERS = 20;

export class Resource<T> {
  value = $state.raw<T>();
  error = $state.raw<ApiError>();
  /** When the value was read, by the server's clock. */
  atMs = $state(0);
  /** Whether the last attempt to read failed. */
  failing = $state(false);
  #read: () => Promise<T>;
  #pending: ReturnType<typeof setTimeout> | undefined;
  #reading = false;
  #again = false;
  #closed = false;
  /** How long the last read took, and when it ended, by a clock that is never set. */
  #tookMs = 0;
  #endedMs = -Infinity;

  constructor(read: () => Promise<T>) {
    this.#read = read;
  }

  get isLoading(): boolean {
    return this.value === undefined && this.error === undefined;
  }

  async refresh(): Promise<void> {
    if (this.#reading) {
      this.#again = true;
      return;
    }
    this.#reading = true;
    const beganMs = performance.now();
    try {
      const value = await this.#read();
      if (this.#closed) return;
      this.value = value;
      this.error = undefined;
      this.failing = false;
      this.atMs = now();
    } catch (error) {
      if (this.#closed) return;
      this.failing = true;
      const failure = error instanceof ApiError ? error : new ApiError(0, String(error));
      // What was read before stays, marked as old; a refusal does not.
      if (!failure.isTemporary) this.value = undefined;
      if (!failure.isTemporary || this.value === undefined) this.error = failure;
    } finally {
      this.#reading = false;
      this.#endedMs = performance.now();
      this.#tookMs = this.#endedMs - beganMs;
      if (this.#again && !this.#closed) {
        this.#again = false;
        this.soon();
      }
    }
  }

  /** Reads again, once for all changes that come together. */
  soon(): void {
    this.#pending ??= setTimeout(() => {
      this.#pending = undefined;
      void this.refresh();
    }, Math.max(TOGETHER_MS, this.#tookMs * PAUSE_OF_CHANGES));
  }

  /** Whether a timer that comes now comes too soon after a read that took long. */
  get #isPausing(): boolean {
    return performance.now() - this.#endedMs < this.#tookMs * PAUSE_OF_TIMERS;
  }

  /** Keeps it current until the answer is called. */
  keep(options: Options): () => void {
    this.#closed = false;
    resources.add(this as Resource<unknown>);
    void this.refresh();
    const visible = () => !document.hidden && this.soon();
    const ends = [live.onAnew(() => this.soon())];
    if (options.on) ends.push(live.on(options.on, () => this.soon()));
    const timer = setInterval(() => {
      // What failed is tried again, also what only the stream tells of.
      if (!document.hidden && (options.everyMs || this.failing) && !this.#isPausing) void this.refresh();
    }, options.everyMs ?? 3000);
    document.addEventListener('visibilitychange', visible);
    return () => {
      this.#closed = true;
      resources.delete(this as Resource<unknown>);
      ends.forEach((end) => end());
      clearInterval(timer);
      clearTimeout(this.#pending);
      this.#pending = undefined;
      document.removeEventListener('visibilitychange', visible);
    };
  }
}

/** Those that pages show now. */
const resources = new Set<Resource<unknown>>();

/** A resource for as long as its component is there; it is read anew when what `read` depends on changes. */
export function resource<T>(read: () => Promise<T>, options: Options = {}): Resource<T> {
  const made = new Resource(read);
  $effect(() => made.keep(options));
  return made;
}

/** The moment up to which everything on the page is known, or none while all of it is current. */
export function staleSince(): number | undefined {
  let since: number | undefined;
  for (const one of resources) {
    if (one.failing && one.atMs) since = Math.min(since ?? Infinity, one.atMs);
  }
  if (!live.connected && live.lastMs) since = Math.min(since ?? Infinity, live.lastMs);
  return since;
}
