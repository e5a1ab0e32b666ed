// What people do with leases and programs: asked for, waiting, changed, moved, and given other
// sizes by the server.

import assert from 'node:assert/strict';

import { until } from './installation.mjs';

/** Asks for a lease, starts its program, and tries everything that can be done with it; says the lease's number. */
export async function programs({ installation, pages, HOSTILE }) {
  const { step, signedIn, open, look } = pages;
  const { tokens } = installation;

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
  });
  if (!lease) return undefined;

  await step('a program takes up the lease, and its page shows what it gets', async () => {
    // A program moves between nodes if it shares no memory with them.
    installation.program(['--lease', String(lease)], tokens.member, { SLUICE_SHARED_MEMORY: 'off' });
    const page = await signedIn('member', `/leases/${lease}`);
    await page.getByText('Running').first().waitFor();
    await page.getByText('Compute: share given against guaranteed').waitFor();
    await page.getByText('Got a place').waitFor();
    await page.getByText(/Guaranteed 50 %/).waitFor();
    const { spans, text } = await until('a trace', () => traceOf(installation, lease));
    assert.deepEqual(spans, ['claim', 'lease', 'queue', 'start']);
    assert.ok(!text.includes('onerror') && !text.includes('compute.py'), 'no trace has the name of a program');
    await until('a cost', async () => (await installation.ask(`/leases/${lease}/bill`)).total_micro > 0);
  });

  await step('a second lease waits, and the queue says why', async () => {
    installation.program(['-p', '0.5', '--duration', '30min', '--name', 'python train.py'], tokens.sales);
    await until('sales computes', async () => (await installation.ask('/leases?state=running', tokens.sales)).items.length === 1);
    installation.program(['-p', '0.5', '--duration', '30min', '--name', 'python evaluate.py'], tokens.sales);
    const page = await signedIn('sales', '/queue');
    await page.getByText(/limit: queue "acme\/sales"/).first().waitFor();
    await page.getByText(/in \d+ min/).first().waitFor();
    await pages.shot(page, 'queue');
    const [runs] = (await installation.ask('/leases?state=running', tokens.sales)).items;
    await open(page, `/leases/${runs.id}`);
    await pages.shot(page, 'lease');
  });

  await step('a lease is resized, suspended and resumed', async () => {
    const page = await signedIn('member', `/leases/${lease}`);
    const dialog = page.getByRole('dialog');
    const is = (what, test) => until(what, async () => test(await installation.ask(`/leases/${lease}`)));
    await page.getByRole('button', { name: 'Resize…' }).click();
    await dialog.getByLabel('Share of each GPU').fill('40');
    await dialog.getByRole('button', { name: 'Resize', exact: true }).click();
    await is('another share', (one) => one.share_ppm === 400_000 && !one.resizing);
    await page.getByRole('button', { name: 'Suspend…' }).click();
    await dialog.getByRole('button', { name: 'Suspend' }).click();
    await is('suspended', (one) => one.suspended && !one.resizing);
    await page.getByText('suspended: off the GPU').waitFor();
    await page.getByRole('button', { name: 'Resume…' }).click();
    await dialog.getByRole('button', { name: 'Resume' }).click();
    await is('resumed', (one) => !one.suspended && !one.resizing);
  });

  await step('foreign tenants are in no answer', async () => {
    const page = await pages.visit();
    const seen = [];
    page.on('response', (response) => {
      if (response.url().includes('/api/v1/') && !response.url().endsWith('/watch')) seen.push(response.text().catch(() => ''));
    });
    await pages.signIn(page, 'globex');
    for (const path of ['/leases', '/programs', '/queue', '/tenants', '/bill', '/usage', '/rightsize', '/gpus', '/nodes/gpu1', `/leases/${lease}`]) await open(page, path);
    await page.getByText('Not found').waitFor();
    const text = (await Promise.all(seen)).join('\n');
    assert.ok(seen.length > 10 && text.includes('globex'));
    for (const foreign of ['acme', 'onerror', 'compute.py', 'Ada of']) assert.ok(!text.includes(foreign), foreign);
  });

  await step('an operator fences a GPU, drains a node, and uses both again', async () => {
    const page = await signedIn('platform', '/nodes/gpu2');
    const dialog = page.getByRole('dialog');
    await page.getByRole('button', { name: 'Fence…' }).click();
    await dialog.getByLabel(/^Why/).fill('smells of smoke');
    await dialog.getByLabel('Its sessions').selectOption('finish');
    await dialog.getByRole('button', { name: 'Fence', exact: true }).click();
    await page.getByText('smells of smoke').first().waitFor();
    assert.equal((await installation.ask('/gpus?node=gpu2')).items[0].fence.why, 'smells of smoke');
    await page.getByRole('button', { name: 'Use again…' }).click();
    await dialog.getByRole('button', { name: 'Use again' }).click();
    await page.getByText('Healthy').waitFor();
    await page.getByRole('button', { name: 'Drain…' }).click();
    await dialog.getByLabel(/^Why/).fill('new fans');
    await dialog.getByRole('button', { name: 'Drain' }).click();
    await page.getByText('new fans').waitFor();
    await page.getByRole('button', { name: 'Use again' }).click();
    await page.getByText('new fans').waitFor({ state: 'detached' });
  });

  await step('sensors are shown of the GPU that has some, and nothing of the other', async () => {
    const page = await signedIn('member', '/nodes/gpu1');
    await page.getByText('a software GPU has no sensors').first().waitFor();
    assert.equal(await page.getByText('°C').count(), 0);
    if (!process.env.NVML) return;
    await open(page, '/nodes/gpu2');
    await page.locator('.stat', { hasText: 'Hottest GPU' }).getByText('61 °C').waitFor();
    await page.locator('.stat', { hasText: 'Power' }).getByText('312 W').waitFor();
    await page.getByText('580.159.04').waitFor();
    await open(page, '/gpus');
    await page.getByRole('button', { name: 'Temperature' }).click();
    await page.getByText('not measured').first().waitFor();
    await page.getByText('where it slows down').waitFor();
  });

  await step('an administrator moves a running lease to the other node', async () => {
    const now = () => installation.ask(`/leases/${lease}`);
    // The drain before this may have moved it: its program has to have arrived first.
    const other = await until('a node that it can move to', async () => {
      const { moving, places } = await now();
      const node = places[0].node === 'gpu1' ? 'gpu2' : 'gpu1';
      const { reasons } = await installation.ask(`/leases/${lease}/moves/plan?node=${node}`);
      return moving?.state !== 'sent' && !reasons.some((reason) => /ask again|moving already|no room/.test(reason)) && node;
    });
    const page = await signedIn('tenant_admin', `/leases/${lease}`);
    await page.getByRole('button', { name: 'Move…' }).click();
    await page.getByRole('combobox', { name: /^To/ }).selectOption(other);
    await page.getByRole('button', { name: 'Move it' }).click();
    await page.getByRole('dialog').waitFor({ state: 'detached' });
    const { moving, places } = await until('the end of the move', async () => {
      const one = await now();
      return one.moving?.state !== 'sent' && one;
    });
    assert.ok(moving?.state === 'refused' ? moving.reason : places[0].node === other, JSON.stringify(moving));
    await page.getByText(moving?.state === 'refused' ? 'It goes on where it was' : `It goes on at ${other}`).waitFor();
  });

  await step('usage is shown as it arrives, and adds up to what the ledger has', async () => {
    const page = await signedIn('member', '/usage?minutes=1440');
    await page.getByRole('link', { name: `#${lease}`, exact: true }).first().waitFor();
    const records = page.locator('.stat', { hasText: 'Records' }).locator('.value');
    const before = Number(await records.textContent());
    await until('more records', async () => Number(await records.textContent()) > before);
  });

  await step('a recommendation becomes the default of the next runs, and is undone', async () => {
    const program = { tenant: 'acme/sales', program: HOSTILE, share_ppm: 250_000, memory: 0 };
    // Ten of them say how much memory the next one needs.
    const run = () => installation.compute(['-p', '0.1', '--name', '<img src=x onerror="window.hit=1">'], tokens.member);
    for (let times = 0; times < 2; times += 1) await Promise.all(Array.from({ length: 5 }, run));
    await until('ten runs have ended', async () => {
      const advice = JSON.parse(await installation.run(['iq', '--all', '-o', 'json']));
      return advice.some((one) => one.recommendation);
    });
    const page = await signedIn('tenant_admin', '/rightsize');
    await page.getByRole('button', { name: 'Use for next runs…' }).first().click();
    await page.getByRole('button', { name: 'Use it' }).click();
    await page.getByRole('button', { name: 'Undo' }).waitFor();
    const [set] = await installation.ask('/run-defaults');
    const asked = await installation.ask('/leases', tokens.member, { name: set.program, use_default: true, hold_ms: 600_000 });
    assert.equal(asked.share_ppm, set.share_ppm);
    await installation.endLease(asked);
    await page.getByRole('button', { name: 'Undo' }).click();
    await page.getByRole('button', { name: 'Undo' }).waitFor({ state: 'detached' });
    assert.deepEqual(await installation.ask('/run-defaults'), []);
    const actions = (await installation.ask('/audit/latest?limit=1000')).items.map((entry) => entry.action);
    assert.ok(actions.includes('default.set') && actions.includes('default.removed'));
    await installation.ask('/run-defaults', installation.admin, program);
    await open(page, '/rightsize');
  });

  await step('an administrator consents to what the server changes by itself, undoes it, and allows it again', async () => {
    const page = await signedIn('tenant_admin', '/rightsize');
    const autonomy = () => installation.ask('/autonomy?tenant=acme');
    await page.getByRole('button', { name: 'Change what the server may do for acme', exact: true }).click();
    await page.getByRole('radio', { name: /next-run/ }).check();
    await page.getByLabel(/^Part of its share/).fill('50');
    await page.getByLabel(/^Suspend idle/).fill('2h');
    await look(page, 'consent-form');
    await page.getByRole('button', { name: 'Consent' }).click();
    await page.getByText('suspended after 2 h').waitFor();
    const { consent } = (await autonomy()).tenants.find(({ tenant }) => tenant === 'acme');
    assert.deepEqual([consent.mode, consent.floor_percent, consent.idle_after_ms], ['next-run', 50, 7_200_000]);

    // A program that holds a part of a GPU, and computes for a small part of the time.
    const idleMs = 3000;
    const run = () => installation.computeAndIdle(['-p', '0.3', '--name', 'nightly report'], tokens.tenant_admin, idleMs);
    await Promise.all(Array.from({ length: 3 }, run));
    await until('a program has another size', async () => (await autonomy()).programs.length > 0);
    const [{ tenant, program, share_ppm, asked_share_ppm }] = (await autonomy()).programs;
    const row = page.getByRole('region', { name: 'What the server changes by itself' }).locator('tr', { hasText: program });
    await open(page, '/rightsize');
    await row.getByText(new RegExp(`${share_ppm / 10_000} %`)).first().waitFor();
    assert.deepEqual([program, asked_share_ppm, share_ppm < asked_share_ppm], ['nightly report', 300_000, true], `${share_ppm}`);
    await row.getByRole('button', { name: 'Undo' }).click();
    await row.getByText('left alone since').waitFor();
    await look(page, 'left-alone');
    const undone = await autonomy();
    assert.deepEqual(undone.programs.filter((one) => one.program === program), []);
    assert.deepEqual(undone.left_alone.map((one) => [one.tenant, one.program]), [[tenant, program]]);
    await row.getByRole('button', { name: 'Allow again' }).click();
    await row.getByText('left alone since').waitFor({ state: 'detached' });
    assert.deepEqual((await autonomy()).left_alone, []);
    await installation.run(['iq', '--consent', 'recommend', '--idle-after', 'never'], tokens.tenant_admin);
  });

  return lease;
}

/** The names of the spans that the collector has of a lease, once it has them. */
function traceOf(installation, lease) {
  for (const { body } of installation.collector.requests) {
    const spans = JSON.parse(body).resourceSpans.flatMap((resource) => resource.scopeSpans).flatMap((scope) => scope.spans);
    const own = spans.find((span) => span.attributes?.some(({ key, value }) => key === 'sluice.lease' && String(Object.values(value)[0]) === String(lease)));
    const text = JSON.stringify(spans);
    if (own) return { spans: spans.filter((span) => span.traceId === own.traceId).map((span) => span.name).sort(), text };
  }
  return undefined;
}
