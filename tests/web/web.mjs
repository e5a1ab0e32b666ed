// The web view of a real installation, in a real browser, in each role.
//
// Parts that do not disturb each other run beside each other.

import assert from 'node:assert/strict';
import { readFile } from 'node:fs/promises';

import { chromium } from 'playwright-core';

import { administration, fairShares, identity, micro } from './administration.mjs';
import { Installation, until, Up } from './installation.mjs';
import { Pages } from './pages.mjs';
import { programs } from './programs.mjs';

/** A program's name is its tenant's to choose: it is text, whatever it says. */
const HOSTILE = `"><img src=x onerror="window.hit=1"><script>window.hit=1</script>{@html 1}`;

const [installation, browser] = await Promise.all([
  Installation.start(),
  chromium.launch({ executablePath: process.env.CHROMIUM, args: ['--no-sandbox'] }),
]);
const pages = new Pages(browser, installation);
const { step, signedIn, open } = pages;

const TOURS = {
  member: ['/', '/new', '/leases', '/programs', '/queue', '/tenants', '/bill', '/usage', '/rightsize', '/invoices', '/gpus', '/nodes', '/health'],
  tenant_admin: ['/webhooks', '/bill', '/queue', '/audit', '/', '/tenants', '/tokens', '/rightsize', '/declarations'],
  provider: ['/earnings', '/capacity', '/pools', '/webhooks', '/invoices', '/tokens', '/nodes/gpu1', '/servers', '/declarations'],
  platform: ['/', '/leases/1', '/declarations', '/servers', '/usage', '/gpus', '/nodes/gpu1', '/queue', '/health', '/audit', '/tokens', '/pools', '/earnings', '/webhooks', '/rightsize', '/bill'],
};

async function steps() {
  const shared = { installation, pages, HOSTILE };
  const [lease] = await Promise.all([programs(shared), administration(shared), newcomers().then(reading)]);
  // The last ones find the installation with all that the others have done, and have it to
  // themselves.
  await identity(shared);
  await restart();
  await fairShares(shared);
  const tour = (role) => step(`${role}: pages are accessible, and fit on a phone`, () => {
    const paths = TOURS[role].map((path) => path.replace('/leases/1', `/leases/${lease}`));
    // The operator sees all kinds of pages; of the others, and in the dark, some stand for the
    // rest.
    const ofOperator = (index) => (index < 4 ? ['light', 'dark'] : ['light']);
    const ofOthers = (index) => [['light'], ['dark']][index] ?? [];
    return pages.tour(role, paths, role === 'platform' ? ofOperator : ofOthers);
  });
  await Promise.all([tour('platform'), tour('member').then(() => tour('tenant_admin')).then(() => tour('provider'))]);
  await step('screenshots', () => screenshots(lease));
}

/** People who have not been here before. */
async function newcomers() {
  await step('a link signs in once', async () => {
    const link = (await installation.run(['web'], installation.tokens.member)).trim();
    const page = await pages.visit();
    await page.goto(link);
    await page.getByRole('heading', { name: 'Overview' }).waitFor();
    assert.ok(!page.url().includes('sign-in'), page.url());
    const cookies = await page.context().cookies(`${installation.url}/api/v1/session`);
    assert.equal(cookies.length, 1);
    assert.ok(cookies[0].httpOnly && cookies[0].sameSite === 'Strict', JSON.stringify(cookies));
    assert.equal(await page.evaluate(() => document.cookie + JSON.stringify(sessionStorage)), '{}');
    const again = await pages.visit();
    await again.goto(link);
    await again.getByText('This link has been used').waitFor();
    await page.getByRole('button', { name: 'Sign out' }).click();
    await page.getByRole('heading', { name: 'Sign in' }).waitFor();
  });

  await step('a wrong token is refused, with the reason', async () => {
    const page = await pages.visit();
    await page.goto(installation.url);
    await page.getByLabel(/^Token/).fill('slc_a_b');
    await page.getByRole('button', { name: 'Sign in' }).click();
    await page.getByRole('alert').waitFor();
  });

  await step('from the link of `sluice up` to a program that computes, one that waits, and their cost', async () => {
    const up = await Up.start();
    try {
      await newcomer(up);
    } finally {
      await up.end();
    }
  });
}

