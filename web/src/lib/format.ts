// Numbers as people read them. Money stays in integers of millionths until it is text.

/** Millionths of a currency's unit: `€1.50`, with as many decimals as it has, at least two. */
export function money(micro: number, currency: string | null | undefined, decimals?: number): string {
  const sign = micro < 0 ? '−' : '';
  const whole = Math.trunc(Math.abs(micro) / 1_000_000);
  let fraction = String(Math.abs(micro) % 1_000_000).padStart(6, '0');
  if (decimals === undefined) fraction = fraction.replace(/0{1,4}$/, '');
  else fraction = fraction.slice(0, decimals);
  const digits = whole.toLocaleString('en', { useGrouping: true });
  const amount = fraction ? `${digits}.${fraction}` : digits;
  return currency ? `${sign}${amount} ${currency}` : `${sign}${amount}`;
}

/** A price or an amount that is about right: to a hundredth of a cent, which a bill is exact beyond. */
export function about(micro: number, currency: string | null | undefined): string {
  return money(Math.round(micro / 100) * 100, currency);
}

/** Millionths of a GPU: `0.25` */
export function gpus(ppm: number): string {
  return trim(ppm / 1_000_000, 3);
}

/** Millionths of a GPU times milliseconds, as GPU-hours. */
export function gpuHours(ppmMs: number): string {
  return (ppmMs / 1_000_000 / 3_600_000).toLocaleString('en', { maximumFractionDigits: 3 });
}

export function milli(value: number): string {
  return trim(value / 1000, 3);
}

export function percent(ppm: number, digits = 0): string {
  return `${trim(ppm / 10_000, digits)} %`;
}

function trim(value: number, digits: number): string {
  return value.toLocaleString('en', { maximumFractionDigits: digits });
}

const BINARY = ['B', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB'];

export function bytes(value: number): string {
  let unit = 0;
  let rest = value;
  while (rest >= 1024 && unit < BINARY.length - 1) {
    rest /= 1024;
    unit += 1;
  }
  return `${trim(rest, rest < 10 && unit > 0 ? 1 : 0)} ${BINARY[unit]}`;
}

export function count(value: number): string {
  return value.toLocaleString('en');
}

/** `4 s`, `3 min 20 s`, `2 h 5 min`, `3 d 4 h` */
export function duration(ms: number): string {
  const seconds = Math.max(0, Math.round(ms / 1000));
  if (seconds < 60) return `${seconds} s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) return seconds % 60 && minutes < 10 ? `${minutes} min ${seconds % 60} s` : `${minutes} min`;
  const hours = Math.floor(minutes / 60);
  if (hours < 48) return minutes % 60 ? `${hours} h ${minutes % 60} min` : `${hours} h`;
  const days = Math.floor(hours / 24);
  return hours % 24 ? `${days} d ${hours % 24} h` : `${days} d`;
}

const CLOCK = new Intl.DateTimeFormat('en-GB', { hour: '2-digit', minute: '2-digit', second: '2-digit' });
const DAY = new Intl.DateTimeFormat('en-GB', { day: 'numeric', month: 'short' });
const FULL = new Intl.DateTimeFormat('en-GB', {
  dateStyle: 'medium',
  timeStyle: 'long',
});

/** The time of day, with the date where it is another day, which is enough of another year. */
export function moment(ms: number, nowMs: number): string {
  const date = new Date(ms);
  const sameDay = date.toDateString() === new Date(nowMs).toDateString();
  if (sameDay) return CLOCK.format(date);
  if (date.getFullYear() !== new Date(nowMs).getFullYear()) return `${DAY.format(date)} ${date.getFullYear()}`;
  return `${DAY.format(date)}, ${CLOCK.format(date).slice(0, 5)}`;
}

/** With the date and the zone. */
export function exact(ms: number): string {
  return FULL.format(new Date(ms));
}

const MONTH = new Intl.DateTimeFormat('en-GB', { month: 'long', year: 'numeric', timeZone: 'UTC' });
const OF_DAY = new Intl.DateTimeFormat('en-GB', { day: 'numeric', month: 'short', year: 'numeric', timeZone: 'UTC' });

/** `October 2026`, or `1 Oct 2026 to 14 Oct 2026` with the last day, UTC; moments within days are exact. */
export function period(fromMs: number, untilMs: number): string {
  const [from, until] = [new Date(fromMs), new Date(untilMs)];
  const isOfDays = [fromMs, untilMs].every((ms) => ms % 86_400_000 === 0);
  if (!isOfDays) return `${exact(fromMs)} to ${exact(untilMs)}`;
  const isMonth = from.getUTCDate() === 1 && Date.UTC(from.getUTCFullYear(), from.getUTCMonth() + 1, 1) === until.getTime();
  return isMonth ? MONTH.format(from) : `${OF_DAY.format(from)} to ${OF_DAY.format(new Date(untilMs - 1))}`;
}

export function ago(ms: number, nowMs: number): string {
  const passed = nowMs - ms;
  return passed >= 0 ? `${duration(passed)} ago` : `in ${duration(-passed)}`;
}

/** `30min`, `2h`, `90s` as the command line takes them, in milliseconds. */
export function parseDuration(text: string): number | undefined {
  const found = /^\s*(\d+(?:\.\d+)?)\s*(ms|s|sec|m|min|h|d)?\s*$/i.exec(text);
  if (!found) return undefined;
  const unit = { ms: 1, s: 1000, sec: 1000, m: 60_000, min: 60_000, h: 3_600_000, d: 86_400_000 };
  const factor = unit[(found[2]?.toLowerCase() ?? 'min') as keyof typeof unit];
  return Math.round(Number(found[1]) * factor);
}

/** As `30min`, `2h` or `90s`: what {@link parseDuration} reads. */
export function written(ms: number): string {
  if (ms % 3_600_000 === 0) return `${ms / 3_600_000}h`;
  return ms % 60_000 === 0 ? `${ms / 60_000}min` : `${ms / 1000}s`;
}

export function plural(value: number, one: string, many = `${one}s`): string {
  return `${count(value)} ${value === 1 ? one : many}`;
}

/** As one word of a command line. */
export function quoted(text: string): string {
  return /^[\w./:=-]+$/.test(text) ? text : `'${text.replaceAll("'", `'\\''`)}'`;
}
