// The time, once a second, by the server's clock.

import { now } from '../api/client';

class Clock {
  ms = $state(now());

  constructor() {
    setInterval(() => {
      if (!document.hidden) this.ms = now();
    }, 1000);
    document.addEventListener('visibilitychange', () => (this.ms = now()));
  }
}

/** The time on pages. What is read from the server takes {@link now}, or it would be read each second. */
export const clock = new Clock();

/** When this month began, or one so many months from it, UTC. Reading it reads nothing again. */
export function monthBegin(months = 0): number {
  const today = new Date(now());
  return Date.UTC(today.getUTCFullYear(), today.getUTCMonth() + months, 1);
}