/** A person who has read nothing does what the page says, and types what it says into a terminal. */
async function newcomer(up) {
  const page = await pages.visit({ server: up });
  await page.goto(up.link);
  await page.getByRole('heading', { name: 'First steps' }).waitFor();
  await page.getByRole('button', { name: 'Create a tenant…' }).click();
  await page.getByLabel(/^Path/).fill('acme');
  await page.getByRole('button', { name: 'Create', exact: true }).click();
  await page.getByRole('button', { name: 'Set a price…' }).click();
  await page.getByLabel('Price of a GPU-hour').fill('36');
  await page.getByRole('button', { name: 'Set it' }).click();
  await page.getByText('Leases show their price').waitFor();
  await page.getByRole('link', { name: 'Or ask for a lease here' }).click();
  const ask = async (name, percent, price) => {
    await page.getByRole('heading', { name: 'New lease' }).waitFor();
    await page.getByLabel(/^Tenant/).selectOption('acme');
    await page.getByLabel(/^Name/).fill(name);
    await page.getByLabel('Share of each GPU').fill(String(percent));
    await page.locator('.price', { hasText: price }).waitFor();
    await page.getByRole('button', { name: 'Ask for it' }).click();
    await page.waitForURL(/\/leases\/\d+/);
  };
  await ask('first', 25, '9.00 EUR');
  const command = (await page.locator('pre', { hasText: 'sluice run --lease' }).first().textContent()).trim();
  up.type(command.replace('sluice run', `'${process.env.SLUICE}' run`).replace('python train.py', `python3 ${process.env.PROGRAMS}/compute.py`));
  await page.getByText('Running').first().waitFor();
  await page.getByText('Compute: share given against guaranteed').waitFor();
  const cost = page.locator('.stat', { hasText: 'Cost so far' }).locator('.value');
  await until('its cost', async () => /0\.0*[1-9]\d* EUR/.test(await cost.textContent()));

  await page.locator('body').press('g');
  await page.keyboard.press('n');
  await ask('second', 100, '36.00 EUR');
  await page.getByRole('heading', { name: 'Why it waits' }).waitFor();
  await page.locator('.why', { hasText: /[a-z]{3,}/ }).waitFor();
}

