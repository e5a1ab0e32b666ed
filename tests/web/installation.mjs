// A server, two nodes with software GPUs, tenants, and a token for each role: real processes, in a folder of their own.

import { spawn, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { createServer } from 'node:http';
import { mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';

const SLUICE = process.env.SLUICE;
const FOLDER = process.env.FOLDER;

/** Catches a hang; nothing takes this long. */
export const PATIENCE_MS = 60_000;

const DECLARED = `
currency: EUR
issuer: Example Compute
tenants:
  - path: acme
    quota: {guaranteed: 1, limit: 2}
    budget: {amount: 500, per: month, then: warn}
  - path: acme/research
    quota: {guaranteed: 0.5, limit: 2}
    budget: {amount: 450, per: month, then: hold}
  - path: acme/sales
    quota: {limit: 0.5}
  - path: globex
prices:
  - {meter: reserved, price: 2.00, from: 2020-01-01}
  - {meter: used, price: 0.50, from: 2020-01-01}
  - {meter: memory, price: 0.01, from: 2020-01-01}
`;

/** Another process of this installation, and the line that says that it is ready. */
async function start(args, options = {}) {
  const child = spawn(SLUICE, args, { stdio: ['ignore', 'pipe', 'pipe'], ...options });
  let text = '';
  child.stderr.on('data', (data) => (text += data));
  const [, address] = await new Promise((resolve, reject) => {
    let out = '';
    child.stdout.on('data', (data) => {
      out += data;
      const found = /listening on (\S+)/.exec(out);
      if (found) resolve(found);
    });
    child.on('exit', (code) => reject(new Error(`sluice ${args.join(' ')} ended with ${code}: ${text}`)));
  });
  return { child, address, said: () => text };
}

async function stop({ child }) {
  if (child.exitCode !== null) return;
  child.kill('SIGTERM');
  await once(child, 'exit');
}

export class Installation {
  #data = join(FOLDER, 'data');
  #nodes = [];
  #programs = [];

  static async start() {
    mkdirSync(FOLDER, { recursive: true });
    const made = new Installation();
    made.collector = await Receiver.start();
    await made.startServer('127.0.0.1:0');
    made.listen = made.url.replace('http://', '');
    made.admin = JSON.parse(readFileSync(join(made.#data, 'admin.json'))).token;
    const file = join(FOLDER, 'teams.yaml');
    writeFileSync(file, DECLARED);
    made.run(['apply', '-f', file]);
    await made.#giveHistory();
    const sensors = join(FOLDER, 'sensors');
    writeFileSync(sensors, 'temperature #0 61\npower #0 312000\n');
    made.tokens = {
      platform: made.admin,
      member: made.token('acme/research', 'member', 'Ada of research'),
      sales: made.token('acme/sales', 'member', 'Bob of sales'),
      tenant_admin: made.token('acme', 'tenant_admin', 'Carol of acme'),
      provider: made.token('/', 'provider', 'Dan of the provider'),
      globex: made.token('globex', 'member', 'Eve of globex'),
    };
    for (const name of ['gpu1', 'gpu2']) {
      const token = join(FOLDER, 'node.token');
      writeFileSync(token, made.token('/', 'node', name), { mode: 0o600 });
      const args = ['node', '--listen', '127.0.0.1:0', '--gpus', 'software', '--join', made.url, '--token-file', token];
      // The GPU of the second node has sensors, as far as its node can tell.
      const nvml = name === 'gpu2' && process.env.NVML ? ['--nvml', process.env.NVML] : [];
      made.#nodes.push(await start([...args, ...nvml, '--name', name, '--journal', join(FOLDER, name)], { env: { ...process.env, FAKE_NVML: sensors } }));
    }
    return made;
  }

  /** Invoices are of a month that is over, and pictures show more than what a test of some minutes has used. */
  async #giveHistory() {
    await this.stopServer();
    const done = spawnSync('python3', [join(import.meta.dirname, 'history.py'), join(this.#data, 'sluice.db')], { encoding: 'utf8' });
    if (done.status !== 0) throw new Error(`history.py: ${done.stderr}`);
    await this.startServer();
  }

  async startServer(listen = this.listen) {
    this.server = await start(['server', '--listen', listen, '--data', this.#data, '--failures-per-second', '0', '--webhook-allow', '127.0.0.1/32', '--otlp', new URL(this.collector.url).origin]);
    this.url = this.server.address;
  }

  async stopServer() {
    await stop(this.server);
  }

  /** What a command of `sluice` prints. */
  run(args, token = this.admin) {
    const env = { ...process.env, SLUICE_SERVER: this.url, SLUICE_TOKEN: token };
    const done = spawnSync(SLUICE, args, { env, encoding: 'utf8' });
    if (done.status !== 0) throw new Error(`sluice ${args.join(' ')}: ${done.stderr}`);
    return done.stdout;
  }

  /** What a line in a shell prints. */
  shell(line, token) {
    const done = spawnSync('sh', ['-c', line], { env: { ...process.env, SLUICE_TOKEN: token }, encoding: 'utf8' });
    if (done.status !== 0) throw new Error(`${line}: ${done.stderr}${done.stdout}`);
    return done.stdout;
  }

  /** Applies a file. */
  declare(text) {
    const file = join(FOLDER, 'declared.yaml');
    writeFileSync(file, text);
    this.run(['apply', '-f', file]);
  }

  token(tenant, role, name) {
    return this.run(['token', 'create', '--tenant', tenant, '--role', role, '--name', name]).trim();
  }

  /** What the API answers to this token. */
  async ask(path, token = this.admin, body = undefined) {
    const headers = { authorization: `Bearer ${token}`, ...(body ? { 'content-type': 'application/json' } : {}) };
    const answer = await fetch(`${this.url}/api/v1${path}`, { headers, ...(body ? { method: 'POST', body: JSON.stringify(body) } : {}) });
    return answer.json();
  }

  /** A program that computes until it is ended. */
  program(args, token, name = 'compute.py', more = {}) {
    const env = { ...process.env, ...more, SLUICE_SERVER: this.url, SLUICE_TOKEN: token, SECONDS: '600' };
    const child = spawn(SLUICE, ['run', ...args, '--', 'python3', join(process.env.PROGRAMS, name)], { env, stdio: 'ignore' });
    this.#programs.push(child);
    return child;
  }

  /** Runs a program that computes for a second, unless its environment says otherwise, to its end. */
  compute(args, token, { input = '', env: more = {} } = {}) {
    const env = { ...process.env, SLUICE_SERVER: this.url, SLUICE_TOKEN: token, SECONDS: '1', ...more };
    const done = spawnSync(SLUICE, ['run', ...args, '--', 'python3', join(process.env.PROGRAMS, 'compute.py')], { env, input, encoding: 'utf8' });
    if (done.status !== 0) throw new Error(`sluice run ${args.join(' ')}: ${done.stderr}`);
  }

  async end() {
    this.#programs.forEach((child) => child.kill('SIGTERM'));
    await Promise.all(this.#nodes.map(stop));
    await this.stopServer();
    this.collector.stop();
  }
}

/** `sluice up`, as somebody starts it who tries it for the first time: a server and a node in one. */
export class Up {
  static async start() {
    const made = new Up();
    const args = ['up', '--listen', '127.0.0.1:0', '--node-listen', '127.0.0.1:0', '--gpus', 'software:1,1GiB', '--data', join(FOLDER, 'up')];
    made.started = await start(args);
    made.url = made.started.address;
    made.link = await until('the link', () => /web view, .*: (http\S+)/.exec(made.started.said())?.[1]);
    return made;
  }

  /** What the page says to type into a terminal. */
  type(lines) {
    const env = { ...process.env, SLUICE_TOKEN: this.token(), SECONDS: '600' };
    this.programs ??= [];
    this.programs.push(spawn('sh', ['-c', lines], { env, stdio: 'ignore', detached: true }));
  }

  token() {
    return JSON.parse(readFileSync(join(FOLDER, 'up', 'admin.json'))).token;
  }

  async end() {
    // With the programs that the shells have started.
    (this.programs ?? []).forEach(({ pid }) => process.kill(-pid, 'SIGTERM'));
    await stop(this.started);
  }
}

/** A receiver of webhooks that takes whatever comes. */
export class Receiver {
  requests = [];

  static async start() {
    const made = new Receiver();
    made.server = createServer((request, answer) => {
      let body = '';
      request.on('data', (data) => (body += data));
      request.on('end', () => {
        made.requests.push({ headers: request.headers, body });
        answer.writeHead(204).end();
      });
    });
    made.server.listen(0, '127.0.0.1');
    await once(made.server, 'listening');
    made.url = `http://127.0.0.1:${made.server.address().port}/events`;
    return made;
  }

  stop() {
    this.server.close();
  }
}

/** Asks until it is so. */
export async function until(what, is) {
  const deadline = Date.now() + PATIENCE_MS;
  for (;;) {
    const found = await is();
    if (found) return found;
    if (Date.now() > deadline) throw new Error(`it never came to: ${what}`);
    await new Promise((resolve) => setTimeout(resolve, 100));
  }
}
