// The pages, in the groups in which they are shown, for those whose role has a use for them.

import type { Component } from 'svelte';

import type { IconName } from '../ui/Icon.svelte';
import { session } from './session.svelte';

import Audit from '../pages/Audit.svelte';
import Bill from '../pages/Bill.svelte';
import Capacity from '../pages/Capacity.svelte';
import Declarations from '../pages/Declarations.svelte';
import Earnings from '../pages/Earnings.svelte';
import Gpus from '../pages/Gpus.svelte';
import Health from '../pages/Health.svelte';
import Home from '../pages/Home.svelte';
import Invoices from '../pages/Invoices.svelte';
import LeasePage from '../pages/Lease.svelte';
import Leases from '../pages/Leases.svelte';
import NewLease from '../pages/NewLease.svelte';
import NodePage from '../pages/Node.svelte';
import Nodes from '../pages/Nodes.svelte';
import Pools from '../pages/Pools.svelte';
import Programs from '../pages/Programs.svelte';
import Queue from '../pages/Queue.svelte';
import RightSize from '../pages/RightSize.svelte';
import Servers from '../pages/Servers.svelte';
import Tenants from '../pages/Tenants.svelte';
import Tokens from '../pages/Tokens.svelte';
import Usage from '../pages/Usage.svelte';
import Webhooks from '../pages/Webhooks.svelte';

export interface Entry {
  path: string;
  title: string;
  icon: IconName;
  /** The key that goes there, after `g`. */
  key?: string;
  component: Component;
  shown?: () => boolean;
}

export const GROUPS: { title: string; entries: Entry[] }[] = [
  {
    title: 'Work',
    entries: [
      { path: '/', title: 'Overview', icon: 'home', key: 'o', component: Home },
      { path: '/new', title: 'New lease', icon: 'plus', key: 'n', component: NewLease, shown: () => session.can('lease') },
      { path: '/leases', title: 'Leases', icon: 'lease', key: 'l', component: Leases },
      { path: '/programs', title: 'Programs', icon: 'play', key: 'b', component: Programs },
      { path: '/queue', title: 'Queue', icon: 'queue', key: 'q', component: Queue },
    ],
  },
  {
    title: 'Organisation',
    entries: [
      { path: '/tenants', title: 'Tenants', icon: 'tenants', key: 't', component: Tenants },
      { path: '/bill', title: 'Spending', icon: 'money', key: 's', component: Bill },
      { path: '/usage', title: 'Usage', icon: 'chart', key: 'u', component: Usage },
      { path: '/rightsize', title: 'Right-size', icon: 'pulse', key: 'r', component: RightSize },
      { path: '/tokens', title: 'People and tokens', icon: 'key', key: 'k', component: Tokens, shown: () => session.can('seeTokens') },
      { path: '/audit', title: 'Audit log', icon: 'audit', key: 'a', component: Audit, shown: () => session.can('seeAudit') },
      { path: '/webhooks', title: 'Webhooks', icon: 'bell', key: 'w', component: Webhooks, shown: () => session.can('webhook') },
      { path: '/declarations', title: 'Declarations', icon: 'file', key: 'd', component: Declarations, shown: () => session.can('setQuota') || session.can('setPrice') || (session.can('seeAudit') && session.isRoot) },
    ],
  },
  {
    title: 'Provider',
    entries: [
      { path: '/pools', title: 'Pools and prices', icon: 'pool', key: 'p', component: Pools, shown: () => session.isRoot },
      { path: '/earnings', title: 'Earnings', icon: 'money', key: 'e', component: Earnings, shown: () => session.can('setPrice') },
      { path: '/capacity', title: 'Capacity', icon: 'clock', key: 'c', component: Capacity, shown: () => session.can('seeServers') },
      { path: '/invoices', title: 'Invoices', icon: 'invoice', key: 'i', component: Invoices },
    ],
  },
  {
    title: 'Fleet',
    entries: [
      { path: '/gpus', title: 'GPUs', icon: 'gpu', key: 'g', component: Gpus },
      { path: '/nodes', title: 'Nodes', icon: 'node', key: 'm', component: Nodes },
      { path: '/health', title: 'Health', icon: 'pulse', key: 'h', component: Health, shown: () => session.can('seeDrift') },
      { path: '/servers', title: 'Servers', icon: 'server', key: 'v', component: Servers, shown: () => session.can('seeServers') },
    ],
  },
];

/** Pages of one thing, by the part of the path before its name. */
export const DETAILS: { prefix: string; parent: string; component: Component<{ name: string }> }[] = [
  { prefix: '/leases/', parent: '/leases', component: LeasePage },
  { prefix: '/nodes/', parent: '/nodes', component: NodePage },
];

export const entries = (): Entry[] => GROUPS.flatMap((group) => group.entries).filter((entry) => entry.shown?.() ?? true);