/** What pages say, compared with what commands and the API say. */
async function reading() {
  await step('operators see which server leads; tenants do not', async () => {
    const page = await signedIn('platform', '/servers');
    const row = page.locator('tr', { hasText: 'answers this page' });
    await row.locator('.badge', { hasText: 'Leads' }).waitFor();
    const { items, leadership } = await installation.ask('/servers');
    assert.ok(items.length === 1 && items[0].state === 'leads' && items[0].url === installation.url, JSON.stringify(items));
    await page.getByText(`leadership ${leadership}`).waitFor();
    await row.getByText(items[0].release).waitFor();
    const other = await signedIn('tenant_admin', '/servers');
    await other.getByText('There is no such page').waitFor();
    assert.equal((await installation.ask('/servers', installation.tokens.tenant_admin)).status, 403);
  });

  await step('money is what `sluice bill` says, to the millionth', async () => {
    const page = await signedIn('platform');
    const now = new Date();
    const month = (months) => new Date(Date.UTC(now.getUTCFullYear(), now.getUTCMonth() + months, 1)).toISOString().slice(0, 10);
    const both = async (period, range) => {
      await open(page, `/bill?period=${period}`);
      const shown = page.locator('.stat', { hasText: 'Total' }).locator('.value').filter({ hasText: 'EUR' });
      const bill = JSON.parse(await installation.run(['bill', '--tenant', '/', ...range, '-o', 'json']));
      return [micro(await shown.textContent()), bill.total_micro];
    };
    const [shown, billed] = await both('last', ['--from', month(-1), '--until', month(0)]);
    assert.ok(billed > 0);
    assert.equal(shown, billed);
    // Of this month programs use more meanwhile.
    await until('the page and the command say the same', async () => {
      const [shown, billed] = await both('month', ['--from', month(0)]);
      return shown === billed && billed > 0;
    });
  });

  await step('an administrator sees what was done in their tenant, and nothing of others', async () => {
    const latest = async () => (await installation.ask('/audit/latest?limit=100', installation.tokens.tenant_admin)).items;
    const own = await until('a lease is granted', async () => (await latest()).find(({ action }) => action === 'lease.granted'));
    const page = await signedIn('tenant_admin', '/audit');
    const row = page.locator('tr', { hasText: own.sequence.toLocaleString('en') }).filter({ hasText: own.action });
    await row.getByText(own.subject, { exact: true }).waitFor();
    const by = page.getByRole('searchbox', { name: 'Only what was done by' });
    await by.fill('SERVER (itself');
    await by.press('Enter');
    await page.locator('[data-label="By"]', { hasNotText: 'server (itself)' }).first().waitFor({ state: 'detached' });
    await row.getByText(own.subject, { exact: true }).waitFor();
    await open(page, '/queue');
    const decided = page.getByRole('region', { name: 'What the scheduler has decided' }).locator('tr', { hasText: 'Got a place' });
    await decided.filter({ hasText: /on gpu\d\/0/ }).first().waitFor();
    await by.fill('nobody-is-called-so');
    await by.press('Enter');
    await page.getByText('Nothing of late by “nobody-is-called-so”').waitFor();
    const items = await latest();
    const all = (await installation.ask('/audit?limit=1000')).items;
    const foreign = all.filter(({ action, subject }) => action.startsWith('tenant.') && subject.startsWith('globex'));
    assert.ok(foreign.length > 0 && items.length > 0, JSON.stringify(all.map(({ action, subject }) => [action, subject])));
    assert.deepEqual(items.filter(({ sequence }) => foreign.some((one) => one.sequence === sequence)), []);
    assert.equal((await installation.ask('/audit', installation.tokens.tenant_admin)).status, 403);
  });

  await step('each GPU has what it earned, which adds up to the bill', async () => {
    const page = await signedIn('provider', '/earnings');
    const region = page.getByRole('region', { name: 'By GPU' });
    const month = new Date().toISOString().slice(0, 7);
    await until('the page and the command say the same', async () => {
      const cards = JSON.parse(await installation.run(['bill', '--gpus', '--month', month, '-o', 'json']));
      const earned = cards.reduce((sum, card) => sum + card.income_micro, 0);
      const said = (await region.locator('.note').textContent()).match(/All GPUs earned ([\d.,]+) EUR/);
      return earned > 0 && cards.length >= 2 && said && micro(`${said[1]} EUR`) === earned;
    });
    const total = (await installation.run(['bill', '--gpus', '--month', month])).match(/all GPUs .* EUR; the bill .* EUR: /);
    assert.ok(total);
    const [file] = await Promise.all([page.waitForEvent('download'), region.getByRole('button', { name: 'CSV' }).click()]);
    const lines = (await readFile(await file.path(), 'utf8')).trim().split('\r\n');
    // One that is gone is listed as well, if another part of the test has come that far.
    assert.ok(lines.length >= 3 && lines[0].startsWith('node,gpu,'), lines.join('\n'));
    assert.equal((await installation.ask('/gpus/earnings', installation.tokens.tenant_admin)).status, 403);
  });

  await step('spending has a forecast, and reports that add up', async () => {
    const page = await signedIn('platform', '/bill?tenant=acme&period=month');
    await page.getByText('Budget of acme').waitFor();
    const address = await page.getByLabel('Cost report as CSV').getAttribute('href');
    const report = await page.request.get(installation.url + address);
    assert.ok(report.headers()['content-type'].startsWith('text/csv'), String(report.status()));
    assert.ok((await report.text()).startsWith('section,tenant,meter'));
  });
}

async function restart() {
  await step('a page outlives a restart of the server, and says meanwhile that it is stale', async () => {
    const page = await signedIn('member', '/leases');
    await page.getByText('Live', { exact: true }).waitFor();
    await installation.stopServer();
    await page.getByText(/stale since/).waitFor();
    await installation.startServer();
    await page.getByText(/stale since/).waitFor({ state: 'detached' });
    await page.getByText('Live', { exact: true }).waitFor();
    const made = await installation.ask('/leases', installation.tokens.member, { share_ppm: 50_000, name: 'asked for later', hold_ms: 600_000 });
    await page.getByText('asked for later').waitFor();
    await until('its end', () => installation.endLease(made).then(() => true, () => false));
  });
}

