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

export const clock = new Clock();
