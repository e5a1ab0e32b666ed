// A server, two nodes with software GPUs, tenants, and a token for each role: real processes, in a
// folder of their own.

import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { createServer } from 'node:http';
import { mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';

const SLUICE = process.env.SLUICE;
const FOLDER = process.env.FOLDER;

/** Catches a hang; nothing takes this long, also on a machine that does much else. */
export const PATIENCE_MS = 180_000;
/** How long programs compute that are to be there until the end, in seconds. */
const LONG_S = '3600';
/**
 * Programs that are to be there, and need not be fast, rest after each batch of kernels: the processors are for the browser
 * then. Pictures are of programs that use what they have.
 */
const RESTING = process.env.SCREENSHOTS ? {} : { PAUSE: '0.25' };

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
  if (child.exitCode !== null || child.signalCode !== null) return;
  child.kill('SIGTERM');
  await once(child, 'exit');
}

/** Runs a program to its end; what it prints, where it succeeds. */
async function output(program, args, { env, input = '' }) {
  const child = spawn(program, args, { env });
  let [out, err] = ['', ''];
  child.stdout.on('data', (data) => (out += data));
  child.stderr.on('data', (data) => (err += data));
  // A program that does not read its input may be gone before it is written.
  child.stdin.on('error', () => {});
  child.stdin.end(input);
  const [code, signal] = await once(child, 'close');
  if (code !== 0) throw new Error(`${program} ${args.join(' ')} ended with ${code ?? signal}: ${err}${out}`);
  return out;
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
    await made.run(['apply', '-f', file]);
    await made.#giveHistory();
    made.tokens = { platform: made.admin };
    const roles = {
      member: ['acme/research', 'member', 'Ada of research'],
      sales: ['acme/sales', 'member', 'Bob of sales'],
      tenant_admin: ['acme', 'tenant_admin', 'Carol of acme'],
      provider: ['/', 'provider', 'Dan of the provider'],
      globex: ['globex', 'member', 'Eve of globex'],
    };
    const tokens = Object.entries(roles).map(async ([role, of]) => (made.tokens[role] = await made.token(...of)));
    await Promise.all([...tokens, ...['gpu1', 'gpu2'].map((name) => made.#startNode(name))]);
    return made;
  }

  /** Invoices are of a month that is over, and pictures show more than what a test of some minutes has used. */
  async #giveHistory() {
    await this.stopServer();
    await output('python3', [join(import.meta.dirname, 'history.py'), join(this.#data, 'sluice.db')], { env: process.env });
    await this.startServer();
  }

  async #startNode(name) {
    const token = join(FOLDER, `${name}.token`);
    writeFileSync(token, await this.token('/', 'node', name), { mode: 0o600 });
    const sensors = join(FOLDER, 'sensors');
    writeFileSync(sensors, 'temperature #0 61\npower #0 312000\n');
    const args = ['node', '--listen', '127.0.0.1:0', '--gpus', 'software', '--join', this.url, '--token-file', token];
    // The GPU of the second node has sensors, as far as its node can tell.
    const nvml = name === 'gpu2' && process.env.NVML ? ['--nvml', process.env.NVML] : [];
    this.#nodes.push(await start([...args, ...nvml, '--name', name, '--journal', join(FOLDER, name)], { env: { ...process.env, FAKE_NVML: sensors } }));
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
    return output(SLUICE, args, { env: this.#env(token) });
  }

  /** What a line in a shell prints. */
  shell(line, token) {
    return output('sh', ['-c', line], { env: { ...process.env, SLUICE_TOKEN: token } });
  }

  #env(token) {
    return { ...process.env, SLUICE_SERVER: this.url, SLUICE_TOKEN: token };
  }

  /** Applies a file. */
  async declare(text) {
    const file = join(FOLDER, 'declared.yaml');
    writeFileSync(file, text);
    await this.run(['apply', '-f', file]);
  }

  async token(tenant, role, name) {
    return (await this.run(['token', 'create', '--tenant', tenant, '--role', role, '--name', name])).trim();
  }

  /** What the API answers to this token. */
  async ask(path, token = this.admin, body = undefined) {
    const headers = { authorization: `Bearer ${token}`, ...(body ? { 'content-type': 'application/json' } : {}) };
    const answer = await fetch(`${this.url}/api/v1${path}`, { headers, ...(body ? { method: 'POST', body: JSON.stringify(body) } : {}) });
    return answer.json();
  }

  /** Ends a lease, as who asked for it. */
  async endLease({ id, key }) {
    const answer = await fetch(`${this.url}/api/v1/leases/${id}`, { method: 'DELETE', headers: { authorization: `Bearer ${key}` } });
    if (!answer.ok) throw new Error(`lease ${id} is not ended: ${await answer.text()}`);
  }

  /** A program that computes until it is ended. */
  program(args, token, more = {}) {
    const env = { ...this.#env(token), SECONDS: LONG_S, ...RESTING, ...more };
    this.#programs.push(spawn(SLUICE, ['run', ...args, '--', 'python3', join(process.env.PROGRAMS, 'compute.py')], { env, stdio: 'ignore' }));
  }

  /** Runs a program that computes for a moment to its end. */
  async compute(args, token) {
    const env = { ...this.#env(token), SECONDS: '0.3' };
    await output(SLUICE, ['run', ...args, '--', 'python3', join(process.env.PROGRAMS, 'compute.py')], { env });
  }

  /** Runs a program that computes for a moment, and then idles for so long, to its end. */
  async computeAndIdle(args, token, idleMs) {
    const env = { ...this.#env(token), SECONDS: '0.1', ROUNDS: '2000', END: 'input' };
    const child = spawn(SLUICE, ['run', ...args, '--', 'python3', join(process.env.PROGRAMS, 'compute.py')], { env });
    let [text, idles] = ['', false];
    child.stderr.on('data', (data) => (text += data));
    child.stdout.on('data', (data) => {
      text += data;
      if (idles || !/^PASS$/m.test(text)) return;
      idles = true;
      setTimeout(() => child.stdin.end(), idleMs);
    });
    child.stdin.on('error', () => {});
    const [code, signal] = await once(child, 'close');
    if (code !== 0) throw new Error(`sluice run ${args.join(' ')} ended with ${code ?? signal}: ${text}`);
  }

  async end() {
    this.#programs.forEach((child) => child.kill('SIGTERM'));
    await Promise.all(this.#nodes.map(stop));
    await this.stopServer();
    this.collector.stop();
  }
}

/** `sluice up`, as a newcomer starts it: a server and a node in one. */
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
    const env = { ...process.env, SLUICE_TOKEN: this.token(), SECONDS: LONG_S, ...RESTING };
    this.programs ??= [];
    this.programs.push(spawn('sh', ['-c', lines], { env, stdio: 'ignore', detached: true }));
  }

  token() {
    return JSON.parse(readFileSync(join(FOLDER, 'up', 'admin.json'))).token;
  }

  async end() {
    for (const { pid, exitCode } of this.programs ?? []) {
      // With the programs that the shells have started.
      if (exitCode === null) process.kill(-pid, 'SIGTERM');
    }
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