/** Pictures for the documents. */
async function screenshots(lease) {
  if (!process.env.SCREENSHOTS) return;
  const { member } = installation.tokens;
  // Pictures are of programs with names that people give.
  await installation.run(['lease', 'end', String(lease)], member);
  installation.program(['-p', '0.4', '--name', 'fine-tune bert'], member, { SLUICE_SHARED_MEMORY: 'off' });
  const sessions = async () => (await installation.ask('/sessions', member)).items.find(({ name }) => name === 'fine-tune bert');
  const { lease: id } = await until('it computes', sessions);
  // The node with sensors is to have a program; where it cannot move, it has none.
  await installation.run(['migrate', String(id), '--to', 'gpu2']).catch((refused) => console.log(String(refused)));
  const tiers = ['standard', { name: 'premium', wait: '20ms', attained: '99%', credit: '10%' }];
  await installation.declare(JSON.stringify({ pools: [{ name: 'serving', nodes: ['gpu1'], tiers }] }));
  const shots = {
    member: [['/new', 'new-lease', 'dark']],
    tenant_admin: [['/tenants', 'tenants'], ['/bill?tenant=acme&period=month', 'spending'], ['/usage', 'usage']],
    provider: [['/earnings', 'earnings'], ['/pools', 'pools'], ['/capacity', 'capacity']],
    platform: [['/', 'overview'], ['/nodes/gpu2', 'node'], ['/servers', 'servers'], ['/declarations', 'declarations', 'dark']],
  };
  for (const [role, all] of Object.entries(shots)) {
    const page = await signedIn(role, '/', { size: { width: 1360, height: 900 } });
    for (const [path, name, theme] of all) {
      await page.emulateMedia({ colorScheme: theme ?? 'light' });
      await open(page, path);
      if (['spending', 'usage'].includes(name)) await page.locator('canvas').first().waitFor();
      if (name === 'declarations') await compareAFile(page);
      if (name === 'new-lease') {
        await page.getByLabel('Tier').selectOption('premium');
        await page.locator('.price', { hasText: 'EUR' }).waitFor();
      }
      await pages.shot(page, name);
    }
  }
  await invoice();
}

/** The document of an invoice for last month, as a browser shows it. */
async function invoice() {
  const seller = { name: 'Example Compute GmbH', address: ['Musterweg 1', '10115 Berlin'], tax_id: 'VAT DE123456789' };
  await installation.declare(JSON.stringify({ invoicing: { seller, payment: 'IBAN DE00 0000 0000 0000 0000 00', tax: { name: 'VAT', percent: 19 }, number_prefix: 'EX-', due_days: 14 } }));
  const now = new Date();
  const month = (months) => Date.UTC(now.getUTCFullYear(), now.getUTCMonth() + months, 1);
  await installation.ask('/invoices', installation.tokens.provider, { tenant: 'acme', from_ms: month(-1), until_ms: month(0) });
  // A part of the test may have issued one for that month before.
  const of = (await installation.ask('/invoices')).items.filter(({ tenant, from_ms }) => tenant === 'acme' && from_ms === month(-1));
  const page = await signedIn('provider', '/invoices', { size: { width: 827, height: 1169 } });
  const document = await page.request.get(`${installation.url}/api/v1/invoices/${of.at(-1).number}/document?format=html`);
  await page.setContent(await document.text());
  await pages.shot(page, 'invoice');
}

/** A price and a quota that are not what is declared. */
async function compareAFile(page) {
  await page.getByLabel('Declaration in YAML').fill('tenants:\n  - path: acme/research\n    quota: {guaranteed: 0.75, limit: 2}\n    budget: {amount: 150, per: month, then: hold}\nprices:\n  - {meter: reserved, price: 2.40}\n');
  await page.getByRole('button', { name: 'Show what would change' }).click();
  await page.getByText('price of reserved').waitFor();
}

try {
  await steps();
} finally {
  await browser.close();
  await installation.end();
}
if (pages.failures.length) {
  console.error(`FAILURES\n${pages.failures.join('\n')}`);
  process.exit(1);
}
