// Declarations: what `sluice apply` does.

import { answer, api, onceKey } from '../api/client';
import type { components } from '../api/schema';

type Applied = components['schemas']['Applied'];

/** Declares tenants, pools, prices and so on; what it does not mention stays. JSON is YAML. */
export function apply(declaration: object, ifMatch?: string): Promise<Applied> {
  return answer(
    api.POST('/api/v1/apply', {
      params: { header: { ...onceKey(), ...(ifMatch ? { 'If-Match': ifMatch } : {}) } },
      body: declaration as never,
      bodySerializer: (body: unknown) => JSON.stringify(body),
      headers: { 'content-type': 'application/yaml' },
    }),
  );
}
