//! One lease: what it asked for, where it is, what it has used, and what became of it.

use std::time::Duration;

use anyhow::Result;
use serde_json::Value;
use sluice_api::autonomy::{AutomaticSize, Idle};
use sluice_api::client::Client;
use sluice_api::lease::{
    Lease, LeaseEvent, LeaseHistory, LeaseState, LeaseUse, NewLease, Place, ResizeState, Resizing,
};
use sluice_api::moving::{MoveState, Moving};
use sluice_api::pool::Promised;

use super::lists::{asks_for, millionths, now_ms, since, starts};
use crate::cli::Output;
use crate::moment::Moment;
use crate::quantity::{Memory, Period};
use crate::resize::size_text;
use crate::run::share_text;
use crate::table::{self, Align};

/// Of one answer; a lease has fewer.
const EVENTS_MAX: usize = 1000;

pub(super) fn show(client: &Client, id: u64, output: Output) -> Result<()> {
    let lease: Lease = client.get(&format!("/leases/{id}"))?;
    let mut history: LeaseHistory = client.get(&format!("/leases/{id}/history?limit={EVENTS_MAX}"))?;
    while let Some(cursor) = history.next.take() {
        let more: LeaseHistory =
            client.get(&format!("/leases/{id}/history?limit={EVENTS_MAX}&cursor={cursor}"))?;
        history.items.extend(more.items);
        history.next = more.next;
    }
    match output {
        Output::Json => {
            let all = serde_json::json!({ "lease": lease, "history": history });
            println!("{}", serde_json::to_string_pretty(&all)?);
        }
        Output::Table => {
            for (name, text) in facts(&lease, &history) {
                println!("{name:<10} {text}");
            }
            println!();
            let columns =
                &[("TIME", Align::Left), ("WHAT", Align::Left), ("BY", Align::Left), ("HOW", Align::Left)];
            let row = |event: &LeaseEvent| {
                let what = event.action.strip_prefix("lease.").unwrap_or(&event.action);
                vec![
                    Moment::from_ms(event.at_ms).to_string(),
                    what.to_owned(),
                    event.actor.clone(),
                    how(event),
                ]
            };
            print!("{}", table::render(columns, &history.items.iter().map(row).collect::<Vec<_>>()));
        }
    }
    Ok(())
}

/// What is known of it, line by line.
fn facts(lease: &Lease, history: &LeaseHistory) -> Vec<(&'static str, String)> {
    let mut facts = vec![
        ("lease", format!("{} of {}", lease.id, lease.tenant)),
        ("program", if lease.name.is_empty() { "-".into() } else { lease.name.clone() }),
        ("state", format!("{}, attempt {}", lease.state.name(), lease.attempt)),
        ("asked for", wanted(lease, &history.asked)),
        ("asked", format!("{} ago", since(lease.created_at_ms))),
    ];
    if let Some(position) = lease.position {
        facts.push(("place", format!("{position} in the line of {}", lease.tenant)));
        facts.push(("starts", starts(lease)));
    }
    if let Some(reason) = &lease.reason {
        facts.push((if lease.state == LeaseState::Queued { "waits" } else { "reason" }, reason.clone()));
    }
    facts.extend(lease.suspended.then(|| ("suspended", "its programs get no GPU time".to_owned())));
    facts.extend(lease.idle.as_ref().map(|idle| ("idle", idle_text(idle))));
    facts.extend(lease.resizing.as_ref().map(|resizing| ("resizing", resizing_text(resizing))));
    facts.extend(lease.automatic.as_ref().map(|size| ("changed", automatic_text(size, lease))));
    facts.extend(lease.moving.as_ref().map(|moving| ("moving", moving_text(moving))));
    facts.extend(lease.places.iter().map(|place| ("place", place_text(place))));
    if let Some(at_ms) = lease.granted_at_ms {
        let until_ms = lease.ended_at_ms.unwrap_or_else(now_ms);
        let held = Period::from_duration(Duration::from_millis(until_ms.saturating_sub(at_ms)));
        facts.push(("held", format!("{held}, since {}", Moment::from_ms(at_ms))));
    }
    if let Some(at_ms) = lease.preempt_at_ms {
        facts.push(("notice", format!("until {}", Moment::from_ms(at_ms))));
    }
    facts.push(("used", used(&history.used)));
    let of_none_yet = lease.promise.map(|promise| Promised { promise, waits: 0, within: 0 });
    let of_none_yet = of_none_yet.filter(|none| history.promised.iter().all(|of| of.promise != none.promise));
    let promised = history.promised.iter().copied().chain(of_none_yet);
    facts.extend(promised.map(|promised| ("promised", promised.text())));
    facts
}

