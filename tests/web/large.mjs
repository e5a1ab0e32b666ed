// The web view of a large fleet in a real browser, and many open pages: prints one line of JSON
// with what they cost.
//
// FLEET is the line of JSON that `examples/load --fleet` prints, CHROMIUM the browser. Nothing is
// asserted: figures are for docs/benchmarks.

import { readFileSync } from 'node:fs';
import { Agent, request } from 'node:http';
import { performance } from 'node:perf_hooks';

import { chromium } from 'playwright-core';

const FLEET = JSON.parse(process.env.FLEET);
const RUNS = 5;
/** Pages that are open at the same time, and how long their cost is measured. */
const OPEN_PAGES = Number(process.env.OPEN_PAGES ?? 500);
const MEASURED_MS = Number(process.env.MEASURED_MS ?? 60_000);
const PATIENCE_MS = 120_000;

const figures = {};
const median = (values) => values.toSorted((one, other) => one - other)[Math.floor(values.length / 2)];
/** Of a page that was never painted the browser has no moment, and such a run does not count. */
const spread = (name, all) => {
  const values = all.filter((value) => value !== undefined);
  figures[name] = [median(values), Math.min(...values), Math.max(...values)].map((value) => Math.round(value));
};

const browser = await chromium.launch({ executablePath: process.env.CHROMIUM, args: ['--no-sandbox', '--enable-precise-memory-info'] });

/** A page of a new browser profile, signed in as the operator. */
async function signedIn() {
  const context = await browser.newContext({ viewport: { width: 1360, height: 860 } });
  context.setDefaultTimeout(PATIENCE_MS);
  const page = await context.newPage();
  await page.goto(FLEET.url);
  await page.getByLabel('Token').fill(FLEET.token);
  await page.getByRole('button', { name: 'Sign in' }).click();
  await page.getByRole('heading', { name: 'Overview', level: 1 }).waitFor();
  return page;
}

/** When the browser first painted something of the page, in milliseconds after the navigation. */
const firstPaint = (page) => page.evaluate(() => performance.getEntriesByName('first-contentful-paint')[0]?.startTime);

async function heapMb(page) {
  const devtools = await page.context().newCDPSession(page);
  await devtools.send('HeapProfiler.collectGarbage');
  const { usedSize } = await devtools.send('Runtime.getHeapUsage');
  await devtools.detach();
  return usedSize / 1e6;
}

async function pages() {
  const shown = {
    overview: ['/', (page) => page.locator('.stat', { hasText: 'Free compute' }).locator('.value', { hasText: 'GPU' }).waitFor()],
    gpus: ['/gpus', (page) => page.locator('canvas').waitFor()],
    leases: ['/leases', (page) => page.locator('tbody tr a').first().waitFor()],
  };
  for (const [name, [path, isShown]] of Object.entries(shown)) {
    const [paints, contents, heaps] = [[], [], []];
    for (let run = 0; run < RUNS; run += 1) {
      const page = await signedIn();
      const began = performance.now();
      await page.goto(FLEET.url + path);
      await isShown(page);
      contents.push(performance.now() - began);
      paints.push(await firstPaint(page));
      heaps.push(await heapMb(page));
      await page.context().close();
    }
    spread(`${name}_first_paint_ms`, paints);
    spread(`${name}_content_ms`, contents);
    spread(`${name}_heap_mb`, heaps);
  }
}

/** Scrolls a list to its end, and looks how many rows are in the document and how long the page is busy at a time. */
async function scroll(path, end) {
  const page = await signedIn();
  await page.goto(FLEET.url + path);
  await page.locator('tbody tr a').first().waitFor();
  await page.evaluate(() => {
    window.longest = 0;
    new PerformanceObserver((list) => list.getEntries().forEach((entry) => (window.longest = Math.max(window.longest, entry.duration)))).observe({ type: 'longtask' });
  });
  let rows = 0;
  let steps = 0;
  const deadline = Date.now() + PATIENCE_MS;
  for (;;) {
    const { at, most, found } = await page.evaluate(async (last) => {
      window.scrollBy(0, window.innerHeight * 3);
      await new Promise((resolve) => requestAnimationFrame(() => requestAnimationFrame(resolve)));
      return { at: window.scrollY, most: document.querySelectorAll('tbody tr').length, found: document.body.innerText.includes(last) };
    }, end);
    rows = Math.max(rows, most);
    steps += 1;
    if (found || Date.now() > deadline || (steps > 10 && at === 0)) break;
  }
  const longest = Math.round(await page.evaluate(() => window.longest));
  const heap = Math.round(await heapMb(page));
  if (process.env.SCREENSHOTS && path === '/gpus') {
    await page.evaluate(() => window.scrollTo(0, 0));
    await page.getByText('Busy now').click();
    await page.mouse.move(700, 420);
    await page.waitForTimeout(500);
    await page.screenshot({ path: `${process.env.SCREENSHOTS}/fleet.png` });
  }
  await page.context().close();
  return { rows, longest_task_ms: longest, heap_mb: heap, screens: steps };
}

