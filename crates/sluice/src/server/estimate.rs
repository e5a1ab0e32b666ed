//! `sluice run --dry-run`: prints what a request would lead to.

use std::time::Duration;

use anyhow::Result;
use sluice_api::bill::{BudgetEnd, TightestBudget};
use sluice_api::client::Client;
use sluice_api::lease::{EstimatedPlace, LeaseEstimate, NewLease, Offer};

use super::lists::{millionths, now_ms};
use crate::cli::Output;
use crate::moment::Moment;
use crate::quantity::{Memory, Period};
use crate::run::share_text;
use crate::table::{self, Align};

const OFFER_COLUMNS: &[(&str, Align)] = &[
    ("POOL", Align::Left),
    ("GPU", Align::Left),
    ("MEMORY", Align::Right),
    ("TFLOPS", Align::Right),
    ("SHARE", Align::Right),
    ("GPUS", Align::Right),
    ("FREE NOW", Align::Right),
    ("PER HOUR", Align::Right),
];

pub(crate) fn show(client: &Client, ask: &NewLease, output: Output) -> Result<()> {
    let estimate: LeaseEstimate = client.post("/leases?dry_run=true", ask)?;
    match output {
        Output::Json => println!("{}", serde_json::to_string_pretty(&estimate)?),
        Output::Table => print!("{}", text(&estimate, now_ms())),
    }
    Ok(())
}

fn text(estimate: &LeaseEstimate, now_ms: u64) -> String {
    let mut lines = vec![("start", start(estimate, now_ms))];
    lines.extend(estimate.reason.iter().map(|reason| ("why", reason.clone())));
    lines.extend(estimate.places.iter().map(|place| ("place", place_text(place))));
    match estimate.preempts {
        0 => {}
        1 => lines.push(("others", "1 lease would be preempted".into())),
        count => lines.push(("others", format!("{count} leases would be preempted"))),
    }
    let currency = estimate.currency.as_ref().map_or_else(String::new, |currency| format!(" {currency}"));
    if let Some(held) = estimate.micro_per_hour {
        let used = estimate.used_micro_per_hour_max.filter(|&used| used > 0);
        let used = used.map(|used| format!(", and at most {} more for GPU time used", millionths(used)));
        lines.push(("price", format!("{}{currency} per hour{}", millionths(held), used.unwrap_or_default())));
    }
    lines.extend(estimate.tightest_budget.as_ref().map(|budget| ("budget", budget_text(budget))));
    let lines: Vec<String> = lines.iter().map(|(name, text)| format!("{name:7} {text}")).collect();
    let offers: Vec<Vec<String>> = estimate.offers.iter().map(cells).collect();
    let offers = match offers.is_empty() {
        true => "No GPU of this installation is suitable.\n".to_owned(),
        false => table::render(OFFER_COLUMNS, &offers),
    };
    format!("{}\n\n{offers}", lines.join("\n"))
}

fn budget_text(budget: &TightestBudget) -> String {
    let left = 100_u64.saturating_sub(budget.spent_percent);
    let then = match budget.then {
        BudgetEnd::Hold => "; when it is spent, new leases wait",
        BudgetEnd::Preempt => "; when it is spent, leases are preempted",
        BudgetEnd::Warn => "",
    };
    format!("{left} % is left{then}")
}

fn start(estimate: &LeaseEstimate, now_ms: u64) -> String {
    let start = &estimate.start;
    let Some(at_ms) = start.at_ms else { return format!("unknown: {}", start.because) };
    let period = |ms: u64| Period::from_duration(Duration::from_millis(ms / 1000 * 1000)).to_string();
    let wait_ms = at_ms.saturating_sub(now_ms);
    if wait_ms < 1000 {
        return format!("now: {}", start.because);
    }
    let sure = match (start.error_ms, start.error_p90_ms) {
        (Some(ms), Some(p90)) => format!(
            "half of such predictions were off by at most {}, nine in ten by {}",
            period(ms),
            period(p90)
        ),
        (Some(ms), None) => format!("half of such predictions were off by at most {}", period(ms)),
        _ => "no earlier prediction to compare with".to_owned(),
    };
    let (wait, moment) = (period(wait_ms), Moment::from_ms(at_ms));
    format!("in about {wait} ({moment}), {} ({sure})", start.because)
}

/// Formats a place, such as `gpu1/0,1 (NVIDIA H100, pool default): 25% and 8 GiB of each`.
fn place_text(place: &EstimatedPlace) -> String {
    let gpus: Vec<String> = place.gpus.iter().map(u32::to_string).collect();
    format!(
        "{}/{} ({}, pool {}): {} and {} of each",
        place.node,
        gpus.join(","),
        place.model,
        place.pool,
        share_text(place.share_ppm),
        Memory::from_bytes(place.memory)
    )
}

fn cells(offer: &Offer) -> Vec<String> {
    let tflops = if offer.gflops == 0 { "-".into() } else { format!("{:.1}", offer.gflops as f64 / 1000.0) };
    vec![
        offer.pool.clone(),
        offer.model.clone(),
        Memory::from_bytes(offer.memory).to_string(),
        tflops,
        share_text(offer.share_ppm),
        offer.gpus.to_string(),
        offer.gpus_free.to_string(),
        millionths(offer.micro_per_hour),
    ]
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_estimate_says_when_where_and_for_how_much() {
        let estimate = json!({
            "tenant": "acme",
            "start": { "at_ms": 190_000, "error_ms": 15_000, "because": "if the 2 leases before it end as expected" },
            "reason": "1 task: no GPU has room",
            "places": [{ "node": "gpu1", "gpus": [0], "pool": "default", "model": "H100", "share_ppm": 250_000, "memory": 8_u64 << 30 }],
            "preempts": 0,
            "micro_per_hour": 500_000,
            "used_micro_per_hour_max": 2_000_000,
            "currency": "EUR",
            "tightest_budget": { "spent_percent": 83, "then": "hold" },
            "offers": [{
                "pool": "default", "model": "H100", "memory": 80_u64 << 30, "gflops": 66_900, "share_ppm": 250_000, "gpus": 8,
                "gpus_free": 0, "micro_per_hour": 500_000,
            }],
        });
        let said = text(&serde_json::from_value(estimate).unwrap(), 10_000);
        for part in [
            "start   in about 3 min 0 s (1970-01-01T00:03:10Z), if the 2 leases before it end as expected",
            "half of such predictions were off by at most 15.0 s",
            "why     1 task: no GPU has room",
            "place   gpu1/0 (H100, pool default): 25% and 8 GiB of each",
            "price   0.5 EUR per hour, and at most 2 more for GPU time used",
            "budget  17 % is left; when it is spent, new leases wait",
            "default  H100  80 GiB    66.9    25%     8         0       0.5",
        ] {
            assert!(said.contains(part), "{part} in\n{said}");
        }
    }

    #[test]
    fn an_unknown_start_has_a_reason() {
        let estimate = json!({
            "tenant": "acme", "start": { "because": "lease 3 did not say how long it takes" }, "preempts": 0, "offers": [],
        });
        let said = text(&serde_json::from_value(estimate).unwrap(), 0);
        assert!(said.starts_with("start   unknown: lease 3") && said.contains("No GPU"), "{said}");
    }
}
