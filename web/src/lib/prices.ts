// What something costs now, as the ledger prices it: prices of the personality that a pool has now count first, then, of the prices
// that hold, the one that names the most, and of those the latest.

import type { GpuStatus, PoolStatus, Price, Tier } from '../api/types';
import { kindOf, KINDS } from './promise';

/** What is metered, as pages name it. */
export const METERS: Record<Price['meter'], string> = {
  reserved: 'Reserved compute',
  used: 'Used compute',
  suspended: 'Suspended compute',
  memory: 'Memory',
  transfer: 'Transfer',
};

/** What a price is for one of. */
export function unitOf({ meter, per }: { meter: Price['meter']; per?: string | null | undefined }): string {
  if (meter === 'memory') return 'GiB-hour';
  if (meter === 'transfer') return 'GiB';
  return per === 'unit' ? 'unit-hour' : 'GPU-hour';
}

interface Goods {
  pool: string;
  model: string;
  tier: Tier;
  gflops: number;
}

type PoolPrice = NonNullable<NonNullable<PoolStatus['declared']['personalities']>[number]['prices']>[number];

/** Whether a price for this tier is one for leases of another: an own tier without a price of its own costs what its kind does. */
const isFor = (priced: Tier | null | undefined, tier: Tier) => priced == null || priced === tier || priced === kindOf(tier);

/** Of two prices that hold the one with the larger rank counts, and of equal ones the later. */
function best<T>(prices: T[], rank: (price: T) => number[]): T | undefined {
  let found: T | undefined;
  for (const price of prices) {
    const [now, before] = [rank(price), found ? rank(found) : undefined];
    const differs = before ? now.findIndex((value, at) => value !== before[at]) : 0;
    if (!before || differs < 0 || now[differs]! > before[differs]!) found = price;
  }
  return found;
}

const isOwn = (priced: Tier | null | undefined, tier: Tier) => Number(priced === tier && !KINDS.some((kind) => kind === tier));

/** The prices of the personality that a pool has now. */
function ofPersonality(pools: PoolStatus[], name: string): PoolPrice[] {
  const pool = pools.find((one) => one.declared.name === name);
  const personality = pool?.personality ? (pool.declared.personalities ?? []).find((one) => one.name === pool.personality) : undefined;
  return personality?.prices ?? [];
}

/** The price of a GPU-hour in millionths, or none where it has no price. */
export function perGpuHour(prices: Price[], pools: PoolStatus[], meter: Price['meter'], goods: Goods, nowMs: number): number | undefined {
  const fits = (price: Price | PoolPrice) =>
    price.meter === meter && isFor(price.tier, goods.tier) && (price.model == null || price.model === goods.model) && (price.per !== 'unit' || goods.gflops > 0);
  const perUnit = (price: { per?: string | null | undefined }) => (price.per === 'unit' ? 1 : 0);
  const own = best(ofPersonality(pools, goods.pool).filter(fits), (price) => [
    isOwn(price.tier, goods.tier),
    Number(price.tier != null) + Number(price.model != null),
    perUnit(price),
  ]);
  const holds = (price: Price) => fits(price) && (price.pool == null || price.pool === goods.pool) && (price.from_ms ?? 0) <= nowMs && (price.until_ms == null || nowMs < price.until_ms);
  const counts =
    own ??
    best(prices.filter(holds), (price) => [
      isOwn(price.tier, goods.tier),
      Number(price.tier != null) + Number(price.pool != null) + Number(price.model != null),
      perUnit(price),
      price.from_ms ?? 0,
    ]);
  if (!counts) return undefined;
  // What is declared as a decimal is answered in millionths.
  const micro = counts.micro ?? 0;
  return counts.per === 'unit' ? (micro * goods.gflops) / 1000 : micro;
}

/** The price of an hour of a whole GPU that is reserved. */
export function reservedHour(prices: Price[], pools: PoolStatus[], gpu: GpuStatus, nowMs: number, tier: Tier = 'standard'): number | undefined {
  return perGpuHour(prices, pools, 'reserved', { pool: gpu.pool ?? 'default', model: gpu.name, tier, gflops: gpu.gflops ?? 0 }, nowMs);
}
