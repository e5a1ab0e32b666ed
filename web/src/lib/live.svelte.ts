// The watch stream of the server: what changes is heard as it changes, and after a cut it resumes where it was.

import { now } from '../api/client';
import type { Lease } from '../api/types';

type Kind = 'lease' | 'tenant' | 'node' | 'gpu' | 'pool' | 'price' | 'anew';
type Listener = (lease: Lease | undefined) => void;

/** A stream on which nothing comes says so every 15 s; one that is silent for longer is dead. */
const SILENCE_MS = 40_000;
const RETRY_MS = 1000;
const RETRY_MAX_MS = 10_000;

class Live {
  /** Whether the stream is open. */
  connected = $state(false);
  /** When it was last known to be, by the server's clock. */
  lastMs = $state(0);
  #listeners = new Map<Kind, Set<Listener>>();
  #everything = new Set<() => void>();
  #lastId = '';
  #stop: AbortController | undefined;

  /** Listens until {@link stop}. Hidden pages do not listen: a token has eight streams. */
  start(): void {
    if (this.#stop) return;
    const stop = new AbortController();
    this.#stop = stop;
    document.addEventListener('visibilitychange', () => this.#cut(), { signal: stop.signal });
    void this.#run(stop.signal);
  }

  stop(): void {
    this.#stop?.abort();
    this.#stop = undefined;
    this.#request?.abort();
    this.#lastId = '';
    this.connected = false;
  }

  /** Calls back for every change of a kind; the answer ends that. */
  on(kinds: readonly Kind[], listener: Listener): () => void {
    for (const kind of kinds) {
      const listeners = this.#listeners.get(kind) ?? new Set();
      this.#listeners.set(kind, listeners.add(listener));
    }
    return () => kinds.forEach((kind) => this.#listeners.get(kind)?.delete(listener));
  }

  /** Calls back when everything has to be read again. */
  onAnew(listener: () => void): () => void {
    this.#everything.add(listener);
    return () => this.#everything.delete(listener);
  }

  #request: AbortController | undefined;

  #cut(): void {
    if (document.hidden) this.#request?.abort();
    else this.#wake?.();
  }

  #wake: (() => void) | undefined;

  async #run(stop: AbortSignal): Promise<void> {
    let retryMs = RETRY_MS;
    while (!stop.aborted) {
      if (!document.hidden) {
        const began = Date.now();
        await this.#listen(stop).catch(() => {});
        this.connected = false;
        if (Date.now() - began > RETRY_MAX_MS) retryMs = RETRY_MS;
      }
      if (stop.aborted) return;
      await this.#pause(document.hidden ? 3_600_000 : retryMs);
      retryMs = Math.min(retryMs * 1.6, RETRY_MAX_MS);
      if (!document.hidden && this.#wake === undefined) retryMs = Math.max(retryMs, RETRY_MS);
    }
  }

  #pause(ms: number): Promise<void> {
    return new Promise((resolve) => {
      const done = () => {
        clearTimeout(timer);
        this.#wake = undefined;
        resolve();
      };
      const timer = setTimeout(done, ms);
      this.#wake = done;
    });
  }

  async #listen(stop: AbortSignal): Promise<void> {
    const request = new AbortController();
    this.#request = request;
    stop.addEventListener('abort', () => request.abort(), { once: true });
    const headers: Record<string, string> = this.#lastId ? { 'Last-Event-ID': this.#lastId } : {};
    const response = await fetch('/api/v1/watch', { headers, cache: 'no-store', signal: request.signal });
    if (!response.ok || !response.body) throw new Error(String(response.status));
    this.connected = true;
    this.lastMs = now();
    // Whatever changed while nobody listened may be in no event: what is not a lease is read again.
    this.#everything.forEach((listener) => listener());
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = '';
    for (;;) {
      const silence = setTimeout(() => request.abort(), SILENCE_MS);
      const { done, value } = await reader.read().finally(() => clearTimeout(silence));
      if (done) return;
      this.lastMs = now();
      const events = (rest + value).split('\n\n');
      rest = events.pop() ?? '';
      events.forEach((event) => this.#take(event));
    }
  }

  #take(text: string): void {
    let kind = '';
    let data = '';
    for (const line of text.split('\n')) {
      const [, field, value] = /^([a-z]+): ?(.*)$/.exec(line) ?? [];
      if (field === 'id') this.#lastId = value ?? '';
      else if (field === 'event') kind = value ?? '';
      else if (field === 'data') data += value;
    }
    if (kind === 'anew') {
      this.#lastId = '';
      this.#everything.forEach((listener) => listener());
      return;
    }
    if (!data || kind === 'begin') return;
    const lease = kind === 'lease' ? (JSON.parse(data) as Lease) : undefined;
    this.#listeners.get(kind as Kind)?.forEach((listener) => listener(lease));
  }
}

export const live = new Live();
