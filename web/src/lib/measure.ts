// What a lease's programs get, from one look at their counters to the next.

import type { SessionStatus } from '../api/types';

export interface Sample {
  atMs: number;
  /** GPUs that computed for it, 1 for a whole one; null before there are two looks. */
  given: number | null;
  /** Bytes, and those of them that are in the memory of the node. */
  memory: number;
  swapped: number;
  /** Bytes a second, both ways. */
  link: number | null;
  counters: Map<string, { busyUs: number; ageMs: number; bytes: number }>;
}

/** A few minutes of looks. */
const SAMPLES_MAX = 180;

/** The looks of before and this one. Counters of a session that its node has not reported anew make no sample. */
export function measure(before: Sample[], sessions: SessionStatus[], atMs: number): Sample[] {
  if (!sessions.length) return before;
  const counters = new Map(
    sessions.map((one) => [
      `${one.node}/${one.session}/${one.gpu}`,
      { busyUs: one.busy_us, ageMs: one.age_ms, bytes: one.bytes_in + one.bytes_out },
    ]),
  );
  const last = before.at(-1);
  let [given, link, isNew] = [0, 0, false];
  for (const [key, counter] of counters) {
    const known = last?.counters.get(key);
    const passedMs = known ? counter.ageMs - known.ageMs : 0;
    if (!known || passedMs <= 0) continue;
    isNew = true;
    given += (counter.busyUs - known.busyUs) / 1000 / passedMs;
    link += ((counter.bytes - known.bytes) / passedMs) * 1000;
  }
  if (last && !isNew && last.counters.size === counters.size) return before;
  const memory = sessions.reduce((sum, one) => sum + one.memory_used, 0);
  const swapped = sessions.reduce((sum, one) => sum + (one.memory_swapped ?? 0), 0);
  const sample = { atMs, given: isNew ? given : null, memory, swapped, link: isNew ? link : null, counters };
  return [...before.slice(1 - SAMPLES_MAX), sample];
}
