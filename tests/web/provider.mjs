// Signing in to the web view at an identity provider, in a real browser: people of roles, and who
// is refused.
//
// SERVER is the server's URL, CHROMIUM the browser.

import assert from 'node:assert/strict';

import { chromium } from 'playwright-core';

const { SERVER, CHROMIUM } = process.env;
const PATIENCE_MS = 120_000;

const browser = await chromium.launch({ executablePath: CHROMIUM, args: ['--no-sandbox'] });

/** A page of a new profile, at the provider's form. */
async function atProvider() {
  const context = await browser.newContext();
  context.setDefaultTimeout(PATIENCE_MS);
  const page = await context.newPage();
  await page.goto(SERVER);
  await page.getByRole('link', { name: /^Sign in with / }).click();
  await page.locator('input[name=login]').waitFor();
  return page;
}

/** Signs in as this person, and agrees to what the provider asks. */
async function signIn(page, person) {
  await page.locator('input[name=login]').fill(person);
  await page.locator('input[name=password]').fill('any');
  await page.locator('button[type=submit]').click();
  await page.getByRole('button', { name: 'Continue' }).click();
}

async function people() {
  for (const [person, role] of [['ada', 'platform'], ['bob', 'member']]) {
    const page = await atProvider();
    const asked = new URL(page.url());
    await signIn(page, person);
    await page.getByRole('heading', { name: 'Overview', level: 1 }).waitFor();
    assert.equal(new URL(page.url()).origin, new URL(SERVER).origin, `${asked} led to ${page.url()}`);
    const session = await page.evaluate(async () => (await fetch('/api/v1/session')).json());
    assert.deepEqual([session.token.role, session.token.name], [role, person]);
    // The provider is on the same host, and browsers do not tell ports apart.
    const cookies = (await page.context().cookies(`${SERVER}/api/v1/session`)).filter(({ name }) => name.startsWith('sluice-'));
    assert.deepEqual(cookies.map((cookie) => [cookie.httpOnly, cookie.sameSite]), [[true, 'Strict']], 'one session, and no attempt');
    await page.context().close();
  }
  // Who was here is listed, with the role that the rules gave.
  const page = await atProvider();
  await signIn(page, 'ada');
  await page.getByRole('heading', { name: 'Overview', level: 1 }).waitFor();
  await page.goto(`${SERVER}/tokens`);
  await page.locator('tr', { hasText: 'bob' }).getByText('Member').waitFor();
  await page.locator('tr', { hasText: 'ada' }).getByText('You').waitFor();
  await page.context().close();
}

async function refused() {
  // No rule says what she may do.
  const page = await atProvider();
  await signIn(page, 'eve');
  await page.getByRole('heading', { name: 'Not signed in' }).waitFor();
  assert.match(await page.locator('p').first().innerText(), /knows eve, but no rule/);
  await page.getByRole('link', { name: 'Back to Sluice' }).click();
  await page.getByRole('heading', { name: 'Sign in' }).waitFor();
  // A link with a code that this browser did not ask for signs nobody in.
  for (const query of ['code=a&state=b', 'error=access_denied&state=b', '']) {
    await page.goto(`${SERVER}/api/v1/session/callback?${query}`);
    assert.match(await page.locator('p').first().innerText(), /did not begin to sign in/);
  }
  // Whoever says no at the provider reads what it says.
  await page.goto(SERVER);
  await page.getByRole('link', { name: /^Sign in with / }).click();
  await page.getByRole('link', { name: 'Cancel' }).click();
  await page.getByRole('heading', { name: 'Not signed in' }).waitFor();
  assert.match(await page.locator('p').first().innerText(), /the identity provider says/);
  await page.context().close();
}

try {
  await people();
  await refused();
  console.log('PASS');
} finally {
  await browser.close();
}
