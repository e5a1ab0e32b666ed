// Pages of the web view in a browser: who opens them, what each of them has to be, and the steps in
// which that is tried.

import assert from 'node:assert/strict';
import { AsyncLocalStorage } from 'node:async_hooks';
import { mkdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';

import { AxeBuilder } from '@axe-core/playwright';

import { PATIENCE_MS } from './installation.mjs';

const SCREENSHOTS = process.env.SCREENSHOTS;
/** A folder for pictures of every page in every role, narrow and wide, light and dark, for people to look through. */
const GALLERY = process.env.GALLERY;
const WIDE = { width: 1360, height: 860 };
const NARROW = { width: 390, height: 844 };
/** The most of a page's text that a failure shows. */
const SHOWN_MAX = 1500;

/** The commands of the reference. */
const REFERENCE = new Set([...readFileSync(process.env.REFERENCE, 'utf8').matchAll(/^## `(.*)`$/gm)].map(([, command]) => command));
/** Commands that change nothing. */
const READS = /^sluice (gpus|sessions|gpu facts|lease list|lease show \d+|queue|tenants|node list|servers|pools|bill|plan|usage(?!.*--follow)|iq( --autonomy)?$|invoice list|token list|webhook list|audit (log|verify)|apply --show|identity show)\b[^>]*$/;

export class Pages {
  failures = [];
  #browser;
  #installation;
  /** The session of each role, once it has signed in: a form that is tried once need not be filled in by each step. */
  #sessions = new Map();
  /** The step that runs, with the pages that it has opened. Steps run beside each other. */
  #running = new AsyncLocalStorage();

  constructor(browser, installation) {
    this.#browser = browser;
    this.#installation = installation;
  }

  /** Does a part of the test, and says how it went. Its pages are closed at its end. */
  step = async (name, check) => {
    const began = Date.now();
    const running = { pages: [] };
    const took = () => `(${((Date.now() - began) / 1000).toFixed(1)} s)`;
    try {
      await this.#running.run(running, check);
      console.log(`ok   ${name} ${took()}`);
      return true;
    } catch (error) {
      const shown = await Promise.all(running.pages.map(whatItShows));
      this.failures.push([`${name}: ${error?.stack ?? error}`, ...shown].join('\n'));
      console.log(`FAIL ${name} ${took()}`);
      return false;
    } finally {
      await Promise.all(running.pages.map((page) => page.context().close()));
    }
  };

  /** A page of a browser that has not been used before, or has this session. */
  visit = async ({ size = WIDE, session, server = this.#installation } = {}) => {
    const context = await this.#browser.newContext({ viewport: size, colorScheme: 'light', storageState: session });
    context.setDefaultTimeout(PATIENCE_MS);
    const page = await context.newPage();
    this.#running.getStore().pages.push(page);
    page.on('pageerror', (error) => this.failures.push(`${page.url()}: ${error}`));
    page.on('console', (message) => {
      if (/Content Security Policy/i.test(message.text())) this.failures.push(message.text());
    });
    page.on('request', (request) => {
      if (!request.url().startsWith(server.url) && !/^(data|blob):/.test(request.url())) this.failures.push(`asks elsewhere: ${request.url()}`);
    });
    return page;
  };

  /** Fills in the form. */
  signIn = async (page, role) => {
    await page.goto(this.#installation.url);
    await page.getByLabel(/^Token/).fill(this.#installation.tokens[role]);
    await page.getByRole('button', { name: 'Sign in' }).click();
    await page.getByRole('heading', { name: 'Overview', level: 1 }).waitFor();
  };

  /** A page of a role. */
  signedIn = async (role, path = '/', options = {}) => {
    const page = await this.visit({ ...options, session: this.#sessions.get(role) });
    if (!this.#sessions.has(role)) {
      await this.signIn(page, role);
      this.#sessions.set(role, await page.context().storageState());
    }
    await this.open(page, path);
    return page;
  };

  /** The page at a path, with what it shows read. */
  open = async (page, path) => {
    await page.goto(this.#installation.url + path);
    await page.locator('h1').waitFor();
    await page.locator('[aria-busy=true]').first().waitFor({ state: 'detached' });
  };

  /** What is open now, also a dialog, is accessible in the light and in the dark, and fits on a phone. */
  look = async (page, name) => {
    for (const colorScheme of ['light', 'dark']) {
      await page.emulateMedia({ colorScheme, reducedMotion: 'reduce' });
      await isAccessible(page, `${name}, ${colorScheme}`);
      await gallery(page, 'look', `/${name}`, colorScheme);
    }
    await page.setViewportSize(NARROW);
    await fits(page, name);
    await gallery(page, 'look', `/${name}`, 'narrow');
    await page.setViewportSize(WIDE);
    await page.emulateMedia({ colorScheme: 'light', reducedMotion: null });
  };

  /**
   * Each of the pages of a role fits on a phone, and its commands do what they say. It is accessible in the themes that
   * `themesOf` names for its place in the list.
   */
  tour = async (role, paths, themesOf) => {
    const page = await this.signedIn(role, '/', { size: NARROW });
    const commands = this.#triedCommands(role);
    for (const [index, path] of paths.entries()) {
      await page.setViewportSize(NARROW);
      await page.emulateMedia({ colorScheme: 'light', reducedMotion: 'reduce' });
      await this.open(page, path);
      await fits(page, path);
      await gallery(page, role, path, 'narrow');
      commands.add(path, await commandsOf(page));
      const themes = themesOf(index);
      if (themes.length || GALLERY) await page.setViewportSize(WIDE);
      for (const colorScheme of GALLERY ? ['light', 'dark'] : themes) {
        await page.emulateMedia({ colorScheme, reducedMotion: 'reduce' });
        if (themes.includes(colorScheme)) await isAccessible(page, `${path}, ${colorScheme}`);
        await gallery(page, role, path, colorScheme);
      }
    }
    assert.equal(await page.evaluate(() => window.hit), undefined, 'a program’s name was run');
    assert.deepEqual(await commands.failures(), []);
  };

  /** Kept for the documents where the caller says so. */
  shot = async (page, name) => {
    if (!SCREENSHOTS) return;
    mkdirSync(SCREENSHOTS, { recursive: true });
    // What moves has come to rest, and charts have something to show.
    await page.waitForTimeout(name === 'lease' ? 20_000 : 500);
    await page.screenshot({ path: join(SCREENSHOTS, `${name}.png`) });
  };

  /**
   * Does what pages say does the same as they do, beside other things: what reads must work in the role of the page, and
   * all of it must exist.
   */
  #triedCommands(role) {
    const token = this.#installation.tokens[role];
    const [seen, failures] = [new Set(), []];
    let trying = Promise.resolve();
    const tryOne = (path, line, is) => {
      if (seen.has(line)) return;
      seen.add(line);
      trying = trying.then(is).catch((error) => failures.push(`${path}: ${error}`));
    };
    const add = (path, { cli, curl }) => {
      for (const line of cli) {
        const words = line.split(' ');
        tryOne(path, line, async () => {
          assert.ok(REFERENCE.has(words.slice(0, 3).join(' ')) || REFERENCE.has(words.slice(0, 2).join(' ')), `${line} is no command`);
          if (READS.test(line)) await this.#installation.run(words.slice(1), token);
        });
      }
      for (const line of curl.filter((line) => !line.includes(' -X '))) tryOne(path, line, () => this.#installation.shell(line, token));
    };
    return { add, failures: () => trying.then(() => failures) };
  }
}

export async function isAccessible(page, where) {
  // Pages have no frames, which is all that the other mode is for; it opens another page for each
  // look.
  const axe = new AxeBuilder({ page }).setLegacyMode(true).options({ resultTypes: ['violations'] });
  const { violations } = await axe.analyze();
  const serious = violations.filter(({ impact }) => impact === 'serious' || impact === 'critical');
  const told = serious.map(({ id, nodes }) => `${id}: ${nodes.slice(0, 3).map(({ html }) => html).join(' ')}`);
  assert.deepEqual(told, [], where);
}

async function fits(page, what) {
  const width = await page.evaluate(() => document.documentElement.scrollWidth);
  assert.ok(width <= NARROW.width, `${what} is ${width} pixels wide`);
}

/** What a page says does the same. */
async function commandsOf(page) {
  const button = page.getByRole('button', { name: 'As command' });
  await button.click();
  const texts = page.locator('#commands pre');
  await texts.nth(1).waitFor();
  const [cli, curl] = await texts.allTextContents();
  await button.click();
  return { cli: cli.split('\n'), curl: curl.split('\n') };
}

/** For the message of a failure. */
async function whatItShows(page) {
  const text = await page.evaluate(() => document.body.innerText).catch(String);
  return `  ${page.url()} shows:\n${text.slice(0, SHOWN_MAX).replace(/^/gm, '  | ')}`;
}

async function gallery(page, role, path, how) {
  if (!GALLERY) return;
  mkdirSync(GALLERY, { recursive: true });
  await page.waitForTimeout(400);
  // No picture is as high as a list of thousands.
  const fullPage = (await page.evaluate(() => document.documentElement.scrollHeight)) < 16_000;
  await page.screenshot({ path: join(GALLERY, `${role}${path === '/' ? '_home' : path.replaceAll('/', '_')}-${how}.png`), fullPage });
}
