// The web view of a real installation, in a real browser, in each role.

import assert from 'node:assert/strict';
import { createHmac } from 'node:crypto';
import { mkdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';

import { AxeBuilder } from '@axe-core/playwright';
import { chromium } from 'playwright-core';

import { administration, micro } from './administration.mjs';
import { Installation, PATIENCE_MS, Receiver, until, Up } from './installation.mjs';

const SCREENSHOTS = process.env.SCREENSHOTS;
/** A folder for pictures of every page in every role, narrow and wide, light and dark, for people to look through. */
const GALLERY = process.env.GALLERY;
/** A program's name is its tenant's to choose: it is text, whatever it says. */
const HOSTILE = `"><img src=x onerror="window.hit=1"><script>window.hit=1</script>{@html 1}`;

/** The commands of the reference. */
const REFERENCE = new Set([...readFileSync(process.env.REFERENCE, 'utf8').matchAll(/^## `(.*)`$/gm)].map(([, command]) => command));

const installation = await Installation.start();
const browser = await chromium.launch({ executablePath: process.env.CHROMIUM, args: ['--no-sandbox'] });
const failures = [];

/** A page of a browser that nobody has used before. */
async function visit({ width = 1360, height = 860, theme = 'light', server = installation } = {}) {
  const context = await browser.newContext({ viewport: { width, height }, colorScheme: theme });
  context.setDefaultTimeout(PATIENCE_MS);
  const page = await context.newPage();
  page.on('pageerror', (error) => failures.push(String(error)));
  page.on('console', (message) => {
    if (/Content Security Policy/i.test(message.text())) failures.push(message.text());
  });
  page.on('request', (request) => {
    if (!request.url().startsWith(server.url) && !/^(data|blob):/.test(request.url())) failures.push(`asks elsewhere: ${request.url()}`);
  });
  return page;
}

async function signedIn(role, options) {
  const page = await visit(options);
  await page.goto(installation.url);
  await page.getByLabel(/^Token/).fill(installation.tokens[role]);
  await page.getByRole('button', { name: 'Sign in' }).click();
  await page.getByRole('heading', { name: 'Overview', level: 1 }).waitFor();
  return page;
}

const PAGES = {
  member: ['/', '/new', '/leases', '/programs', '/queue', '/tenants', '/bill', '/usage', '/rightsize', '/invoices', '/gpus', '/nodes', '/health'],
  tenant_admin: ['/webhooks', '/bill', '/audit', '/', '/tenants', '/tokens', '/rightsize', '/declarations'],
  provider: ['/earnings', '/capacity', '/pools', '/webhooks', '/invoices', '/tokens', '/nodes/gpu1', '/servers', '/declarations'],
  platform: ['/', '/leases/1', '/declarations', '/servers', '/usage', '/gpus', '/nodes/gpu1', '/health', '/audit', '/tokens', '/pools', '/earnings', '/webhooks', '/rightsize', '/bill'],
};

/** The page at a path, with what it shows read. */
async function open(page, path) {
  await page.goto(installation.url + path);
  await page.locator('h1').waitFor();
  await page.locator('[aria-busy=true]').first().waitFor({ state: 'detached' });
}

async function steps() {
  await step('a link signs in once', async () => {
    const link = installation.run(['web'], installation.tokens.member).trim();
    const page = await visit();
    await page.goto(link);
    await page.getByRole('heading', { name: 'Overview' }).waitFor();
    assert.ok(!page.url().includes('sign-in'), page.url());
    const cookies = await page.context().cookies(`${installation.url}/api/v1/session`);
    assert.equal(cookies.length, 1);
    assert.ok(cookies[0].httpOnly && cookies[0].sameSite === 'Strict', JSON.stringify(cookies));
    assert.equal(await page.evaluate(() => document.cookie + JSON.stringify(sessionStorage)), '{}');
    const again = await visit();
    await again.goto(link);
    await again.getByText('This link has been used').waitFor();
    await page.getByRole('button', { name: 'Sign out' }).click();
    await page.getByRole('heading', { name: 'Sign in' }).waitFor();
    await page.context().close();
    await again.context().close();
  });

  await step('a wrong token is refused, with the reason', async () => {
    const page = await visit();
    await page.goto(installation.url);
    await page.getByLabel(/^Token/).fill('slc_a_b');
    await page.getByRole('button', { name: 'Sign in' }).click();
    await page.getByRole('alert').waitFor();
    await page.context().close();
  });

  await step('from the link of `sluice up` to a program that computes, one that waits, and their cost', async () => {
    const up = await Up.start();
    try {
      await newcomer(up);
    } finally {
      await up.end();
    }
  });

  let lease;
  await step('a lease is asked for with the keyboard alone', async () => {
    const page = await signedIn('member');
    await page.locator('body').press('g');
    await page.keyboard.press('n');
    await page.getByRole('heading', { name: 'New lease' }).waitFor();
    await page.locator('.price', { hasText: 'EUR' }).waitFor();
    const reach = async (locator) => {
      for (let tabs = 0; tabs < 80; tabs += 1) {
        if (await locator.evaluate((element) => element === document.activeElement)) return;
        await page.keyboard.press('Tab');
      }
      assert.fail(`the keyboard does not come to ${locator}`);
    };
    await reach(page.getByLabel(/^Name/));
    await page.keyboard.type(HOSTILE);
    await reach(page.getByLabel('Share of each GPU'));
    for (let presses = 0; presses < 5; presses += 1) await page.keyboard.press('ArrowRight');
    await page.getByText('50 %', { exact: true }).waitFor();
    await reach(page.getByRole('button', { name: 'Ask for it' }));
    await page.keyboard.press('Enter');
    await page.waitForURL(/\/leases\/\d+/);
    lease = Number(page.url().split('/').at(-1));
    await page.getByRole('heading', { name: HOSTILE }).waitFor();
    await page.getByText(`sluice run --lease ${lease}`).waitFor();
    await page.context().close();
  });

  await step('a program takes up the lease, and its page shows what it gets', async () => {
    installation.program(['--lease', String(lease)], installation.tokens.member);
    const page = await signedIn('member');
    await open(page, `/leases/${lease}`);
    await page.getByText('Running').first().waitFor();
    await page.getByText('Compute: share given against guaranteed').waitFor();
    await page.getByText('Got a place').waitFor();
    await page.getByText(/Guaranteed 50 %/).waitFor();
    await until('a trace', () => traceOf(lease));
    const { spans, text } = traceOf(lease);
    assert.deepEqual(spans, ['claim', 'lease', 'queue', 'start']);
    assert.ok(!text.includes('onerror') && !text.includes('compute.py'), 'no trace has the name of a program');
    await until('a cost', async () => (await installation.ask(`/leases/${lease}/bill`)).total_micro > 0);
    await page.context().close();
  });

  await step('a second lease waits, and the queue says why', async () => {
    const sales = installation.tokens.sales;
    installation.program(['-p', '0.5', '--duration', '10min', '--name', 'python train.py'], sales);
    await until('sales computes', async () => (await installation.ask('/leases?state=running', sales)).items.length === 1);
    installation.program(['-p', '0.5', '--duration', '10min', '--name', 'python evaluate.py'], sales);
    const page = await signedIn('sales');
    await open(page, '/queue');
    await page.getByText(/limit: queue "acme\/sales"/).first().waitFor();
    await page.getByText(/in \d+ min/).first().waitFor();
    await shot(page, 'queue');
    const [runs] = (await installation.ask('/leases?state=running', sales)).items;
    await open(page, `/leases/${runs.id}`);
    await shot(page, 'lease');
    await page.context().close();
  });

  await step('a lease is resized, suspended and resumed', async () => {
    const page = await signedIn('member');
    await open(page, `/leases/${lease}`);
    const is = (what, test) => until(what, async () => test(await installation.ask(`/leases/${lease}`)));
    await page.getByRole('button', { name: 'Resize…' }).click();
    await page.getByLabel('Share of each GPU').fill('40');
    await page.getByRole('button', { name: 'Resize', exact: true }).click();
    await is('another share', (one) => one.share_ppm === 400_000 && !one.resizing);
    await page.getByRole('button', { name: 'Suspend…' }).click();
    await page.getByRole('dialog').getByRole('button', { name: 'Suspend' }).click();
    await is('suspended', (one) => one.suspended && !one.resizing);
    await page.getByText('suspended: off the GPU').waitFor();
    await page.getByRole('button', { name: 'Resume…' }).click();
    await page.getByRole('dialog').getByRole('button', { name: 'Resume' }).click();
    await is('resumed', (one) => !one.suspended && !one.resizing);
    await page.context().close();
  });

  await step('foreign tenants are in no answer', async () => {
    const page = await visit();
    const seen = [];
    page.on('response', async (response) => {
      if (response.url().includes('/api/v1/') && !response.url().endsWith('/watch')) seen.push(await response.text().catch(() => ''));
    });
    await page.goto(installation.url);
    await page.getByLabel(/^Token/).fill(installation.tokens.globex);
    await page.getByRole('button', { name: 'Sign in' }).click();
    await page.getByRole('heading', { name: 'Overview' }).waitFor();
    for (const path of ['/leases', '/programs', '/queue', '/tenants', '/bill', '/usage', '/rightsize', '/gpus', '/nodes/gpu1', `/leases/${lease}`]) await open(page, path);
    await page.getByText('Not found').waitFor();
    const text = seen.join('\n');
    assert.ok(seen.length > 10 && text.includes('globex'));
    for (const foreign of ['acme', 'onerror', 'compute.py', 'Ada of']) assert.ok(!text.includes(foreign), foreign);
    await page.context().close();
  });

  await step('money is what `sluice bill` says, to the millionth', async () => {
    const page = await signedIn('platform');
    await open(page, '/bill?period=month');
    const begin = new Date(Date.UTC(new Date().getUTCFullYear(), new Date().getUTCMonth(), 1)).toISOString().slice(0, 10);
    await until('the page and the command say the same', async () => {
      const bill = JSON.parse(installation.run(['bill', '--tenant', '/', '--from', begin, '-o', 'json']));
      const shown = await page.locator('.stat', { hasText: 'Total' }).locator('.value').textContent();
      return micro(shown) === bill.total_micro && bill.total_micro > 0;
    });
    await page.context().close();
  });

  await step('an operator fences a GPU, drains a node, and uses both again', async () => {
    const page = await signedIn('platform');
    await open(page, '/nodes/gpu2');
    await page.getByRole('button', { name: 'Fence…' }).click();
    await page.getByLabel(/^Why/).fill('smells of smoke');
    await page.getByLabel('Its sessions').selectOption('finish');
    await page.getByRole('button', { name: 'Fence', exact: true }).click();
    await page.getByText('smells of smoke').first().waitFor();
    assert.equal((await installation.ask('/gpus?node=gpu2')).items[0].fence.why, 'smells of smoke');
    await page.getByRole('button', { name: 'Use again…' }).click();
    await page.getByRole('dialog').getByRole('button', { name: 'Use again' }).click();
    await page.getByText('Healthy').waitFor();
    await page.getByRole('button', { name: 'Drain…' }).click();
    await page.getByLabel(/^Why/).fill('new fans');
    await page.getByRole('dialog').getByRole('button', { name: 'Drain' }).click();
    await page.getByText('new fans').waitFor();
    await page.getByRole('button', { name: 'Use again' }).click();
    await page.getByText('new fans').waitFor({ state: 'detached' });
    await page.context().close();
  });

  await step('sensors are shown of the GPU that has some, and nothing of the other', async () => {
    const page = await signedIn('member');
    if (process.env.NVML) {
      await open(page, '/nodes/gpu2');
      await page.locator('.stat', { hasText: 'Hottest GPU' }).getByText('61 °C').waitFor();
      await page.locator('.stat', { hasText: 'Power' }).getByText('312 W').waitFor();
      await page.getByText('580.159.04').waitFor();
      await open(page, '/gpus');
      await page.getByRole('button', { name: 'Temperature' }).click();
      await page.getByText('not measured').first().waitFor();
      await page.getByText('where it slows down').waitFor();
    }
    await open(page, '/nodes/gpu1');
    await page.getByText('a software GPU has no sensors').first().waitFor();
    assert.equal(await page.getByText('°C').count(), 0);
    await page.context().close();
  });

  await step('an administrator moves a running lease to the other node', async () => {
    const page = await signedIn('tenant_admin');
    const [{ node }] = (await installation.ask(`/leases/${lease}`)).places;
    const other = node === 'gpu1' ? 'gpu2' : 'gpu1';
    await open(page, `/leases/${lease}`);
    await page.getByRole('button', { name: 'Move…' }).click();
    await page.getByRole('combobox', { name: /^To/ }).selectOption(other);
    await page.getByRole('button', { name: 'Move it' }).click();
    await page.getByText(new RegExp(`It goes on (at ${other}|where it was)`)).waitFor();
    const { moving, places } = await installation.ask(`/leases/${lease}`);
    assert.ok(moving.state === 'refused' ? moving.reason : places[0].node === other, JSON.stringify(moving));
    await page.context().close();
  });

  await step('a tenant administrator sets a quota and makes a token', async () => {
    const page = await signedIn('tenant_admin');
    await open(page, '/tenants');
    await page.getByRole('button', { name: 'Change acme/sales' }).click();
    await page.getByLabel(/^Weight/).fill('3');
    await page.getByRole('button', { name: 'Save' }).click();
    await until('the weight', async () => (await installation.ask('/tenants?tenant=acme/sales')).items[0].quota.over_quota_weight === 3);
    await open(page, '/tokens');
    await page.getByRole('button', { name: 'New token…' }).click();
    await page.getByLabel(/^Name/).fill('from the page');
    await page.getByRole('button', { name: 'Make it' }).click();
    const secret = await page.getByText(/^slc_/).textContent();
    assert.equal((await installation.ask('/whoami', secret)).name, 'from the page');
    await page.context().close();
  });

  await step('an administrator adds a webhook, and sees what was delivered', async () => {
    const receiver = await Receiver.start();
    const page = await signedIn('tenant_admin');
    await open(page, '/webhooks');
    await page.getByRole('button', { name: 'New webhook…' }).click();
    await page.getByLabel(/^URL/).fill(receiver.url);
    await page.getByLabel(/^Name/).fill(HOSTILE);
    await page.getByLabel('A budget passes').check();
    assert.equal(await page.getByLabel('A node stops reporting').count(), 0, 'nodes are not of a tenant');
    await page.getByRole('button', { name: 'Add it' }).click();
    const secret = await page.getByText(/^whsec_/).textContent();
    await page.getByRole('button', { name: 'I have kept it' }).click();
    await page.getByRole('button', { name: 'Test', exact: true }).click();
    await page.getByText('Delivered').waitFor();
    const [{ headers, body }] = receiver.requests;
    const signed = `${headers['webhook-id']}.${headers['webhook-timestamp']}.${body}`;
    const key = Buffer.from(secret.replace('whsec_', ''), 'base64');
    assert.equal(headers['webhook-signature'], `v1,${createHmac('sha256', key).update(signed).digest('base64')}`);
    // What is elsewhere is refused, with the reason.
    await page.getByRole('button', { name: 'New webhook…' }).click();
    await page.getByLabel(/^URL/).fill('https://10.0.0.1/');
    await page.getByRole('button', { name: 'Add it' }).click();
    await page.getByRole('alert').filter({ hasText: '--webhook-allow' }).waitFor();
    await page.context().close();
    receiver.stop();
  });

  await step('a recommendation becomes the default of the next runs, and is undone', async () => {
    const program = { tenant: 'acme/sales', program: HOSTILE, share_ppm: 250_000, memory: 0 };
    const page = await signedIn('tenant_admin');
    for (let run = 0; run < 10; run += 1) installation.compute(['-p', '0.1', '--name', '<img src=x onerror="window.hit=1">'], installation.tokens.member);
    await until('ten runs have ended', () => {
      const advice = JSON.parse(installation.run(['iq', '--all', '-o', 'json']));
      return advice.some((one) => one.recommendation);
    });
    await open(page, '/rightsize');
    await page.getByRole('button', { name: 'Use for next runs…' }).first().click();
    await page.getByRole('button', { name: 'Use it' }).click();
    await page.getByRole('button', { name: 'Undo' }).waitFor();
    const [set] = await installation.ask('/run-defaults');
    const asked = await installation.ask('/leases', installation.tokens.member, { name: set.program, use_default: true, hold_ms: 600_000 });
    assert.equal(asked.share_ppm, set.share_ppm);
    await fetch(`${installation.url}/api/v1/leases/${asked.id}`, { method: 'DELETE', headers: { authorization: `Bearer ${asked.key}` } });
    await page.getByRole('button', { name: 'Undo' }).click();
    await page.getByRole('button', { name: 'Undo' }).waitFor({ state: 'detached' });
    assert.deepEqual(await installation.ask('/run-defaults'), []);
    const actions = (await installation.ask('/audit?limit=1000')).items.map((entry) => entry.action);
    assert.ok(actions.includes('default.set') && actions.includes('default.removed'));
    await installation.ask('/run-defaults', installation.admin, program);
    await open(page, '/rightsize');
    await page.context().close();
  });

  await step('operators see which server leads; tenants do not', async () => {
    const page = await signedIn('platform');
    await open(page, '/servers');
    const row = page.locator('tr', { hasText: 'answers this page' });
    await row.locator('.badge', { hasText: 'Leads' }).waitFor();
    const { items, leadership } = await installation.ask('/servers');
    assert.ok(items.length === 1 && items[0].state === 'leads' && items[0].url === installation.url, JSON.stringify(items));
    await page.getByText(`leadership ${leadership}`).waitFor();
    await row.getByText(items[0].release).waitFor();
    const other = await signedIn('tenant_admin');
    await open(other, '/servers');
    await other.getByText('There is no such page').waitFor();
    assert.equal((await installation.ask('/servers', installation.tokens.tenant_admin)).status, 403);
    await page.context().close();
    await other.context().close();
  });

  await step('an administrator sees what was done in their tenant, and nothing of others', async () => {
    const page = await signedIn('tenant_admin');
    await open(page, '/audit');
    const { items } = await installation.ask('/audit/latest?limit=100', installation.tokens.tenant_admin);
    const own = items.find(({ action }) => action === 'lease.granted');
    const row = page.locator('tr', { hasText: own.sequence.toLocaleString('en') }).filter({ hasText: own.action });
    await row.getByText(own.subject, { exact: true }).waitFor();
    const all = (await installation.ask('/audit?limit=1000')).items;
    const foreign = all.filter(({ action, subject }) => action.startsWith('tenant.') && subject.startsWith('globex'));
    assert.ok(foreign.length > 0 && items.length > 0, JSON.stringify(all.map(({ action, subject }) => [action, subject])));
    assert.deepEqual(items.filter(({ sequence }) => foreign.some((one) => one.sequence === sequence)), []);
    assert.equal((await installation.ask('/audit', installation.tokens.tenant_admin)).status, 403);
    await page.context().close();
  });

  await step('usage is shown as it arrives, and adds up to what the ledger has', async () => {
    const page = await signedIn('member');
    await open(page, '/usage?minutes=1440');
    const link = page.getByRole('link', { name: `#${lease}`, exact: true }).first();
    await link.waitFor();
    const records = page.locator('.stat', { hasText: 'Records' }).locator('.value');
    const before = Number(await records.textContent());
    await until('more records', async () => Number(await records.textContent()) > before);
    await page.context().close();
  });

  await administration({ installation, step, signedIn, open, look, HOSTILE });

  await step('spending has a forecast, and reports that add up', async () => {
    const page = await signedIn('platform');
    await open(page, '/bill?tenant=acme&period=month');
    await page.getByText('Budget of acme').waitFor();
    const address = await page.getByLabel('Cost report as CSV').getAttribute('href');
    const report = await page.request.get(installation.url + address);
    assert.ok(report.headers()['content-type'].startsWith('text/csv'), String(report.status()));
    assert.ok((await report.text()).startsWith('section,tenant,meter'));
    await page.context().close();
  });

  await step('a page outlives a restart of the server, and says meanwhile that it is stale', async () => {
    const page = await signedIn('member');
    await open(page, '/leases');
    await installation.stopServer();
    await page.getByText(/stale since/).waitFor();
    await installation.startServer();
    await page.getByText(/stale since/).waitFor({ state: 'detached' });
    await page.getByText('Live', { exact: true }).waitFor();
    const made = await installation.ask('/leases', installation.tokens.member, { share_ppm: 50_000, name: 'asked for later', hold_ms: 600_000 });
    await page.getByText('asked for later').waitFor();
    await until('its end', async () => fetch(`${installation.url}/api/v1/leases/${made.id}`, { method: 'DELETE', headers: { authorization: `Bearer ${made.key}` } }).then((answer) => answer.ok));
    await page.context().close();
  });

  for (const [role, paths] of Object.entries(PAGES)) {
    await step(`${role}: pages are accessible, and fit on a phone`, async () => {
      const page = await signedIn(role, { width: 390, height: 844 });
      for (const path of paths) {
        await open(page, path.replace('/leases/1', `/leases/${lease}`));
        const width = await page.evaluate(() => document.documentElement.scrollWidth);
        assert.ok(width <= 390, `${path} is ${width} pixels wide`);
        await gallery(page, role, path, 'narrow');
        await tryCommands(page, path, role);
      }
      await page.setViewportSize({ width: 1360, height: 860 });
      // The operator sees all kinds of pages; of the others, and in the dark, some stand for the rest.
      for (const [theme, seen] of role === 'platform' ? [['light', paths], ['dark', paths.slice(0, 4)]] : [['light', paths.slice(0, 1)], ['dark', paths.slice(1, 2)]]) {
        await page.emulateMedia({ colorScheme: theme, reducedMotion: 'reduce' });
        for (const path of seen) {
          await open(page, path.replace('/leases/1', `/leases/${lease}`));
          await isAccessible(page, `${path}, ${theme}`);
        }
      }
      assert.equal(await page.evaluate(() => window.hit), undefined, 'a program’s name was run');
      for (const theme of GALLERY ? ['light', 'dark'] : []) {
        await page.emulateMedia({ colorScheme: theme });
        for (const path of paths) {
          await open(page, path.replace('/leases/1', `/leases/${lease}`));
          await gallery(page, role, path, theme);
        }
      }
      await page.context().close();
    });
  }

  await step('screenshots', async () => {
    if (!SCREENSHOTS) return;
    // Pictures are of programs with names that people give.
    installation.run(['lease', 'end', String(lease)], installation.tokens.member);
    installation.program(['-p', '0.4', '--name', 'fine-tune bert'], installation.tokens.member, 'compute.py', { SLUICE_SHARED_MEMORY: 'off' });
    await until('it computes', async () => (await installation.ask('/leases?state=running', installation.tokens.member)).items.some(({ name }) => name === 'fine-tune bert'));
    const [{ id }] = (await installation.ask('/leases?state=running', installation.tokens.member)).items;
    // The node with sensors is to have a program; where it cannot move, it has none.
    try {
      installation.run(['migrate', String(id), '--to', 'gpu2']);
    } catch (refused) {
      console.log(String(refused));
    }
    const shots = {
      member: [['/new', 'new-lease', 'dark']],
      tenant_admin: [['/tenants', 'tenants'], ['/bill?tenant=acme&period=month', 'spending'], ['/usage', 'usage']],
      provider: [['/earnings', 'earnings'], ['/pools', 'pools'], ['/capacity', 'capacity']],
      platform: [['/', 'overview'], ['/nodes/gpu2', 'node'], ['/servers', 'servers'], ['/declarations', 'declarations', 'dark']],
    };
    for (const [role, pages] of Object.entries(shots)) {
      const page = await signedIn(role, { height: 900 });
      for (const [path, name, theme] of pages) {
        await page.emulateMedia({ colorScheme: theme ?? 'light' });
        await open(page, path);
        if (['spending', 'usage'].includes(name)) await page.locator('canvas').first().waitFor();
        if (name === 'declarations') await compareAFile(page);
        if (name === 'new-lease') await page.locator('.price', { hasText: 'EUR' }).waitFor();
        await shot(page, name);
      }
      await page.context().close();
    }
  });
}

async function isAccessible(page, where) {
  const { violations } = await new AxeBuilder({ page }).analyze();
  const serious = violations.filter(({ impact }) => impact === 'serious' || impact === 'critical');
  const told = serious.map(({ id, nodes }) => `${id}: ${nodes.slice(0, 3).map(({ html }) => html).join(' ')}`);
  assert.deepEqual(told, [], where);
}

/** What is open now, also a dialog, is accessible in the light and in the dark, and fits on a phone. */
async function look(page, name) {
  for (const colorScheme of ['light', 'dark']) {
    await page.emulateMedia({ colorScheme, reducedMotion: 'reduce' });
    await isAccessible(page, `${name}, ${colorScheme}`);
    await gallery(page, 'look', `/${name}`, colorScheme);
  }
  const size = page.viewportSize();
  await page.setViewportSize({ width: 390, height: 844 });
  const width = await page.evaluate(() => document.documentElement.scrollWidth);
  assert.ok(width <= 390, `${name} is ${width} pixels wide`);
  await gallery(page, 'look', `/${name}`, 'narrow');
  await page.setViewportSize(size);
  await page.emulateMedia({ colorScheme: 'light', reducedMotion: null });
}

/** A price and a quota that are not what is declared. */
async function compareAFile(page) {
  await page.getByLabel('Declaration in YAML').fill('tenants:\n  - path: acme/research\n    quota: {guaranteed: 0.75, limit: 2}\n    budget: {amount: 150, per: month, then: hold}\nprices:\n  - {meter: reserved, price: 2.40}\n');
  await page.getByRole('button', { name: 'Show what would change' }).click();
  await page.getByText('price of reserved').waitFor();
}

/** Who has read nothing does what the page says, and types what it says into a terminal. */
async function newcomer(up) {
  const page = await visit({ server: up });
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
  await page.context().close();
}

/** The names of the spans that the collector has of a lease, once it has them. */
function traceOf(lease) {
  for (const { body } of installation.collector.requests) {
    const spans = JSON.parse(body).resourceSpans.flatMap((resource) => resource.scopeSpans).flatMap((scope) => scope.spans);
    const own = spans.find((span) => span.attributes?.some(({ key, value }) => key === 'sluice.lease' && String(Object.values(value)[0]) === String(lease)));
    const text = JSON.stringify(spans);
    if (own) return { spans: spans.filter((span) => span.traceId === own.traceId).map((span) => span.name).sort(), text };
  }
  return undefined;
}

/** Commands that change nothing. */
const READS = /^sluice (gpus|sessions|gpu facts|lease list|lease show \d+|queue|tenants|node list|servers|pools|bill|plan|usage(?!.*--follow)|iq( --autonomy)?$|invoice list|token list|webhook list|audit (log|verify)|apply --show|identity show)\b[^>]*$/;

/** Does what the page says does the same as it: what reads must work in the page's role, and all of it must exist. */
async function tryCommands(page, path, role) {
  const button = page.getByRole('button', { name: 'As command' });
  await button.click();
  const [cli, curl] = await page.locator('#commands pre').allTextContents();
  await button.click();
  const token = installation.tokens[role];
  for (const line of cli.split('\n')) {
    const words = line.split(' ');
    assert.ok(REFERENCE.has(words.slice(0, 3).join(' ')) || REFERENCE.has(words.slice(0, 2).join(' ')), `${path}: ${line} is no command`);
    if (READS.test(line)) installation.run(words.slice(1), token);
  }
  for (const line of curl.split('\n').filter((line) => !line.includes(' -X '))) installation.shell(line, token);
}

async function step(name, check) {
  const began = Date.now();
  try {
    await check();
    console.log(`ok   ${name} (${((Date.now() - began) / 1000).toFixed(1)} s)`);
  } catch (error) {
    failures.push(`${name}: ${error?.stack ?? error}`);
    console.log(`FAIL ${name}`);
  }
}

async function gallery(page, role, path, how) {
  if (!GALLERY) return;
  mkdirSync(GALLERY, { recursive: true });
  await page.waitForTimeout(400);
  // No picture is as high as a list of thousands.
  const fullPage = (await page.evaluate(() => document.documentElement.scrollHeight)) < 16_000;
  await page.screenshot({ path: join(GALLERY, `${role}${path === '/' ? '_home' : path.replaceAll('/', '_')}-${how}.png`), fullPage });
}

/** Kept for the documents where the caller says so. */
async function shot(page, name) {
  if (!SCREENSHOTS) return;
  mkdirSync(SCREENSHOTS, { recursive: true });
  // What moves has come to rest, and charts have something to show.
  await page.waitForTimeout(name === 'lease' ? 20_000 : 500);
  await page.screenshot({ path: join(SCREENSHOTS, `${name}.png`) });
}

try {
  await steps();
} finally {
  await browser.close();
  await installation.end();
}
if (failures.length) {
  console.error(failures.join('\n'));
  process.exit(1);
}
