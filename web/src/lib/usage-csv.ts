// Usage records as a file for spreadsheets.

import type { UsageRecord } from '../api/types';
import { line } from './csv';

const COLUMNS = [
  'id', 'lease', 'attempt', 'task', 'sequence', 'tenant', 'node', 'pool', 'model', 'tier', 'from_ms', 'until_ms', 'share_ppm', 'gpus',
  'memory_mib', 'used_ppm_ms', 'kernels', 'bytes_in', 'bytes_out', 'memory_peak', 'suspended', 'last',
] as const satisfies readonly (keyof UsageRecord)[];

/** The first line. The names and units are those of the API. */
export const heading = (): string => line([...COLUMNS]);

export const csvLine = (record: UsageRecord): string => line(COLUMNS.map((column) => record[column]));
