// What becomes of leases, in words.

import { bytes, gpus as share } from './format';

/** What became of a lease, as entries of the audit log name it. */
export const EVENTS: Record<string, string> = {
  'lease.requested': 'Asked for',
  'lease.sized': 'Given another size',
  'lease.granted': 'Got a place',
  'lease.grown': 'Got further tasks',
  'lease.resizing': 'Another size was asked for',
  'lease.resized': 'Has another size',
  'lease.resize_refused': 'Keeps its size',
  'lease.moving': 'Sent to another node',
  'lease.moved': 'Has moved',
  'lease.move_refused': 'Stays where it is',
  'lease.idle': 'Idles',
  'lease.idle_suspended': 'Suspended while idle',
  'lease.woken': 'Computes again',
  'lease.preempted': 'Told to make room',
  'lease.refused': 'A node refused it',
  'lease.requeued': 'Waits again',
  'lease.ended': 'Ended',
};

/** What an entry says beside that: why, where, how much. */
export function eventText(of: unknown): string {
  const detail = (of ?? {}) as Record<string, unknown>;
  const parts: string[] = [];
  if (typeof detail['reason'] === 'string') parts.push(detail['reason']);
  if (typeof detail['share_ppm'] === 'number' && detail['share_ppm']) parts.push(`${share(detail['share_ppm'])} GPU`);
  if (typeof detail['memory'] === 'number' && detail['memory']) parts.push(bytes(detail['memory']));
  if (detail['suspended'] === true) parts.push('suspended');
  if (typeof detail['from'] === 'string') parts.push(`from ${detail['from']}`);
  if (typeof detail['node'] === 'string') parts.push(`to ${detail['node']}${Array.isArray(detail['gpus']) ? `/${detail['gpus'].join(',')}` : ''}`);
  const places = detail['places'];
  if (Array.isArray(places)) {
    const names = places.map((place: { node?: unknown; gpus?: unknown }) => `${String(place.node)}${Array.isArray(place.gpus) ? `/${place.gpus.join(',')}` : ''}`);
    if (names.length) parts.push(`on ${names.join(', ')}`);
  }
  if (detail['for'] != null) parts.push(`for lease ${String(detail['for'])}`);
  return parts.join(' · ');
}
