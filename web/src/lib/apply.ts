// Declarations: what `sluice apply` does.

import { answer, api, onceKey } from '../api/client';
import type { components } from '../api/schema';

export type Applied = components['schemas']['Applied'];

/** Declares tenants, pools, prices and so on; what it does not mention stays. JSON is YAML. */
export function apply(declaration: object): Promise<Applied> {
  return applyText(JSON.stringify(declaration));
}

/** The same as a person writes it. With a tag nothing is done if what is declared has changed since. */
export function applyText(text: string, { dryRun = false, tag = '' } = {}): Promise<Applied> {
  return answer(
    api.POST('/api/v1/apply', {
      params: { query: { dry_run: dryRun }, header: { ...(dryRun ? {} : onceKey()), ...(tag ? { 'If-Match': tag } : {}) } },
      body: text as never,
      bodySerializer: (body: unknown) => body as string,
      headers: { 'content-type': 'application/yaml' },
    }),
  );
}

/** All that is declared, as a file for `sluice apply`, and the tag of it. */
export async function declaration(): Promise<{ text: string; tag: string }> {
  const request = api.GET('/api/v1/declaration', { headers: { accept: 'application/yaml' }, parseAs: 'text' });
  const [text, { response }] = await Promise.all([answer(request), request]);
  return { text: text as unknown as string, tag: response.headers.get('etag') ?? '' };
}
