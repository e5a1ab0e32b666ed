//! Lists for people and for programs: GPUs, sessions, the queue, leases, tenants, tokens, bills.

use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use anyhow::Result;
use serde::Serialize;
use sluice_api::autonomy::Idle;
use sluice_api::bill::BudgetStatus;
use sluice_api::client::{Client, segment};
use sluice_api::health::{Condition, FenceState};
use sluice_api::lease::Lease;
use sluice_api::node::{Gpu, GpuStatus, NvLinks, Rates, SessionStatus};
use sluice_api::pool::{Access, PoolStatus, PoolTier};
use sluice_api::tenant::{Quota, TenantStatus};
use sluice_api::token::{Person, Token};
use sluice_api::written::percent;

use super::{client, watch};
use crate::cli::{LeaseListArgs, ListArgs, Output};
use crate::moment::Moment;
use crate::quantity::{Memory, Period};
use crate::run::{compute_text, share_text};
use crate::table::{self, Align};

use Align::{Left, Right};

pub(crate) type Columns<'a> = &'a [(&'a str, Align)];

/// Prints items as JSON or as a table, and says on stderr that there are none.
pub(crate) fn show<T: Serialize>(
    items: &[T],
    output: Output,
    none: &str,
    columns: Columns<'_>,
    cells: impl Fn(&T) -> Vec<String>,
) -> Result<()> {
    match output {
        Output::Json => println!("{}", serde_json::to_string_pretty(items)?),
        Output::Table if items.is_empty() => eprintln!("{none}"),
        Output::Table => print!("{}", table::render(columns, &items.iter().map(cells).collect::<Vec<_>>())),
    }
    Ok(())
}

pub(crate) fn gpus(client: &Client, output: Output) -> Result<ExitCode> {
    let gpus: Vec<GpuStatus> = client.list("/gpus")?;
    // Columns of what no GPU has would be dashes alone.
    let has_sensors = gpus.iter().any(|gpu| gpu.condition.is_some());
    let overcommits = gpus.iter().any(|gpu| gpu.gpu.leasable() > gpu.gpu.memory);
    let mut columns = vec![("NODE", Left), ("GPU", Right), ("NAME", Left), ("MEMORY", Right)];
    if overcommits {
        columns.push(("LEASABLE", Right));
    }
    columns.extend([
        ("LEASED", Right),
        ("USED", Right),
        ("SHARE LEASED", Right),
        ("BUSY", Right),
        ("LEASES", Right),
        ("POOL", Left),
        ("STATE", Left),
    ]);
    if has_sensors {
        columns.extend([("TEMPERATURE", Right), ("POWER", Right)]);
    }
    let cells = |gpu: &GpuStatus| {
        let memory = |bytes| Memory::from_bytes(bytes).to_string();
        let mut cells =
            vec![gpu.node.clone(), gpu.index.to_string(), gpu.gpu.name.clone(), memory(gpu.gpu.memory)];
        if overcommits {
            cells.push(memory(gpu.gpu.leasable()));
        }
        cells.extend([
            memory(gpu.memory_leased),
            memory(gpu.memory_used),
            share_text(gpu.share_leased_ppm),
            share_text(gpu.busy_ppm / 10_000 * 10_000),
            gpu.leases.to_string(),
            gpu.pool.clone().unwrap_or_else(|| "-".into()),
            gpu_state(gpu),
        ]);
        if has_sensors {
            cells.extend(sensors(gpu.condition.as_ref()));
        }
        cells
    };
    show(&gpus, output, "no node has joined; `sluice node --join` lends its GPUs", &columns, cells)?;
    Ok(ExitCode::SUCCESS)
}

/// `61 C` and `312 W`; a dash for what is not measured.
fn sensors(condition: Option<&Condition>) -> [String; 2] {
    let temperature = condition.and_then(|condition| Some(format!("{} C", condition.temperature_c?)));
    let power = condition.and_then(|condition| Some(format!("{} W", condition.power_mw? / 1000)));
    [temperature, power].map(|text| text.unwrap_or_else(|| "-".into()))
}

/// Where GPUs stand and what they can do; a dash where it is not known.
pub(crate) fn gpu_facts(arguments: &ListArgs) -> Result<()> {
    let gpus: Vec<GpuStatus> = client(&arguments.at)?.list("/gpus")?;
    let columns = &[
        ("NODE", Left),
        ("GPU", Right),
        ("NAME", Left),
        ("VENDOR", Left),
        ("MEMORY", Right),
        ("TFLOPS", Left),
        ("MEASURED", Left),
        ("PCI", Left),
        ("NUMA", Right),
        ("PCIE", Left),
        ("NVLINK", Left),
        ("STATE", Left),
    ];
    let cells = |status: &GpuStatus| {
        let gpu = &status.gpu;
        let dash = || "-".to_owned();
        vec![
            status.node.clone(),
            status.index.to_string(),
            gpu.name.clone(),
            gpu.vendor.clone().unwrap_or_else(dash),
            Memory::from_bytes(gpu.memory).to_string(),
            counts_as(gpu).unwrap_or_else(dash),
            gpu.measured.map_or_else(dash, measured),
            gpu.pci.clone().unwrap_or_else(dash),
            gpu.numa_node.map_or_else(dash, |node| node.to_string()),
            gpu.pcie.map_or_else(dash, |link| format!("gen {} x{}", link.generation, link.lanes)),
            nvlinks(&gpu.nvlinks),
            gpu_state(status),
        ]
    };
    let none = "no node has joined; `sluice node --join` lends its GPUs";
    show(&gpus, arguments.output, none, columns, cells)
}

/// `66.9 (figure)`, or `2.5 (stated)`
fn counts_as(gpu: &Gpu) -> Option<String> {
    let from = if gpu.stated { "stated" } else { "figure" };
    (gpu.gflops > 0).then(|| format!("{} ({from})", tflops(gpu.gflops)))
}

/// `51.0 TFLOPS, 2900 GB/s`
fn measured(rates: Rates) -> String {
    format!("{} TFLOPS, {:.0} GB/s", tflops(rates.gflops), rates.memory_bytes_per_s as f64 / 1e9)
}

/// Of a software GPU that is some hundredths.
fn tflops(gflops: u64) -> String {
    let tflops = gflops as f64 / 1000.0;
    if gflops < 1000 { format!("{tflops:.3}") } else { format!("{tflops:.1}") }
}

/// `1 (4), 2 (4)`: the GPUs that links lead to, and how many.
fn nvlinks(links: &[NvLinks]) -> String {
    let each: Vec<String> = links.iter().map(|links| format!("{} ({})", links.gpu, links.links)).collect();
    if each.is_empty() { "-".into() } else { each.join(", ") }
}

/// `online`, `silent`, or who has it fenced since when, and why.
fn gpu_state(gpu: &GpuStatus) -> String {
    let online = if gpu.online { "online" } else { "silent" };
    let Some(fence) = &gpu.fence else { return online.into() };
    let since = since(fence.since_ms);
    let state = match fence.state {
        FenceState::Fenced => format!("fenced by {} {since} ago: {}", fence.by, fence.why),
        FenceState::Suspected => format!("suspected by {} {since} ago, still used: {}", fence.by, fence.why),
    };
    if gpu.online { state } else { format!("silent, {state}") }
}

/// What is to be said of a session behind the name of its program.
fn state_text(status: &SessionStatus) -> String {
    let period = |ms: u64| Period::from_duration(Duration::from_millis(ms));
    match &status.lease_idle {
        Some(idle) if idle.suspended && idle.wants => " (suspended while idle; its call waits)".to_owned(),
        Some(idle) if idle.suspended => " (suspended while idle; a CUDA call brings it back)".to_owned(),
        Some(Idle { stays: Some(stays), .. }) => format!(" (idle, and stays: {stays})"),
        Some(idle) => {
            let (idle_ms, left_ms) =
                (now_ms().saturating_sub(idle.since_ms), idle.suspend_at_ms.saturating_sub(now_ms()));
            format!(
                " (idle for {}, suspended in {})",
                period(idle_ms / 1000 * 1000),
                period(left_ms / 1000 * 1000)
            )
        }
        None if status.session.suspended => " (suspended)".to_owned(),
        None => String::new(),
    }
}

pub(crate) fn sessions(client: &Client, output: Output) -> Result<ExitCode> {
    let sessions: Vec<SessionStatus> = client.list("/sessions")?;
    let columns = &[
        ("LEASE", Right),
        ("TENANT", Left),
        ("USER", Left),
        ("PROGRAM", Left),
        ("NODE", Left),
        ("GPU", Right),
        ("SHARE", Right),
        ("MEMORY", Right),
        ("ON GPU", Right),
        ("SWAPPED", Right),
        ("PINNED", Right),
        ("SWAPPING", Right),
        ("KERNELS", Right),
        ("GPU TIME", Right),
        ("AGE", Right),
    ];
    let cells = |status: &SessionStatus| {
        let session = &status.session;
        let memory = |bytes| Memory::from_bytes(bytes).to_string();
        vec![
            session.lease.to_string(),
            status.tenant.to_string(),
            status.user.clone(),
            format!("{}{}", session.name, state_text(status)),
            status.node.clone(),
            session.gpu.to_string(),
            compute_text(session.share_ppm, session.limit_ppm),
            memory(session.memory),
            memory(session.memory_used.saturating_sub(session.memory_swapped)),
            crate::query::swapped(session.memory_swapped, session.memory_in_file),
            memory(session.memory_pinned),
            Period::from_duration(Duration::from_micros(session.memory_moving_us)).to_string(),
            session.kernels.to_string(),
            Period::from_duration(Duration::from_micros(session.busy_us)).to_string(),
            Period::from_duration(Duration::from_millis(session.age_ms)).to_string(),
        ]
    };
    show(&sessions, output, "no program uses a GPU now", columns, cells)?;
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn queue(arguments: &ListArgs) -> Result<ExitCode> {
    let queue: Vec<Lease> = client(&arguments.at)?.list("/queue")?;
    let columns = &[
        ("PLACE", Right),
        ("LEASE", Right),
        ("TENANT", Left),
        ("USER", Left),
        ("PROGRAM", Left),
        ("ASKS FOR", Left),
        ("PRIORITY", Right),
        ("WAITS", Right),
        ("STARTS", Left),
        ("WHY", Left),
    ];
    let cells = |lease: &Lease| {
        vec![
            lease.position.map_or_else(String::new, |position| position.to_string()),
            lease.id.to_string(),
            lease.tenant.to_string(),
            lease.user.clone(),
            lease.name.clone(),
            asks_for(lease),
            lease.priority.to_string(),
            since(lease.created_at_ms),
            starts(lease),
            in_short(lease),
        ]
    };
    show(&queue, arguments.output, "no lease waits", columns, cells)?;
    Ok(ExitCode::SUCCESS)
}

pub(super) fn leases(arguments: &LeaseListArgs) -> Result<()> {
    let LeaseListArgs { list: ListArgs { at, output }, all, state, tenant, user, watch } = arguments;
    let client = client(at)?;
    let state = if *all { String::new() } else { format!("&state={}", state.name()) };
    let tenant = tenant.as_ref().map_or_else(String::new, |tenant| format!("&tenant={tenant}"));
    let user = user.as_ref().map_or_else(String::new, |user| format!("&user={}", segment(user)));
    let path = format!("/leases?limit=1000{state}{tenant}{user}");
    if !watch {
        return show_leases(&client.list::<Lease>(&path)?, *output);
    }
    watch::leases(&client, arguments.tenant.as_ref(), *output, || {
        let leases: Vec<Lease> = client.list(&path)?;
        match output {
            Output::Json => {
                for lease in &leases {
                    println!("{}", serde_json::to_string(lease)?);
                }
            }
            Output::Table => show_leases(&leases, *output)?,
        }
        Ok(leases)
    })
}

fn show_leases(leases: &[Lease], output: Output) -> Result<()> {
    let columns = &[
        ("LEASE", Right),
        ("TENANT", Left),
        ("USER", Left),
        ("PROGRAM", Left),
        ("SHARE", Left),
        ("STATE", Left),
        ("NODE", Left),
        ("ASKED", Right),
        ("REASON", Left),
    ];
    let cells = |lease: &Lease| {
        vec![
            lease.id.to_string(),
            lease.tenant.to_string(),
            lease.user.clone(),
            lease.name.clone(),
            asks_for(lease),
            lease.state.name().into(),
            nodes_of(lease),
            format!("{} ago", since(lease.created_at_ms)),
            in_short(lease),
        ]
    };
    let none = "there is no such lease; `sluice lease list --all` lists those that have ended as well";
    show(leases, output, none, columns, cells)
}

pub(crate) fn tenants(arguments: &ListArgs) -> Result<ExitCode> {
    let tenants: Vec<TenantStatus> = client(&arguments.at)?.list("/tenants")?;
    let columns = &[
        ("TENANT", Left),
        ("GPUS HELD", Right),
        ("FAIR SHARE", Right),
        ("UNITS HELD", Right),
        ("GUARANTEED", Right),
        ("LIMIT", Right),
        ("WEIGHT", Right),
        ("MEMORY HELD", Right),
        ("LEASES", Right),
        ("QUEUED", Right),
        ("BUDGET SPENT", Right),
    ];
    let cells = |tenant: &TenantStatus| {
        let spent = |status: &BudgetStatus| {
            let (spent, all) = (millionths(status.spent_micro), millionths(status.budget.micro));
            let currency =
                status.currency.as_ref().map_or_else(String::new, |currency| format!(" {currency}"));
            format!("{} % ({spent} of {all}{currency})", status.spent_percent)
        };
        let quota = &tenant.quota;
        vec![
            tenant.path.to_string(),
            thousandths(tenant.held_milli),
            tenant.fair_share_milli.map_or_else(|| "-".into(), thousandths),
            thousandths(tenant.held_units_milli),
            guaranteed(quota),
            limit(quota),
            quota.over_quota_weight.to_string(),
            Memory::from_bytes(tenant.held_memory_mib << 20).to_string(),
            tenant.leases.to_string(),
            tenant.queued.to_string(),
            budgets(tenant.budget.as_ref().map(spent), tenant),
        ]
    };
    show(&tenants, arguments.output, "there are no tenants; `sluice apply -f` creates them", columns, cells)?;
    Ok(ExitCode::SUCCESS)
}

/// `12 % (1.2 of 10 EUR), one above 83 %`: its own budget, and the tightest if that is another one.
fn budgets(own: Option<String>, tenant: &TenantStatus) -> String {
    let own_percent = tenant.budget.as_ref().map(|status| status.spent_percent);
    let above = tenant.tightest_budget.as_ref().map(|tightest| tightest.spent_percent);
    let above = above.filter(|&percent| own_percent.is_none_or(|own| own < percent));
    let all: Vec<String> =
        own.into_iter().chain(above.map(|percent| format!("one above {percent} %"))).collect();
    if all.is_empty() { "-".into() } else { all.join(", ") }
}

pub(crate) fn pools(arguments: &ListArgs) -> Result<ExitCode> {
    let pools: Vec<PoolStatus> = client(&arguments.at)?.list("/pools")?;
    let columns = &[
        ("POOL", Left),
        ("ACCESS", Left),
        ("TIERS", Left),
        ("SHARING", Left),
        ("OVERCOMMIT", Right),
        ("OF MEMORY", Right),
        ("PERSONALITY", Left),
        ("UNTIL", Left),
    ];
    let cells = |pool: &PoolStatus| {
        let terms = pool.terms();
        let tiers: Vec<String> = terms.tiers.iter().map(tier_text).collect();
        vec![
            pool.declared.name.clone(),
            access(terms.access),
            if tiers.is_empty() { "all".into() } else { tiers.join(", ") },
            terms.sharing.name().into(),
            format!("{} %", pool.declared.overcommit_percent),
            format!("{} %", pool.declared.memory_overcommit_percent),
            pool.personality.clone().unwrap_or_else(|| "-".into()),
            pool.until_ms.map_or_else(|| "-".into(), |ms| Moment::from_ms(ms).to_string()),
        ]
    };
    show(
        &pools,
        arguments.output,
        "there is only the pool default; `sluice apply -f` declares others",
        columns,
        cells,
    )?;
    Ok(ExitCode::SUCCESS)
}

/// `premium (20ms for 99%, credit 10%, limit 50%)`
fn tier_text(of: &PoolTier) -> String {
    let promise = of.promise.into_iter().flat_map(|promise| {
        let credit = format!("credit {}", percent(promise.credit_ppm.into()));
        std::iter::once(promise.text()).chain((promise.credit_ppm > 0).then_some(credit))
    });
    let limit = of.limit_ppm.map(|limit_ppm| format!("limit {}", percent(limit_ppm.into())));
    let terms: Vec<String> = promise.chain(limit).collect();
    let name = of.tier.name();
    if terms.is_empty() { name.into() } else { format!("{name} ({})", terms.join(", ")) }
}

/// `private: acme, globex`
fn access(access: &Access) -> String {
    let (kind, tenants) = match access {
        Access::Public => return "public".into(),
        Access::Private { tenants } => ("private", tenants),
        Access::Reserved { tenants, .. } => ("reserved", tenants),
    };
    let names: Vec<&str> = tenants.iter().map(|tenant| tenant.as_str()).collect();
    if names.is_empty() { kind.into() } else { format!("{kind}: {}", names.join(", ")) }
}

pub(super) fn tokens(arguments: &ListArgs) -> Result<()> {
    let tokens: Vec<Token> = client(&arguments.at)?.list("/tokens")?;
    let columns =
        &[("ID", Left), ("ROLE", Left), ("TENANT", Left), ("NAME", Left), ("USED", Right), ("STATE", Left)];
    let cells = |token: &Token| {
        let now = now_ms();
        let state = match token {
            token if token.revoked => "revoked".into(),
            token if token.expires_at_ms <= now => "expired".into(),
            token => {
                let left = Duration::from_millis(token.expires_at_ms - now);
                format!("valid for {}", Period::from_duration(left))
            }
        };
        vec![
            token.id.clone(),
            token.role.name().into(),
            token.tenant.to_string(),
            token.name.clone(),
            token.last_used_at_ms.map_or("-".into(), |at_ms| format!("{} ago", since(at_ms))),
            state,
        ]
    };
    show(&tokens, arguments.output, "there are no tokens", columns, cells)
}

pub(super) fn people(arguments: &ListArgs) -> Result<()> {
    let people: Vec<Person> = client(&arguments.at)?.list("/people")?;
    let columns =
        &[("NAME", Left), ("ROLE", Left), ("TENANT", Left), ("FIRST HERE", Left), ("LAST HERE", Right)];
    let cells = |person: &Person| {
        vec![
            person.name.clone(),
            person.role.name().into(),
            person.tenant.to_string(),
            Moment::from_ms(person.first_seen_ms).to_string(),
            format!("{} ago", since(person.last_seen_ms)),
        ]
    };
    let none = "no person has signed in with an identity provider; `sluice token list` lists tokens";
    show(&people, arguments.output, none, columns, cells)
}

/// Formats a start: `in 3 min (2 s off at the median, 9 s at the 90th percentile)`, or `unknown: `
/// and why, unless that is why it waits, which stands beside this.
pub(super) fn starts(lease: &Lease) -> String {
    let Some(start) = &lease.start else { return "unknown: not looked at yet".into() };
    let Some(at_ms) = start.at_ms else {
        let is_said = lease.reason.as_ref() == Some(&start.because);
        return if is_said { "unknown".into() } else { format!("unknown: {}", start.because) };
    };
    let period = |ms| Period::from_duration(Duration::from_millis(ms));
    let error = match (start.error_ms, start.error_p90_ms) {
        (Some(median), Some(p90)) => {
            format!(" ({} off at the median, {} at the 90th percentile)", period(median), period(p90))
        }
        (Some(median), None) => format!(" ({} off at the median)", period(median)),
        _ => String::new(),
    };
    // People read seconds.
    match at_ms.saturating_sub(now_ms()) / 1000 {
        0 => format!("any moment{error}"),
        seconds => format!("in {}{error}", period(seconds * 1000)),
    }
}

/// The reason in brief. `-o json` and `sluice run -v` have all of it.
fn in_short(lease: &Lease) -> String {
    let reason = lease.reason.as_deref().unwrap_or_default();
    lease.reason_brief.clone().unwrap_or_else(|| reason.split("; no ").next().unwrap_or_default().to_owned())
}

/// `2`; `2, 40 units, 64 GiB`
fn guaranteed(quota: &Quota) -> String {
    let mut text = thousandths(quota.guaranteed_milli.into());
    if quota.guaranteed_units_milli > 0 {
        text += &format!(", {} units", thousandths(quota.guaranteed_units_milli));
    }
    if quota.guaranteed_memory_mib > 0 {
        text += &format!(", {}", Memory::from_bytes(quota.guaranteed_memory_mib << 20));
    }
    text
}

/// `4`; `4, 80 units`; `-`
fn limit(quota: &Quota) -> String {
    let gpus = quota.limit_milli.map(|limit| thousandths(limit.into()));
    let units = quota.units_limit_milli.map(|limit| format!("{} units", thousandths(limit)));
    let stated: Vec<String> = [gpus, units].into_iter().flatten().collect();
    if stated.is_empty() { "-".into() } else { stated.join(", ") }
}

/// The nodes of its tasks, each once.
fn nodes_of(lease: &Lease) -> String {
    let mut names: Vec<&str> = lease.places.iter().map(|place| place.node.as_str()).collect();
    names.dedup();
    names.join(", ")
}

/// `2 x 25%, 8 GiB`; `3 tasks of 2 x 25%`
pub(super) fn asks_for(lease: &Lease) -> String {
    let count = if lease.gpus == 1 { String::new() } else { format!("{} x ", lease.gpus) };
    let count = if lease.tasks == 1 { count } else { format!("{} tasks of {count}", lease.tasks) };
    let memory = match lease.memory {
        0 => String::new(),
        bytes => format!(", {}", Memory::from_bytes(bytes)),
    };
    let compute = match (lease.units_milli, lease.share_ppm) {
        (None, share_ppm) => share_text(share_ppm),
        (Some(units), 0) => format!("{} units", thousandths(units)),
        (Some(units), share_ppm) => format!("{} units ({})", thousandths(units), share_text(share_ppm)),
    };
    format!("{count}{compute}{memory}")
}

/// Milliseconds since 1970.
pub(crate) fn now_ms() -> u64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    now.map_or(0, |now| now.as_millis() as u64)
}

pub(super) fn since(at_ms: u64) -> String {
    Period::from_duration(Duration::from_millis(now_ms().saturating_sub(at_ms))).to_string()
}

pub(super) fn thousandths(number: u64) -> String {
    decimal(number, 1000, 3)
}

pub(super) fn millionths(number: u64) -> String {
    decimal(number, 1_000_000, 6)
}

/// An exact decimal number without digits that say nothing.
fn decimal(number: u64, unit: u64, digits: usize) -> String {
    let text = format!("{}.{:0digits$}", number / unit, number % unit);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_read_as_decimals() {
        for (number, text) in [
            (0, "0"),
            (1, "0.000001"),
            (1_000_000, "1"),
            (2_500_000, "2.5"),
            (u64::MAX, "18446744073709.551615"),
        ] {
            assert_eq!(millionths(number), text);
        }
        assert_eq!(thousandths(250), "0.25");
    }
}
