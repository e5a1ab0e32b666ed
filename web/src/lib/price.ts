// What a lease costs an hour, by the prices that are declared: the rule of the server's bills, for a form that is being filled in.

import type { GpuStatus, Price, Tier } from '../api/types';

/** GFLOPS of a unit. */
const UNIT_GFLOPS = 1000n;
const GPU_PPM = 1_000_000n;
const GIB = 1n << 30n;

interface Goods {
  tier: Tier;
  pool: string;
  model: string;
  gflops: number;
}

/** The price that counts: the one that names the most of tier, pool and model, then the one per unit, then the latest. */
function priceAt(prices: Price[], meter: Price['meter'], goods: Goods, atMs: number): Price | undefined {
  const named = (price: Price) => [price.tier, price.pool, price.model].filter((part) => part != null).length;
  const rank = (price: Price): [number, number, number] => [named(price), price.per === 'unit' ? 1 : 0, price.from_ms ?? 0];
  const fits = prices.filter(
    (price) =>
      price.meter === meter &&
      (price.tier == null || price.tier === goods.tier) &&
      (price.pool == null || price.pool === goods.pool) &&
      (price.model == null || price.model === goods.model) &&
      (price.per !== 'unit' || goods.gflops > 0) &&
      (price.from_ms ?? 0) <= atMs &&
      (price.until_ms == null || atMs < price.until_ms),
  );
  return fits.reduce<Price | undefined>((best, price) => {
    if (!best) return price;
    const [one, other] = [rank(price), rank(best)];
    const differs = one.findIndex((part, index) => part !== other[index]);
    return differs < 0 || one[differs]! > other[differs]! ? price : best;
  }, undefined);
}

export interface Shape {
  tier: Tier;
  share_ppm: number;
  memory: number;
  gpus: number;
  tasks: number;
}

/** Millionths an hour on this GPU, for what is held; what is used comes on top where use has a price. */
export function perHour(prices: Price[], gpu: GpuStatus, shape: Shape, atMs: number): number {
  const goods = { tier: shape.tier, pool: gpu.pool ?? 'default', model: gpu.name, gflops: gpu.gflops ?? 0 };
  const many = BigInt(shape.gpus * shape.tasks);
  const reserved = priceAt(prices, 'reserved', goods, atMs);
  const memory = priceAt(prices, 'memory', goods, atMs);
  const bytes = shape.memory || Math.floor((gpu.memory * shape.share_ppm) / 1_000_000);
  let micro = 0n;
  if (reserved) {
    const times = reserved.per === 'unit' ? BigInt(goods.gflops) : 1n;
    const of = reserved.per === 'unit' ? GPU_PPM * UNIT_GFLOPS : GPU_PPM;
    micro += rounded(BigInt(reserved.micro) * BigInt(shape.share_ppm) * times, of);
  }
  if (memory) micro += rounded(BigInt(memory.micro) * BigInt(bytes), GIB);
  return Number(micro * many);
}

const rounded = (product: bigint, by: bigint): bigint => (product + by / 2n) / by;
