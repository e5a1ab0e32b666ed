// What something costs now, as the ledger prices it: of the prices that hold, the one that names the most counts, and of those
// the latest.

import type { GpuStatus, Price } from '../api/types';

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
  tier: string;
  gflops: number;
}

const named = (price: Price) => Number(price.tier != null) + Number(price.pool != null) + Number(price.model != null);

/** The price of a GPU-hour in millionths, or none where it has no price. Prices of a pool's personalities are not known here. */
export function perGpuHour(prices: Price[], meter: Price['meter'], goods: Goods, nowMs: number): number | undefined {
  const holds = (price: Price) =>
    price.meter === meter &&
    (price.tier == null || price.tier === goods.tier) &&
    (price.pool == null || price.pool === goods.pool) &&
    (price.model == null || price.model === goods.model) &&
    (price.per !== 'unit' || goods.gflops > 0) &&
    (price.from_ms ?? 0) <= nowMs &&
    (price.until_ms == null || nowMs < price.until_ms);
  const rank = (price: Price) => [named(price), price.per === 'unit' ? 1 : 0, price.from_ms ?? 0] as const;
  let best: Price | undefined;
  for (const price of prices.filter(holds)) {
    const [now, before] = [rank(price), best ? rank(best) : undefined];
    const differs = before ? now.findIndex((value, at) => value !== before[at]) : 0;
    if (!before || differs < 0 || now[differs]! > before[differs]!) best = price;
  }
  if (!best) return undefined;
  return best.per === 'unit' ? (best.micro * goods.gflops) / 1000 : best.micro;
}

/** The price of an hour of a whole GPU that is reserved. */
export function reservedHour(prices: Price[], gpu: GpuStatus, nowMs: number, tier = 'standard'): number | undefined {
  return perGpuHour(prices, 'reserved', { pool: gpu.pool ?? 'default', model: gpu.name, tier, gflops: gpu.gflops ?? 0 }, nowMs);
}
