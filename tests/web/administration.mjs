// What providers and administrators do by hand about tenants, pools, prices and money: each step
// clicks, and then asks the server what has become of it.

import assert from 'node:assert/strict';
import { createHmac } from 'node:crypto';
import { readFileSync } from 'node:fs';

import { blake3 } from '@noble/hashes/blake3.js';

import { Receiver, until } from './installation.mjs';

const HOUR_MS = 3_600_000;
const DAY_MS = 24 * HOUR_MS;

/** An amount of money as a page shows it, in millionths. */
export function micro(shown) {
  const [, sign, whole, fraction = ''] = /^\s*(−?)([\d,]+)(?:\.(\d{1,6}))? EUR\s*$/.exec(shown) ?? assert.fail(`“${shown}” is no amount in EUR`);
  const value = Number(whole.replaceAll(',', '')) * 1_000_000 + Number(fraction.padEnd(6, '0'));
  return sign ? -value : value;
}

export async function administration({ installation, pages, HOSTILE }) {
  const { step, signedIn, open, look } = pages;
  const json = async (...args) => JSON.parse(await installation.run([...args, '-o', 'json']));
  const list = async (path) => (await installation.ask(`${path}${path.includes('?') ? '&' : '?'}limit=1000`)).items;

  await step('a tenant administrator sets a quota and makes a token', async () => {
    const page = await signedIn('tenant_admin', '/tenants');
    await page.getByRole('button', { name: 'Change acme/sales' }).click();
    await page.getByLabel(/^Weight/).fill('3');
    await page.getByRole('button', { name: 'Save' }).click();
    await until('the weight', async () => (await installation.ask('/tenants?tenant=acme/sales')).items[0].quota.over_quota_weight === 3);
    await open(page, '/tokens');
    await page.getByRole('button', { name: 'New token…' }).click();
    await page.getByLabel(/^Name/).fill('from the page');
    await page.getByRole('button', { name: 'Make it' }).click();
    const secret = await page.getByText(/^slc_/).textContent();
    const row = page.locator('tr', { hasText: 'from the page' });
    await row.getByText('—', { exact: true }).waitFor();
    assert.equal((await installation.ask('/whoami', secret)).name, 'from the page');
    await open(page, '/tokens');
    await row.locator('[data-label="Last used"] time').waitFor();
  });

  await step('an administrator adds a webhook, and sees what was delivered', async () => {
    const receiver = await Receiver.start();
    const page = await signedIn('tenant_admin', '/webhooks');
    await page.getByRole('button', { name: 'New webhook…' }).click();
    await page.getByLabel(/^URL/).fill(receiver.url);
    await page.getByLabel(/^Name/).fill(HOSTILE);
    await page.getByLabel('A budget passes').check();
    assert.equal(await page.getByLabel('A node stops reporting').count(), 0, 'nodes are not of a tenant');
    await page.getByRole('button', { name: 'Add it' }).click();
    const secret = await page.getByText(/^whsec_/).textContent();
    await page.getByRole('button', { name: 'I have kept it' }).click();
    await page.getByRole('button', { name: 'Test', exact: true }).click();
    await page.getByText('Delivered').first().waitFor();
    const [{ headers, body }] = receiver.requests;
    const signed = `${headers['webhook-id']}.${headers['webhook-timestamp']}.${body}`;
    const key = Buffer.from(secret.replace('whsec_', ''), 'base64');
    assert.equal(headers['webhook-signature'], `v1,${createHmac('sha256', key).update(signed).digest('base64')}`);
    // What is elsewhere is refused, with the reason.
    await page.getByRole('button', { name: 'New webhook…' }).click();
    await page.getByLabel(/^URL/).fill('https://10.0.0.1/');
    await page.getByRole('button', { name: 'Add it' }).click();
    await page.getByRole('alert').filter({ hasText: '--webhook-allow' }).waitFor();
    receiver.stop();
  });

  await step('tenants, tokens, pools, prices, corrections and leases are made, changed and ended by hand', async () => {
    const page = await signedIn('platform', '/tenants');
    const dialog = page.getByRole('dialog');
    await page.getByRole('button', { name: 'New tenant…' }).first().click();
    await page.getByLabel(/^Path/).fill('initech');
    await page.getByLabel('Guaranteed GPUs').fill('0.25');
    await dialog.getByRole('button', { name: 'Save' }).click();
    await page.getByRole('button', { name: 'Remove initech' }).click();
    assert.equal((await installation.ask('/tenants?tenant=initech')).items[0].quota.guaranteed_milli, 250);
    await dialog.getByRole('button', { name: 'Remove' }).click();
    await page.getByRole('button', { name: 'Remove initech' }).waitFor({ state: 'detached' });

    const secret = await installation.token('acme', 'member', 'to be revoked');
    await open(page, '/tokens');
    await page.locator('tr', { hasText: 'to be revoked' }).getByRole('button', { name: 'Revoke…' }).click();
    await dialog.getByRole('button', { name: 'Revoke' }).click();
    await until('it is revoked', async () => (await installation.ask('/whoami', secret)).status === 401);

    await open(page, '/pools');
    await page.getByRole('button', { name: 'New pool…' }).click();
    await dialog.getByRole('textbox', { name: 'Name', exact: true }).fill('tried');
    await dialog.getByRole('textbox', { name: /^Nodes/ }).fill('gpu9');
    await dialog.getByRole('button', { name: 'Declare it' }).click();
    await page.getByRole('button', { name: 'Remove pool tried' }).click();
    await dialog.getByRole('button', { name: 'Remove' }).click();
    await page.getByRole('button', { name: 'Remove pool tried' }).waitFor({ state: 'detached' });
    await page.getByRole('button', { name: 'New pool…' }).click();
    await dialog.getByRole('textbox', { name: 'Name', exact: true }).fill('gilded');
    await dialog.getByRole('textbox', { name: /^Nodes/ }).fill('gpu9');
    const another = dialog.getByRole('textbox', { name: /^Another tier/ });
    await another.fill('gold');
    await another.press('Enter');
    await dialog.getByText('It begins with what it is a kind of').waitFor();
    await another.fill('premium-gold');
    await dialog.getByRole('button', { name: 'Add it' }).click();
    await dialog.getByRole('textbox', { name: /^premium-gold: limit/ }).fill('50%');
    await dialog.getByRole('button', { name: 'Declare it' }).click();
    await dialog.waitFor({ state: 'detached' });
    const [gold] = (await installation.ask('/pools/gilded')).tiers;
    assert.deepEqual([gold.name, gold.limit_ppm], ['premium-gold', 500_000]);
    await page.getByRole('button', { name: 'New price…' }).click();
    await dialog.getByLabel(/^Tier/).selectOption('premium-gold');
    await dialog.getByLabel(/^Price/).fill('6');
    await dialog.getByRole('button', { name: 'Declare it' }).click();
    await page.locator('tr', { hasText: 'premium-gold' }).getByText('6.00').waitFor();
    await page.getByRole('button', { name: 'Remove pool gilded' }).click();
    await dialog.getByRole('button', { name: 'Remove' }).click();
    await page.getByRole('button', { name: 'Remove pool gilded' }).waitFor({ state: 'detached' });
    await page.getByRole('button', { name: 'New price…' }).click();
    await dialog.getByLabel(/^What/).selectOption('transfer');
    await dialog.getByLabel(/^Tier/).selectOption('');
    await dialog.getByLabel(/^Price/).fill('0.05');
    await dialog.getByRole('button', { name: 'Declare it' }).click();
    await page.locator('tr', { hasText: 'Transfer' }).getByText('0.05').waitFor();

    await open(page, '/invoices');
    await page.getByRole('button', { name: 'Correct a bill…' }).click();
    await dialog.getByLabel(/^Tenant/).selectOption('globex');
    await dialog.getByLabel(/^Amount/).fill('-1.25');
    await dialog.getByLabel(/^Why/).fill('a node was away');
    await dialog.getByRole('button', { name: 'Correct' }).click();
    await dialog.waitFor({ state: 'detached' });
    const bill = JSON.parse(await installation.run(['bill', '--tenant', 'globex', '-o', 'json']));
    assert.ok(JSON.stringify(bill.corrections).includes('-1250000'), JSON.stringify(bill));

    const asked = await installation.ask('/leases', installation.tokens.globex, { share_ppm: 50_000, name: 'to be ended', hold_ms: 600_000 });
    await open(page, `/leases/${asked.id}`);
    await page.getByRole('button', { name: 'End…' }).click();
    await dialog.getByRole('button', { name: 'End it' }).click();
    await until('it has ended', async () => (await installation.ask(`/leases/${asked.id}`)).state === 'ended');
  });

  await step('a file is compared with what is declared, and applied as it was compared', async () => {
    const page = await signedIn('platform', '/declarations');
    const file = page.getByLabel('Declaration in YAML');
    const compare = () => page.getByRole('button', { name: 'Show what would change' }).click();
    await file.fill('tenants: [{path: initech, quota: {limits: 3}}]');
    await compare();
    await page.getByRole('alert').filter({ hasText: 'limits' }).waitFor();
    await file.fill('tenants:\n  - path: initech\n    quota: {guaranteed: 0.25}\nprices:\n  - {meter: transfer, price: 0.07}\n');
    await compare();
    await page.getByText('tenant initech created').waitFor();
    await page.getByText(/price of transfer per GiB is 0.07/).waitFor();
    assert.equal((await installation.ask('/tenants/initech')).status, 404, 'a comparison changes nothing');
    // Something else is declared meanwhile: what was compared is not what there is.
    await installation.declare('tenants: [{path: hooli}]');
    await page.getByRole('button', { name: 'Apply…' }).click();
    await page.getByRole('button', { name: 'Apply', exact: true }).click();
    await page.getByRole('alert').filter({ hasText: 'changed' }).waitFor();
    await page.getByRole('button', { name: 'Cancel' }).click();
    await compare();
    await page.getByText('tenant initech created').waitFor();
    await page.getByRole('button', { name: 'Apply…' }).click();
    await page.getByRole('button', { name: 'Apply', exact: true }).click();
    await page.getByText('2 changes made.').waitFor();
    assert.equal((await installation.ask('/tenants/initech')).quota.guaranteed_milli, 250);
    await compare();
    await page.getByText('No drift').waitFor();
    await page.getByRole('button', { name: 'Take what is declared' }).click();
    await until('the file', async () => (await file.inputValue()).includes('initech'));
    assert.equal(await file.inputValue(), await installation.run(['apply', '--show']), 'it is what the command prints');
    await compare();
    await page.getByText('No drift').waitFor();
    for (const tenant of ['initech', 'hooli']) await installation.run(['tenant', 'delete', tenant]);
  });

  await step('a pool is changed by its form, which keeps what it does not show', async () => {
    const page = await signedIn('provider');
    const dialog = page.getByRole('dialog');
    const night = { name: 'night', calendar: { zone: 'Europe/Berlin', times: [{ days: ['sat', 'sun'], from: '00:00', until: '24:00' }] }, sharing: 'fractions' };
    const declared = { name: 'tuned', nodes: ['gpu9'], models: ['NVIDIA A100 80GB', 'h100'], labels: { rack: 'a1' }, access: { private: { tenants: ['acme'] } }, sharing: 'whole', overcommit_percent: 150, memory_overcommit_percent: 200, personalities: [night], idle_after_ms: 0 };
    const declare = (pool) => installation.declare(JSON.stringify({ pools: [pool] }));
    await declare(declared);
    const before = await installation.ask('/pools/tuned');
    assert.equal(before.idle_after_ms, 0);
    await open(page, '/pools');
    const change = async () => {
      await page.getByRole('button', { name: 'Change pool tuned' }).click();
      await dialog.waitFor();
    };
    const submit = () => dialog.getByRole('button', { name: 'Declare it' }).click();
    const saved = async () => {
      await submit();
      await dialog.waitFor({ state: 'detached' });
      return installation.ask('/pools/tuned');
    };
    const refused = async (why, name) => {
      const is = JSON.stringify(await installation.ask('/pools/tuned'));
      await submit();
      await dialog.getByRole('alert').filter({ hasText: why }).waitFor();
      if (name) await look(page, name);
      assert.equal(JSON.stringify(await installation.ask('/pools/tuned')), is, 'a refusal changes nothing');
      await dialog.getByRole('button', { name: 'Cancel' }).click();
      await dialog.waitFor({ state: 'detached' });
    };
    const overcommit = dialog.getByLabel(/^Overcommit/);
    const memory = dialog.getByLabel(/^Memory overcommit/);
    const models = dialog.getByLabel(/^Models/);
    const idle = dialog.getByLabel(/^Suspend idle/);

    await change();
    await look(page, 'pool-form');
    assert.deepEqual([await models.inputValue(), await overcommit.inputValue(), await memory.inputValue(), await idle.inputValue()], ['NVIDIA A100 80GB, h100', '150', '200', 'never']);
    await dialog.getByRole('checkbox', { name: 'basic', exact: true }).check();
    assert.deepEqual(await saved(), { ...before, tiers: ['basic'] }, 'what was not touched stays');

    await change();
    await models.fill('NVIDIA A100 80GB , NVIDIA L40S');
    await overcommit.fill('175');
    await memory.fill('250');
    await dialog.getByLabel(/^The server may change/).selectOption('recommend');
    await idle.fill('30min');
    const changed = { ...before, tiers: ['basic'], models: ['NVIDIA A100 80GB', 'NVIDIA L40S'], overcommit_percent: 175, memory_overcommit_percent: 250, autonomy: 'recommend', idle_after_ms: 1_800_000 };
    assert.deepEqual(await saved(), changed);
    await page.locator('tr', { hasText: 'tuned' }).getByText('memory 250 %').waitFor();

    await change();
    await idle.fill('soon');
    await refused('“soon” is neither a time such as 30min nor “never”');
    await change();
    await idle.fill('Never');
    assert.deepEqual(await saved(), { ...changed, idle_after_ms: 0 });

    // Others change this pool while the form is open, then something else, and then take the pool
    // away.
    await change();
    await overcommit.fill('300');
    await declare({ ...changed, nodes: ['gpu8'] });
    await refused('was changed by others since this form was opened');
    await change();
    await overcommit.fill('300');
    await installation.declare('tenants: [{path: hooli}]');
    assert.deepEqual(await saved(), { ...changed, nodes: ['gpu8'], overcommit_percent: 300 }, 'other declarations are in nobody’s way');
    await installation.run(['tenant', 'delete', 'hooli']);

    await page.getByRole('button', { name: 'New pool…' }).click();
    await dialog.getByRole('textbox', { name: 'Name', exact: true }).fill(' tuned ');
    await refused('there is a pool tuned already', 'pool-refused');

    await change();
    await overcommit.fill('400');
    await installation.run(['pool', 'delete', 'tuned']);
    await submit();
    await dialog.getByRole('alert').filter({ hasText: 'has been removed' }).waitFor();
    assert.equal((await installation.ask('/pools/tuned')).status, 404);
  });

  await step('who asks for a lease reads what its tier is promised', async () => {
    const tiers = ['standard', { name: 'premium', wait: '20ms', attained: '99%', credit: '10%' }];
    await installation.declare(JSON.stringify({ pools: [{ name: 'serving', nodes: ['gpu9'], tiers }] }));
    const page = await signedIn('member', '/new');
    await page.getByText('nothing is promised about them in the tier standard, only in premium').waitFor();
    await page.getByLabel('Tier').selectOption('premium');
    await page.getByText(/^99 % of waits for the GPU are at most 20 ms; a day that misses that is credited with 10 % .*, in pool serving$/).waitFor();
    await look(page, 'promise');
    await page.getByLabel('Pool').selectOption('serving');
    await page.getByText(/credited with 10 % of what the share costs$/).waitFor();
    await installation.run(['pool', 'delete', 'serving']);
  });

  await step('a month is invoiced: drafts, invoices, a payment and a credit note', async () => {
    const page = await signedIn('provider');
    const dialog = page.getByRole('dialog');
    const now = new Date();
    const [from, to] = [-1, 0].map((months) => new Date(Date.UTC(now.getUTCFullYear(), now.getUTCMonth() + months, 1)).toISOString().slice(0, 10));
    const bill = (tenant) => json('bill', '--tenant', tenant, '--from', from, '--until', to);
    const total = ({ total_minor, minor_digits }) => total_minor * 10 ** (6 - minor_digits);
    const cell = async (row) => micro(await row.locator('td[data-label=Total]').textContent());
    /** What the document says is what the command prints, and of the same usage as the bill. */
    const isRight = async (row, shown, tenant) => {
      const [{ total_micro }, own] = [await bill(tenant), shown.bill];
      assert.ok(total_micro > 0 && own.total_micro === total_micro, `${tenant}: ${own.total_micro}, and the bill says ${total_micro}`);
      assert.equal(shown.lines.reduce((sum, { cost_micro }) => sum + cost_micro, 0), total_micro);
      assert.equal(await cell(row), total(shown));
    };

    await open(page, '/invoices');
    await page.getByRole('button', { name: 'Invoice a month…' }).click();
    assert.equal(await dialog.getByLabel(/^Month/).inputValue(), from.slice(0, 7));
    await dialog.getByRole('button', { name: 'Make drafts' }).click();
    await page.getByRole('status').filter({ hasText: `2 drafts made for ${from.slice(0, 7)}` }).waitFor();
    const drafts = page.getByRole('region', { name: '2 drafts' });
    for (const { number, bill: { tenant } } of await list('/drafts')) {
      await isRight(drafts.locator('tr', { hasText: tenant }), await json('invoice', 'show', '--draft', String(number)), tenant);
    }
    assert.deepEqual((await list('/drafts')).map((draft) => draft.bill.tenant).sort(), ['acme', 'globex']);
    await look(page, 'drafts');
    await drafts.locator('tr', { hasText: 'globex' }).getByRole('button', { name: 'Discard' }).click();
    await page.getByRole('region', { name: '1 draft' }).getByRole('button', { name: 'Issue' }).click();
    await page.getByRole('region', { name: /^1 invoice,/ }).waitFor();
    assert.deepEqual(await list('/drafts'), []);

    await page.getByRole('button', { name: 'Issue an invoice…' }).click();
    await dialog.getByLabel(/^Tenant/).selectOption('globex');
    assert.deepEqual([await dialog.getByLabel(/^From/).inputValue(), await dialog.getByLabel(/^Until/).inputValue()], [from, to]);
    await dialog.getByRole('button', { name: 'Issue' }).click();
    await page.getByRole('region', { name: /^2 invoices,/ }).waitFor();
    const of = async (tenant) => (await list('/invoices')).filter((one) => one.bill.tenant === tenant);
    const row = ({ name, number }) => page.getByRole('row').filter({ has: page.getByRole('cell', { name: name || String(number), exact: true }) });
    const [[acme], [globex]] = [await of('acme'), await of('globex')];
    for (const one of [acme, globex]) await isRight(row(one), await json('invoice', 'show', String(one.number)), one.bill.tenant);

    await row(acme).getByRole('button', { name: 'Paid' }).click();
    await row(acme).getByText('paid', { exact: true }).waitFor();
    assert.ok((await of('acme'))[0].state === 'paid' && (await of('acme'))[0].paid_at_ms > 0);
    await row(globex).getByRole('button', { name: 'Credit…' }).click();
    await dialog.getByLabel(/^Reason/).fill('a wrong address');
    await dialog.getByRole('button', { name: 'Issue a credit note' }).click();
    await page.getByText(`credit note for ${globex.number}`).waitFor();
    const note = (await of('globex')).find(({ credits }) => credits === globex.number);
    assert.deepEqual([note.reason, total(note), await cell(row(note))], ['a wrong address', -total(globex), -total(globex)]);
    assert.equal((await of('globex'))[0].state, 'credited');
    await row(globex).getByText('credited', { exact: true }).waitFor();
    const all = /^3 invoices, (.*) in all$/.exec(await page.getByRole('region', { name: /^3 invoices,/ }).getAttribute('aria-label'))[1];
    assert.equal(micro(all), total(acme));

    await look(page, 'invoices');
    // What was credited is invoiced again; what is invoiced is not.
    await page.getByRole('button', { name: 'Invoice a month…' }).click();
    await dialog.getByLabel('Make drafts for review').uncheck();
    await dialog.getByRole('button', { name: 'Issue invoices' }).click();
    await page.getByRole('status').filter({ hasText: /^1 invoice made for .*; skipped acme \(/ }).waitFor();
    const again = (await of('globex')).find(({ state, credits }) => state === 'issued' && !credits);
    await isRight(row(again), await json('invoice', 'show', String(again.number)), 'globex');
  });

  await step('usage that cannot be true is counted or discarded, and a node that is gone is forgotten', async () => {
    const asked = await installation.ask('/leases', installation.tokens.globex, { share_ppm: 500_000, name: 'never started', hold_ms: 600_000 });
    await installation.endLease(asked);
    const untilMs = Date.now();
    const since = new Date(untilMs - 2 * DAY_MS).toISOString().slice(0, 10);
    const bill = async () => (await json('bill', '--tenant', 'globex', '--from', since)).total_micro;
    const before = await bill();
    const records = await reportFalsely(installation, 'gone', asked.id, untilMs);

    const page = await signedIn('provider', '/health');
    const dialog = page.getByRole('dialog');
    const card = page.getByRole('region', { name: 'Usage that cannot be true' });
    const row = (held) => card.locator('tr', { has: page.getByText(held, { exact: true }) });
    const aside = await list('/usage/aside');
    assert.deepEqual(aside.map(({ record }) => record.id).sort(), records.map(({ id }) => id).sort());
    for (const { reason } of aside) await card.getByText(reason).first().waitFor();
    await look(page, 'aside');
    assert.equal(await bill(), before, 'what is set aside is on no bill');
    await row('30 min').getByRole('button', { name: 'Discard…' }).click();
    await dialog.getByRole('button', { name: 'Discard' }).click();
    await row('30 min').waitFor({ state: 'detached' });
    assert.equal(await bill(), before, 'what is discarded is on no bill');
    await row('1 h').getByRole('button', { name: 'Count…' }).click();
    await dialog.getByRole('button', { name: 'Count', exact: true }).click();
    await card.waitFor({ state: 'detached' });
    // Half a GPU for an hour at 2.00, a quarter of a GPU-hour computed at 0.50, and 4 GiB for an
    // hour at 0.01.
    assert.equal((await bill()) - before, 1_000_000 + 125_000 + 40_000);
    assert.deepEqual(await list('/usage/aside'), []);
    const decided = (await list('/audit/latest')).filter(({ action }) => action.startsWith('usage.')).map(({ action, subject }) => [action, subject]);
    assert.deepEqual(decided.sort(), [['usage.accepted', records[0].id], ['usage.discarded', records[1].id]]);

    const operator = await signedIn('platform', '/nodes/gone');
    // It is silent once it has not reported for a while.
    await operator.getByRole('button', { name: 'Forget…' }).click();
    await operator.getByRole('dialog').getByRole('button', { name: 'Forget' }).click();
    await operator.waitForURL(/\/nodes$/);
    await operator.getByRole('link', { name: 'gpu1' }).first().waitFor();
    assert.equal(await operator.getByRole('link', { name: 'gone' }).count(), 0);
    assert.equal((await installation.ask('/nodes/gone')).status, 404);
  });

  await step('of much usage the page says how much it shows, reads on, and saves all of it', async () => {
    const page = await signedIn('provider');
    const all = [];
    // Since half past some hour: records of the past begin with hours, and none is at the edge.
    const minutes = 7 * 24 * 60 + new Date().getUTCMinutes() + 30;
    const sinceMs = Date.now() - minutes * 60_000;
    for (let cursor = `${sinceMs}.`; cursor; ) {
      const { items, next } = await installation.ask(`/usage?limit=1000&tenant=globex&cursor=${cursor}`);
      all.push(...items);
      cursor = next;
    }
    assert.ok(all.length > 5000, `${all.length} records`);
    await open(page, `/usage?minutes=${minutes}&tenant=globex`);
    await page.getByRole('heading', { name: /^The first 5,000 records of this time/ }).waitFor();
    const stat = (label) => page.locator('.stat').filter({ has: page.getByText(label, { exact: true }) });
    await stat('Held').getByText('of the first 5,000 records').waitFor();
    await stat('Records').getByText('5,000 and more').waitFor();
    await look(page, 'usage-of-some');
    await page.getByRole('button', { name: 'Read 5,000 more' }).click();
    await page.getByRole('heading', { name: 'Records, the latest first' }).waitFor();
    await stat('Records').getByText(all.length.toLocaleString('en'), { exact: true }).waitFor();
    const hours = (sum) => (sum / 1_000_000 / HOUR_MS).toLocaleString('en', { maximumFractionDigits: 3 });
    const held = all.reduce((sum, one) => sum + one.share_ppm * one.gpus * (one.until_ms - one.from_ms), 0);
    await stat('Held').getByText(`${hours(held)} GPU-hours`).waitFor();
    await stat('Computed').getByText(`${hours(all.reduce((sum, one) => sum + one.used_ppm_ms, 0))} GPU-hours`).waitFor();

    const [file] = await Promise.all([page.waitForEvent('download'), page.getByRole('button', { name: 'All as CSV' }).click()]);
    const [head, ...lines] = readFileSync(await file.path(), 'utf8').trimEnd().split('\r\n');
    const at = (line, column) => line.split(',')[head.split(',').indexOf(column)];
    assert.deepEqual(lines.map((line) => [at(line, 'id'), Number(at(line, 'used_ppm_ms'))]), all.map((one) => [one.id, one.used_ppm_ms]));
    await page.getByText(`${all.length.toLocaleString('en')} records saved.`).waitFor();
  });
}

/** What has to have the installation to itself: sign-in looks different meanwhile. */
export async function identity({ installation, pages, HOSTILE }) {
  const { step, signedIn } = pages;
  await step('rules of the identity provider are shown as text, and taken away', async () => {
    const rule = { claim: 'groups', is: HOSTILE, tenant: 'acme', role: 'viewer' };
    await installation.declare(JSON.stringify({ identity: { issuer: 'http://127.0.0.1:1/', client_id: 'sluice', rules: [rule] } }));
    const page = await signedIn('platform', '/declarations');
    await page.getByRole('cell', { name: HOSTILE }).waitFor();
    assert.equal(await page.evaluate(() => window.hit), undefined);
    await page.getByRole('button', { name: 'Take its tokens no more…' }).click();
    await page.getByRole('dialog').getByRole('button', { name: 'Take them no more' }).click();
    await page.getByText('No identity provider').waitFor();
    assert.equal((await installation.ask('/identity')).status, 404);
    // A tenant's administrator sees their own part, and no rules.
    const other = await signedIn('tenant_admin', '/declarations');
    await other.getByText('path: acme').first().waitFor();
    assert.equal(await other.getByText('Identity provider', { exact: true }).count(), 0);
    assert.equal(await other.getByText('globex').count(), 0);
  });
}

/** Once no tenant asks for anything any more. */
export async function fairShares({ installation, pages }) {
  const { step, signedIn, open, look } = pages;
  await step('tenants see what their fair share is, and whether they hold more', async () => {
    const page = await signedIn('tenant_admin');
    await until('the page and the command say the same', async () => {
      // No event says that a share has changed; the page asks once a minute.
      await open(page, '/tenants');
      const said = JSON.parse(await installation.run(['tenants', '-o', 'json'], installation.tokens.tenant_admin));
      const shares = said.map(({ path, fair_share_milli }) => [path.split('/').at(-1), fair_share_milli]);
      assert.deepEqual(shares.map(([name]) => name), ['acme', 'research', 'sales']);
      const cell = (name) => page.getByRole('row').filter({ has: page.locator('td[data-label=Tenant]', { hasText: name }) }).locator('td[data-label="Fair share"]');
      const shown = await Promise.all(shares.map(([name]) => cell(name).textContent()));
      // Of sales a lease of half a GPU runs, another waits, and the limit is half a GPU.
      return shares[2][1] === 500 && shares.every(([, milli], index) => Number.parseFloat(shown[index]) === milli / 1000);
    });
    await look(page, 'fair-shares');
  });
}

/** A node that does not run any program joins, reports usage of a lease that it never had, and is not heard of again. */
async function reportFalsely(installation, name, lease, untilMs) {
  const { release } = await installation.ask('/nodes/gpu1');
  const gpu = { name: 'Lost GPU', uuid: 'GPU-lost', memory: 16 * 2 ** 30, software: true, compute_capability: '12.0', driver_version: 13_000 };
  const join = { name, address: '127.0.0.1:1', gpus: [gpu], release };
  const { node, token } = await installation.ask('/nodes', await installation.token('/', 'node', name), join);
  const record = (sequence, heldMs) => ({
    id: Buffer.from(blake3(Buffer.from(`sluice usage 1/${node}/${lease}/1/${sequence}`))).toString('hex').slice(0, 32),
    node, lease, attempt: 1, sequence, tenant: 'globex', from_ms: untilMs - heldMs, until_ms: untilMs, share_ppm: 500_000, gpus: 1,
    memory_mib: 4096, used_ppm_ms: heldMs * 250_000, kernels: 1, bytes_in: 0, bytes_out: 0, memory_peak: 0, last: false,
  });
  const usage = [record(1, HOUR_MS), record(2, HOUR_MS / 2)];
  // It takes no leases of others.
  const report = { sequence: 1, gpus: [{ memory_used: 0, busy_ppm: 0 }], leases: [], sessions: [], usage, closed: true };
  const { usage_taken: taken, usage_refused: refused } = await installation.ask(`/nodes/${node}/reports`, token, report);
  assert.deepEqual([taken, refused], [2, []]);
  return usage;
}
