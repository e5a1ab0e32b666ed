// The tiers of a pool, or of one of its personalities, as a form has them.

import type { PoolStatus, Tier } from '../api/types';
import { KINDS } from './promise';

export type PoolTier = NonNullable<PoolStatus['declared']['tiers']>[number];

/** What the form has of a tier. */
export interface TierForm {
  name: Tier;
  served: boolean;
  wait: string;
  attained: string;
  credit: string;
  limit: string;
}

const percentOf = (ppm: number) => `${ppm / 10_000}%`;

export const newTier = (name: Tier, served = true): TierForm => ({ name, served, wait: '', attained: '99%', credit: '', limit: '' });

/** The three that there always are, and the own ones that are declared. */
export function formOf(tiers: PoolTier[]): TierForm[] {
  const forms: TierForm[] = KINDS.map((name) => newTier(name, false));
  for (const one of tiers) {
    const name = typeof one === 'string' ? one : one.name;
    let form = forms.find((known) => known.name === name);
    if (!form) forms.push((form = newTier(name)));
    form.served = true;
    if (typeof one === 'string') continue;
    if (one.wait_us != null) {
      form.wait = `${one.wait_us / 1000}ms`;
      form.attained = percentOf(one.attained_ppm ?? 0);
      form.credit = one.credit_ppm ? percentOf(one.credit_ppm) : '';
    }
    form.limit = one.limit_ppm == null ? '' : percentOf(one.limit_ppm);
  }
  return forms;
}

/** As they are declared: a name, or what the tier promises. */
export function declaredTiers(forms: TierForm[]) {
  return forms.filter(({ served }) => served).map(({ name, wait, attained, credit, limit }) => {
    const limited = limit.trim() ? { limit: limit.trim() } : {};
    if (!wait.trim()) return limit.trim() ? { name, ...limited } : name;
    return { name, wait: wait.trim(), ...(attained.trim() ? { attained: attained.trim() } : {}), ...(credit.trim() ? { credit: credit.trim() } : {}), ...limited };
  });
}

/** What is wrong about the name of an own tier; the server says what else is. */
export function nameProblem(name: string, forms: TierForm[]): string | undefined {
  if (forms.some((known) => known.name === name)) return `${name} is in the list already`;
  return KINDS.some((kind) => name.startsWith(`${kind}-`)) ? undefined : 'It begins with what it is a kind of, such as premium-gold or basic-night';
}