/// What it asked for, without the defaults.
fn wanted(lease: &Lease, asked: &NewLease) -> String {
    let mut words = vec![asks_for(lease)];
    words.push(format!("tier {}", asked.tier.name()));
    words.push(format!("priority {}", asked.priority));
    words.extend(asked.tasks_max.map(|most| format!("up to {most} tasks")));
    words.extend(asked.same.map(|level| format!("same {}", level.name())));
    words.extend(asked.near.map(|level| format!("near {}", level.name())));
    words.extend(asked.spread.map(|level| format!("spread over {}s", level.name())));
    words.extend(asked.pool.as_ref().map(|pool| format!("pool {pool}")));
    words.extend((!asked.models.is_empty()).then(|| format!("model {}", asked.models.join(" or "))));
    words.extend(asked.gflops_min.map(|gflops| format!("at least {} TFLOPS", millionths(gflops * 1000))));
    words.extend(asked.gpu_memory_min.map(|bytes| format!("GPUs of at least {}", Memory::from_bytes(bytes))));
    words.extend(asked.labels.iter().map(|(name, value)| format!("{name}={value}")));
    words.extend(asked.deadline_ms.map(|at_ms| format!("done by {}", Moment::from_ms(at_ms))));
    let period = |ms| Period::from_duration(Duration::from_millis(ms));
    words.extend(asked.duration_ms.map(|ms| format!("for {}", period(ms))));
    words.extend(asked.hold_ms.map(|ms| format!("held for {} until claimed", period(ms))));
    words.extend(asked.limit_ppm.map(|limit| format!("at most {}", share_text(limit))));
    words.extend(asked.hard_cap.then(|| "never more than its share".to_owned()));
    words.extend((!lease.preemptible).then(|| "never preempted".to_owned()));
    words.join(", ")
}

/// `sent: 50% of each GPU and 8.0 GiB of its memory`
fn resizing_text(resizing: &Resizing) -> String {
    let &Resizing { share_ppm, limit_ppm, memory, suspended, .. } = resizing;
    let state = match resizing.state {
        ResizeState::Waiting => "waits for room",
        ResizeState::Sent => "sent to its nodes",
        ResizeState::Refused => "refused",
    };
    let reason = resizing.reason.as_ref().map_or_else(String::new, |reason| format!(" ({reason})"));
    let suspended = if suspended { ", suspended" } else { "" };
    format!("{state}: {}{suspended}{reason}", size_text(share_ppm, limit_ppm, memory))
}

/// `since 2026-11-27 14:02:11; suspended at 14:32:11 unless it makes a CUDA call`
fn idle_text(idle: &Idle) -> String {
    let since = Moment::from_ms(idle.since_ms);
    match idle {
        Idle { stays: Some(stays), .. } => format!("since {since}, and not suspended: {stays}"),
        Idle { suspended: true, wants: true, .. } => "suspended, and a call of its program waits".to_owned(),
        Idle { suspended: true, .. } => {
            format!("since {since}, and suspended: its next CUDA call brings it back")
        }
        _ => {
            let at = Moment::from_ms(idle.suspend_at_ms);
            format!("since {since}; suspended at {at} unless it makes a CUDA call")
        }
    }
}

/// `by the server 2 min ago, from 100% and 40 GiB: 12 earlier runs needed no more ...`
fn automatic_text(size: &AutomaticSize, lease: &Lease) -> String {
    let memory = match size.asked_memory {
        0 => String::new(),
        bytes => format!(" and {}", Memory::from_bytes(bytes)),
    };
    format!(
        "by the server {} ago, from {}{memory}: {}. `sluice iq {:?} --undo` undoes it",
        since(size.at_ms),
        share_text(size.asked_share_ppm),
        size.why,
        lease.name
    )
}

/// `moving to GPU 0 of two`
fn moving_text(moving: &Moving) -> String {
    let node = moving.node.as_deref().unwrap_or_default();
    let place = moving.gpu.map_or_else(|| node.to_owned(), |gpu| format!("{node}/{gpu}"));
    match moving.state {
        MoveState::Sent => format!("moving to {place}"),
        MoveState::Moved => format!("has moved to {place}"),
        MoveState::Refused => format!("stays: {}", moving.reason.as_deref().unwrap_or_default()),
    }
}

fn place_text(place: &Place) -> String {
    let gpus: Vec<String> = place.gpus.iter().map(|gpu| format!("{}/{gpu}", place.node)).collect();
    let leaves = place.leave_at_ms.map(|at_ms| format!(", has to leave by {}", Moment::from_ms(at_ms)));
    format!("task {} on {}{}", place.task, gpus.join(", "), leaves.unwrap_or_default())
}

fn used(used: &LeaseUse) -> String {
    if used.records == 0 {
        return "nothing that its nodes have sent yet".into();
    }
    // Millionths of a GPU times milliseconds: an hour of a GPU is 3.6e12 of them.
    let gpu_hours = millionths(used.reserved_ppm_ms / 3_600_000);
    let gpu_time = Period::from_duration(Duration::from_millis(used.used_ppm_ms / 1_000_000));
    let [bytes_in, bytes_out, peak] =
        [used.bytes_in, used.bytes_out, used.memory_peak].map(|bytes| Memory::from_bytes(bytes).to_string());
    format!(
        "{gpu_hours} GPU-hours reserved, {gpu_time} of GPU time used, {} kernels, {bytes_in} in, {bytes_out} out, {peak} of memory at most",
        used.kernels
    )
}

