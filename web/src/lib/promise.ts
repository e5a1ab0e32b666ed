// What a tier was promised about waits for the GPU, and what was kept of it.

import type { PoolStatus, Tier } from '../api/types';
import { count, percent } from './format';

export type WaitPromise = { wait_us: number; attained_ppm: number; credit_ppm: number };
export type Promised = { wait_us: number; attained_ppm: number; waits: number; within: number };

/** Without a wait it was kept. */
export function isKept(of: Promised): boolean {
  return of.within * 1_000_000 >= of.waits * of.attained_ppm;
}

/** The part of the waits that were no longer than promised, never more than it was. */
export function attained(of: Promised): string {
  return of.within === of.waits ? '100 %' : percent(Math.floor((of.within / of.waits) * 10_000) * 100, 2);
}

export function waitText(us: number): string {
  return us % 1_000_000 === 0 ? `${us / 1_000_000} s` : `${us / 1000} ms`;
}

export const KINDS = ['premium', 'standard', 'basic'] as const;

/** What a tier is a kind of: `premium` of `premium-gold`. */
export function kindOf(tier: Tier): (typeof KINDS)[number] {
  return KINDS.find((kind) => tier === kind || tier.startsWith(`${kind}-`)) ?? 'standard';
}

/** The tiers that pools, or their personalities, have declared beside the three that there always are. */
export function ownTiers(pools: PoolStatus[]): Tier[] {
  const declared = ({ declared: pool }: PoolStatus) => [...(pool.tiers ?? []), ...(pool.personalities ?? []).flatMap((one) => one.tiers ?? [])];
  const names = pools.flatMap(declared).map((one) => (typeof one === 'string' ? one : one.name));
  return [...new Set(names)].filter((name) => !KINDS.some((kind) => kind === name)).sort();
}

/** The most of a GPU that leases of a tier get in a pool, in millionths, where it has a limit. */
export function limitOf(pool: PoolStatus, tier: Tier): number | undefined {
  const found = (pool.declared.tiers ?? []).find((one) => typeof one !== 'string' && one.name === tier);
  return typeof found === 'object' ? (found.limit_ppm ?? undefined) : undefined;
}

/** What a pool promises the leases of a tier: nothing unless its declaration says so. */
export function promiseOf(pool: PoolStatus, tier: Tier): WaitPromise | undefined {
  for (const one of pool.declared.tiers ?? []) {
    if (typeof one === 'string' || one.name !== tier || one.wait_us == null) continue;
    return { wait_us: one.wait_us, attained_ppm: one.attained_ppm ?? 0, credit_ppm: one.credit_ppm ?? 0 };
  }
  return undefined;
}

/** `99 % of waits for the GPU are at most 20 ms; a day that misses that is credited with 10 % of what the share costs` */
export function termsText(of: WaitPromise): string {
  const credit = of.credit_ppm ? `; a day that misses that is credited with ${percent(of.credit_ppm, 4)} of what the share costs` : '';
  return `${percent(of.attained_ppm, 4)} of waits for the GPU are at most ${waitText(of.wait_us)}${credit}`;
}

/** `98.2 % of 1,824 waits were within 20 ms; 99 % are promised` */
export function promiseText(of: Promised): string {
  const promised = `${percent(of.attained_ppm, 4)} are promised`;
  if (!of.waits) return `no waits yet; ${percent(of.attained_ppm, 4)} within ${waitText(of.wait_us)} are promised`;
  return `${attained(of)} of ${count(of.waits)} waits were within ${waitText(of.wait_us)}; ${promised}`;
}
