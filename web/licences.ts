// The licences of the packages whose code is in what is built: they ask that their text goes with it.

import { existsSync, readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';

import type { Plugin } from 'vite';

const PACKAGE = /^(.*\/node_modules\/((?:@[^/]+\/)?[^/]+))\//;

/** Writes `licences.txt` beside the page; a package without a licence's text stops the build. */
export function licences(): Plugin {
  return {
    name: 'licences',
    generateBundle(_, bundle) {
      const packages = new Map<string, string>();
      for (const chunk of Object.values(bundle)) {
        for (const id of chunk.type === 'chunk' ? Object.keys(chunk.modules) : []) {
          const [, folder, name] = PACKAGE.exec(id) ?? [];
          if (folder && name) packages.set(name, folder);
        }
      }
      const texts = [...packages].sort(([one], [other]) => (one < other ? -1 : 1)).map(([name, folder]) => {
        const file = existsSync(folder) ? readdirSync(folder).find((entry) => /^licen[cs]e/i.test(entry)) : undefined;
        if (!file) throw new Error(`${name} has no text of its licence`);
        return `${name}\n\n${readFileSync(join(folder, file), 'utf8').trim()}\n`;
      });
      this.emitFile({ type: 'asset', fileName: 'licences.txt', source: texts.join(`\n${'-'.repeat(80)}\n\n`) });
    },
  };
}
