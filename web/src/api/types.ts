// The names of the API's types that pages use, from what is generated out of its OpenAPI document.

import type { components } from './schema';

type Schemas = components['schemas'];

export type Token = Schemas['Token'];
export type CardEarnings = Schemas['CardEarnings'];
export type Person = Schemas['Person'];
export type Role = Token['role'];
export type Session = Schemas['Session'];
export type Lease = Schemas['Lease'];
export type LeaseState = Schemas['LeaseState'];
export type LeaseHistory = Schemas['LeaseHistory'];
export type LeaseEvent = Schemas['LeaseEvent'];
export type LeaseEstimate = Schemas['LeaseEstimate'];
export type NewLease = Schemas['NewLease'];
export type GpuSums = Schemas['GpuSums'];
export type GpuStatus = Schemas['GpuStatus'];
export type NodeStatus = Schemas['NodeStatus'];
export type SessionStatus = Schemas['SessionStatus'];
export type TenantStatus = Schemas['TenantStatus'];
export type PoolStatus = Schemas['PoolStatus'];
export type Price = Schemas['Price'];
export type Bill = Schemas['Bill'];
export type Line = Schemas['Line'];
export type DaySpent = Schemas['DaySpent'];
export type Charge = Schemas['Charge'];
export type Invoice = Schemas['Invoice'];
export type Entry = Schemas['Entry'];
export type Drift = Schemas['Drift'];
export type AsideRecord = Schemas['AsideRecord'];
export type Problem = Schemas['Problem'];
export type Webhook = Schemas['Webhook'];
export type ResizeLease = Schemas['ResizeLease'];
export type WebhookFormat = Schemas['WebhookFormat'];
export type EventKind = Schemas['EventKind'];
export type Delivery = Schemas['Delivery'];
export type ProgramAdvice = Schemas['ProgramAdvice'];
export type Tier = Schemas['Tier'];
export type PoolPlan = Schemas['PoolPlan'];
export type TenantAutonomy = Schemas['TenantAutonomy'];
export type ServerStatus = Schemas['ServerStatus'];
export type UsageHour = Schemas['UsageHour'];
export type UsageRecord = Schemas['UsageRecord'];
export type Page<T> = { items: T[]; next?: string | null };
