// Who is signed in, and what their role lets them do: the same rules as the server's, which checks them again.

import { answer, api, ApiError, setCsrf, whenSignedOut } from '../api/client';
import type { Role, Session, Token } from '../api/types';

type State = 'unknown' | 'out' | 'in' | 'away';

const SIGN_IN = '#sign-in=';

class SignedIn {
  state = $state<State>('unknown');
  token = $state.raw<Token>();
  untilMs = $state(0);
  /** Why the user was signed out, if not by themselves. */
  notice = $state('');

  constructor() {
    whenSignedOut(() => {
      if (this.state === 'in') this.#leave('Your session has ended. Sign in again.');
    });
  }

  /** Takes up the session of the cookie, or that of a sign-in link in the address. */
  async start(): Promise<void> {
    const code = location.hash.startsWith(SIGN_IN) ? location.hash.slice(SIGN_IN.length) : '';
    if (code) {
      // The code is of no more use, and has no place in the history.
      history.replaceState(null, '', location.pathname + location.search);
      try {
        this.#enter(await answer(api.POST('/api/v1/session', { body: { code } })));
        return;
      } catch (error) {
        this.notice = error instanceof ApiError ? sentence(error.detail) : String(error);
      }
    }
    try {
      this.#enter(await answer(api.GET('/api/v1/session')));
      this.notice = '';
    } catch (error) {
      const away = error instanceof ApiError && error.isTemporary;
      this.state = away ? 'away' : 'out';
    }
  }

  async signIn(token: string): Promise<void> {
    this.#enter(await answer(api.POST('/api/v1/session', { body: { token } })));
    this.notice = '';
  }

  async signOut(): Promise<void> {
    await answer(api.DELETE('/api/v1/session'));
    this.#leave('');
  }

  #enter(session: Session): void {
    setCsrf(session.csrf);
    this.token = session.token;
    this.untilMs = session.until_ms;
    this.state = 'in';
  }

  #leave(notice: string): void {
    setCsrf('');
    this.token = undefined;
    this.notice = notice;
    this.state = 'out';
  }

  get role(): Role {
    return this.token?.role ?? 'viewer';
  }

  /** The tenant whose part of the tree the token is for; `/` is everything. */
  get scope(): string {
    return this.token?.tenant ?? '/';
  }

  get isRoot(): boolean {
    return this.scope === '/';
  }

  can(action: Action): boolean {
    return this.state === 'in' && (ALLOWED[action] as readonly Role[]).includes(this.role) && (!OF_ROOT.has(action) || this.isRoot);
  }
}

const ALLOWED = {
  lease: ['platform', 'tenant_admin', 'member'],
  preempt: ['platform', 'tenant_admin'],
  setQuota: ['platform', 'tenant_admin'],
  setPrice: ['platform', 'provider'],
  setPool: ['platform', 'provider'],
  fence: ['platform', 'provider'],
  bill: ['platform', 'provider'],
  makeToken: ['platform', 'provider', 'tenant_admin'],
  seeTokens: ['platform', 'provider', 'tenant_admin', 'auditor'],
  seeAudit: ['platform', 'auditor', 'tenant_admin'],
  forget: ['platform'],
  setDefault: ['platform', 'tenant_admin'],
  webhook: ['platform', 'provider', 'tenant_admin'],
  seeServers: ['platform', 'provider', 'auditor', 'viewer'],
  seeDrift: ['platform', 'provider', 'auditor', 'viewer', 'tenant_admin', 'member'],
} as const satisfies Record<string, readonly Role[]>;

export type Action = keyof typeof ALLOWED;

/** What counts for the whole installation only. */
const OF_ROOT = new Set<Action>(['setPrice', 'setPool', 'fence', 'seeServers', 'forget']);

export const session = new SignedIn();

/** A message of the API as a sentence. */
export function sentence(text: string): string {
  return text ? text.charAt(0).toUpperCase() + text.slice(1) + (/[.!?]$/.test(text) ? '' : '.') : text;
}

export const ROLE_NAMES: Record<Role, string> = {
  platform: 'Platform operator',
  provider: 'Provider',
  tenant_admin: 'Tenant administrator',
  member: 'Member',
  viewer: 'Viewer',
  auditor: 'Auditor',
  node: 'Node',
};