/** What an overview asks for while it is open and nothing happens: each request with the moment after the first. */
async function recorded(ms) {
  const page = await signedIn();
  await page.waitForTimeout(5000);
  const began = performance.now();
  const asked = [];
  page.on('request', (one) => {
    const { pathname, search } = new URL(one.url());
    if (pathname.startsWith('/api/') && pathname !== '/api/v1/watch') asked.push({ atMs: performance.now() - began, path: pathname + search });
  });
  await page.waitForTimeout(ms);
  await page.context().close();
  return asked;
}

const agent = new Agent({ keepAlive: true, maxSockets: 64 });

function get(path, token, options = {}) {
  return new Promise((resolve, reject) => {
    const asked = request(FLEET.url + path, { headers: { authorization: `Bearer ${token}` }, agent, ...options }, (answer) => {
      if (options.stream) return resolve(answer);
      let bytes = 0;
      answer.on('data', (data) => (bytes += data.length));
      answer.on('end', () => resolve({ status: answer.statusCode, bytes }));
    });
    asked.on('error', reject);
    asked.end();
  });
}

/** CPU time of the server in milliseconds (proc(5), fields 14 and 15 of `stat`, in hundredths of a second). */
function serverCpuMs() {
  const fields = readFileSync(`/proc/${FLEET.server}/stat`, 'utf8').split(') ')[1].split(' ');
  return (Number(fields[11]) + Number(fields[12])) * 10;
}

async function cpuPercent(ms) {
  const [cpu, began] = [serverCpuMs(), performance.now()];
  await new Promise((resolve) => setTimeout(resolve, ms));
  return ((serverCpuMs() - cpu) / (performance.now() - began)) * 100;
}

/** Opens the streams of many pages, and asks what each of them asks for, spread over time. */
async function openPages(asked, ms) {
  const without = await cpuPercent(ms);
  const streams = [];
  for (let page = 0; page < OPEN_PAGES; page += 1) {
    const token = FLEET.users[page % FLEET.users.length];
    const stream = await get('/api/v1/watch', token, { stream: true, agent: false });
    if (stream.statusCode !== 200) throw new Error(`stream ${page}: ${stream.statusCode}`);
    stream.resume();
    streams.push(stream);
  }
  let requests = 0;
  const timers = [];
  for (let page = 0; page < OPEN_PAGES; page += 1) {
    const token = FLEET.users[page % FLEET.users.length];
    const offset = (page / OPEN_PAGES) * ms;
    for (const { atMs, path } of asked) {
      // The scope of a member in place of that of the operator whose requests were recorded.
      const own = path.replace('tenant=%2F', 'tenant=team' + String(page % 50).padStart(2, '0'));
      timers.push(setTimeout(() => { requests += 1; get(own, token).catch(() => {}); }, (atMs + offset) % ms));
    }
  }
  const withPages = await cpuPercent(ms);
  timers.forEach(clearTimeout);
  streams.forEach((stream) => stream.destroy());
  return { without, withPages, requests_per_s: requests / (ms / 1000) };
}

try {
  const scrapes = [];
  let bytes = 0;
  for (let run = 0; run < RUNS; run += 1) {
    const began = performance.now();
    const answer = await get('/metrics', FLEET.token);
    scrapes.push(performance.now() - began);
    if (answer.status !== 200) throw new Error(`/metrics: ${answer.status}`);
    ({ bytes } = answer);
  }
  spread('metrics_ms', scrapes);
  figures.metrics_bytes = bytes;
  await pages();
  figures.scroll_gpus = await scroll('/gpus', `node-${String(FLEET.gpus / 8 - 1).padStart(5, '0')}/7`);
  figures.scroll_leases = await scroll('/leases?state=running', 'program 0 #');
  const asked = await recorded(MEASURED_MS);
  figures.requests_of_a_page = asked.length;
  const open = await openPages(asked, MEASURED_MS);
  figures.open_pages = OPEN_PAGES;
  figures.server_percent_without = Math.round(open.without * 10) / 10;
  figures.server_percent_with = Math.round(open.withPages * 10) / 10;
  figures.open_pages_requests_per_s = Math.round(open.requests_per_s);
  console.log(JSON.stringify(figures));
} finally {
  await browser.close();
}