/// `from one to two/0; 350 MiB were copied, and it stood still for 0.99 s`
fn move_of(detail: &Value) -> Option<String> {
    let to = format!("to {}/{}", detail["node"].as_str()?, detail["gpus"][0].as_u64()?);
    let from = detail["from"].as_str().map(|from| format!("from {from} "));
    let copied = detail["bytes"].as_u64().zip(detail["stall_us"].as_u64()).map(|(bytes, stall_us)| {
        let (bytes, stall_s) = (Memory::from_bytes(bytes), stall_us as f64 / 1e6);
        format!("; {bytes} were copied, and it stood still for {stall_s:.2} s")
    });
    Some([from, Some(to), copied].into_iter().flatten().collect())
}

/// `attempt 2: on one/0`; `attempt 1: lease 8 of red has a higher priority; for lease 8`
fn how(event: &LeaseEvent) -> String {
    let detail = &event.detail;
    let mut words = Vec::new();
    let places = detail["places"].as_array().into_iter().flatten();
    let on: Vec<String> = places
        .flat_map(|place| {
            let node = place["node"].as_str().unwrap_or_default();
            place["gpus"].as_array().into_iter().flatten().map(move |gpu| format!("{node}/{gpu}"))
        })
        .collect();
    words.extend((!on.is_empty()).then(|| format!("on {}", on.join(", "))));
    words.extend(move_of(detail));
    let size = ["share_ppm", "limit_ppm", "memory"].map(|amount| detail[amount].as_u64());
    if let [Some(share_ppm), Some(limit_ppm), Some(memory)] = size {
        words.push(size_text(share_ppm as u32, limit_ppm as u32, memory));
        words.extend((detail["suspended"] == true).then(|| "suspended".to_owned()));
    }
    words.extend(detail["reason"].as_str().map(str::to_owned));
    let tasks: Vec<String> = detail["tasks"].as_array().into_iter().flatten().map(Value::to_string).collect();
    words.extend((!tasks.is_empty()).then(|| format!("tasks {}", tasks.join(", "))));
    let taker = ["for", "for_other_tenant"].into_iter().find_map(|name| detail[name].as_u64());
    words.extend(taker.map(|lease| format!("for lease {lease}")));
    match detail["attempt"].as_u64() {
        Some(attempt) if words.is_empty() => format!("attempt {attempt}"),
        Some(attempt) => format!("attempt {attempt}: {}", words.join("; ")),
        None => words.join("; "),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn event(action: &str, detail: Value) -> LeaseEvent {
        LeaseEvent { sequence: 1, at_ms: 0, actor: "a".into(), action: action.into(), detail }
    }

    #[test]
    fn what_became_of_a_lease_is_said_in_a_line() {
        let check = |detail: Value, expect: &str| assert_eq!(how(&event("lease.x", detail)), expect);
        check(json!({ "tenant": "acme", "asked": {} }), "");
        check(
            json!({ "attempt": 2, "places": [{ "task": 0, "node": "one", "gpus": [0, 1] }] }),
            "attempt 2: on one/0, one/1",
        );
        check(
            json!({ "attempt": 1, "reason": "because", "for": 8, "tasks": [1] }),
            "attempt 1: because; tasks 1; for lease 8",
        );
        check(json!({ "attempt": 2, "reason": null }), "attempt 2");
        check(
            json!({ "attempt": 1, "share_ppm": 500_000, "limit_ppm": 1_000_000, "memory": 8u64 << 30, "tasks": [0] }),
            "attempt 1: 50% of each GPU and 8 GiB of its memory; tasks 0",
        );
        check(
            json!({ "attempt": 1, "task": 0, "node": "two", "gpus": [1], "reason": "so that it fits", "for": 8 }),
            "attempt 1: to two/1; so that it fits; for lease 8",
        );
        check(
            json!({ "attempt": 1, "from": "one", "node": "two", "gpus": [1], "bytes": 350 << 20, "stall_us": 990_000 }),
            "attempt 1: from one to two/1; 350 MiB were copied, and it stood still for 0.99 s",
        );
        check(json!("of a later release"), "");
    }

    #[test]
    fn what_was_used_is_in_units_that_people_read() {
        let quarter_of_an_hour = LeaseUse {
            records: 1,
            reserved_ppm_ms: 250_000 * 3_600_000,
            used_ppm_ms: 1_000_000 * 1500,
            kernels: 7,
            ..LeaseUse::default()
        };
        let text = used(&quarter_of_an_hour);
        assert!(text.starts_with("0.25 GPU-hours reserved, 1.5 s of GPU time used, 7 kernels"), "{text}");
        assert!(used(&LeaseUse::default()).starts_with("nothing"));
    }
}
