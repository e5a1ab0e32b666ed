// What pages read of the API.

import { all, answer, api } from '../api/client';
import type { Bill, DaySpent, Drift, GpuStatus, GpuSums, Lease, LeaseHistory, NodeStatus, Page, PoolStatus, Price, SessionStatus, TenantStatus } from '../api/types';

const PAGE = 1000;
/** Leases that are read at a time as a list is scrolled. */
export const LEASES_OF_PAGE = 200;

export type LeaseFilter = 'open' | 'queued' | 'granted' | 'running' | 'preempting' | 'ended';

export const openLeases = (): Promise<Lease[]> =>
  all<Lease>((cursor) => api.GET('/api/v1/leases', { params: { query: { state: 'open', limit: PAGE, ...at(cursor) } } }), 100_000);

/** Some of the leases that hold GPUs. */
export async function holdingLeases(limit: number): Promise<Lease[]> {
  const states = ['granted', 'preempting', 'running'] as const;
  const pages = await Promise.all(states.map((state) => answer(api.GET('/api/v1/leases', { params: { query: { state, limit } } }))));
  return pages.flatMap((page) => page.items);
}

export const leasePage = (state: LeaseFilter | undefined, cursor: string | undefined): Promise<Page<Lease>> =>
  answer(api.GET('/api/v1/leases', { params: { query: { limit: LEASES_OF_PAGE, ...(state ? { state } : {}), ...at(cursor) } } }));

export const lease = (id: number): Promise<Lease> =>
  answer(api.GET('/api/v1/leases/{id}', { params: { path: { id } } }));

export const history = (id: number): Promise<LeaseHistory> =>
  answer(api.GET('/api/v1/leases/{id}/history', { params: { path: { id }, query: { limit: PAGE } } }));

export const queue = (): Promise<Lease[]> =>
  all<Lease>((cursor) => api.GET('/api/v1/queue', { params: { query: { limit: PAGE, ...at(cursor) } } }), 10_000);

const ORDER = new Intl.Collator('en', { numeric: true });

/** In the order of their nodes' names. */
export async function gpus(node?: string): Promise<GpuStatus[]> {
  const found = await all<GpuStatus>((cursor) => api.GET('/api/v1/gpus', { params: { query: { limit: PAGE, ...(node ? { node } : {}), ...at(cursor) } } }));
  return found.sort((one, other) => ORDER.compare(one.node, other.node) || one.index - other.index);
}

export const gpuSums = (): Promise<GpuSums> => answer(api.GET('/api/v1/gpus/sums'));

export const nodes = (): Promise<NodeStatus[]> =>
  all<NodeStatus>((cursor) => api.GET('/api/v1/nodes', { params: { query: { limit: PAGE, ...at(cursor) } } }));

export const sessions = (node?: string): Promise<SessionStatus[]> =>
  all<SessionStatus>((cursor) => api.GET('/api/v1/sessions', { params: { query: { limit: PAGE, ...(node ? { node } : {}), ...at(cursor) } } }), 5000);

/** The sessions of a lease, asked of the nodes that it is on. */
export async function sessionsOf(lease: Lease): Promise<SessionStatus[]> {
  const nodes = [...new Set((lease.places ?? []).map((place) => place.node))];
  const found = await Promise.all(nodes.map((node) => sessions(node)));
  return found.flat().filter((session) => session.lease === lease.id);
}

export const tenants = (): Promise<TenantStatus[]> =>
  all<TenantStatus>((cursor) => api.GET('/api/v1/tenants', { params: { query: { limit: PAGE, ...at(cursor) } } }));

export const pools = (): Promise<PoolStatus[]> =>
  all<PoolStatus>((cursor) => api.GET('/api/v1/pools', { params: { query: { limit: PAGE, ...at(cursor) } } }));

export const prices = async (): Promise<Price[]> => (await answer(api.GET('/api/v1/prices'))).items;

export const bill = (tenant: string, from_ms: number, until_ms?: number): Promise<Bill> =>
  answer(api.GET('/api/v1/bill', { params: { query: { tenant, from_ms, ...(until_ms ? { until_ms } : {}) } } }));

export const billDays = (tenant: string, from_ms: number): Promise<DaySpent[]> =>
  answer(api.GET('/api/v1/bill/days', { params: { query: { tenant, from_ms } } }));

export const drift = (): Promise<Drift> => answer(api.GET('/api/v1/drift'));

function at(cursor: string | undefined): { cursor?: string } {
  return cursor ? { cursor } : {};
}

/** What a lease has used so far and what that costs, as far as its nodes have delivered it. */
export const leaseBill = (id: number): Promise<Bill> =>
  answer(api.GET('/api/v1/leases/{id}/bill', { params: { path: { id } } }));
