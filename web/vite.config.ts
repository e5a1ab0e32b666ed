import { svelte } from '@sveltejs/vite-plugin-svelte';
import { defineConfig, loadEnv } from 'vite';

import { licences } from './licences';

// `npm run dev` shows the sources as they are edited, against a server that runs already.
export default defineConfig(({ mode }) => ({
  plugins: [svelte(), licences()],
  build: {
    // A content security policy without inline parts: nothing becomes a data URL, and no polyfill is injected.
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
    target: 'es2022',
    emptyOutDir: true,
    reportCompressedSize: true,
  },
  server: {
    proxy: { '/api': loadEnv(mode, '.', 'SLUICE_')['SLUICE_SERVER'] ?? 'http://127.0.0.1:7580' },
  },
}));
