// Usage records as a file for spreadsheets.

import type { UsageRecord } from '../api/types';

const COLUMNS = [
  'id', 'lease', 'attempt', 'task', 'sequence', 'tenant', 'node', 'pool', 'model', 'tier', 'from_ms', 'until_ms', 'share_ppm', 'gpus',
  'memory_mib', 'used_ppm_ms', 'kernels', 'bytes_in', 'bytes_out', 'memory_peak', 'suspended', 'last',
] as const satisfies readonly (keyof UsageRecord)[];

/** The first line. The names and units are those of the API. */
export const heading = (): string => `${COLUMNS.join(',')}\r\n`;

/** One line, as RFC 4180 has it. */
export const csvLine = (record: UsageRecord): string => `${COLUMNS.map((column) => field(record[column])).join(',')}\r\n`;

function field(value: string | number | boolean | undefined): string {
  let text = String(value ?? '');
  // A spreadsheet takes text that begins so as a formula.
  if (typeof value === 'string' && /^[=+\-@\t\r]/.test(text)) text = `'${text}`;
  return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}

/** Gives the user a file of what the page has. */
export function download(name: string, content: Blob): void {
  const link = document.createElement('a');
  link.href = URL.createObjectURL(content);
  link.download = name;
  link.click();
  URL.revokeObjectURL(link.href);
}
