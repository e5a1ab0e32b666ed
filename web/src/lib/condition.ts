// What sensors say of GPUs, in words, and how hot that is; nothing is made up where they say nothing.

import type { GpuStatus } from '../api/types';
import { count } from './format';

/** Below this a card is cold, whatever it does. */
const COLD_C = 25;
/** Where a card does not say when it slows down. */
const HOT_C = 90;
/** A card that is this near to slowing down needs a look. */
const NEAR_C = 5;

export const temperature = ({ condition }: GpuStatus): string | undefined =>
  condition?.temperature_c != null ? `${condition.temperature_c} °C` : undefined;

export const power = ({ condition }: GpuStatus): string | undefined =>
  condition?.power_mw != null ? watts(condition.power_mw) : undefined;

export function watts(mw: number): string {
  return mw >= 10_000_000 ? `${(mw / 1_000_000).toFixed(1)} kW` : `${count(Math.round(mw / 1000))} W`;
}

/** From 0, cold, to 1, where it slows down. */
export function warmth({ condition }: GpuStatus): number | undefined {
  if (condition?.temperature_c == null) return undefined;
  const hot = condition.slowdown_at_c ?? HOT_C;
  return Math.min(1, Math.max(0, (condition.temperature_c - COLD_C) / (hot - COLD_C)));
}

/** Of what it may draw; where it does not say that, of the most that any of these draws. */
export function drawn({ condition }: GpuStatus, mostMw: number): number | undefined {
  if (condition?.power_mw == null) return undefined;
  const limit = condition.power_limit_mw || mostMw;
  return limit > 0 ? Math.min(1, condition.power_mw / limit) : undefined;
}

export const isHot = ({ condition }: GpuStatus): boolean =>
  condition?.temperature_c != null && condition.temperature_c > (condition.slowdown_at_c ?? HOT_C) - NEAR_C;

export interface Sums {
  /** GPUs that report a temperature or their power. */
  known: number;
  hottest: GpuStatus | undefined;
  powerMw: number;
  measured: number;
}

export function sums(gpus: GpuStatus[]): Sums {
  const of: Sums = { known: 0, hottest: undefined, powerMw: 0, measured: 0 };
  for (const gpu of gpus) {
    if (gpu.condition) of.known += 1;
    if (gpu.condition?.power_mw != null) {
      of.powerMw += gpu.condition.power_mw;
      of.measured += 1;
    }
    if (gpu.condition?.temperature_c != null && gpu.condition.temperature_c > (of.hottest?.condition?.temperature_c ?? -1)) of.hottest = gpu;
  }
  return of;
}

/** Why there is no temperature of a GPU. */
export function whyUnknown(gpu: GpuStatus): string {
  if (!gpu.online) return 'its node does not report';
  return gpu.software ? 'a software GPU has no sensors' : 'its node has no NVML';
}

/** `CUDA 13.0`, as the driver counts it. */
export const cuda = (version: number): string => `CUDA ${Math.floor(version / 1000)}.${Math.floor((version % 1000) / 10)}`;
