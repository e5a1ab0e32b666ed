//! `sluice usage`: usage records as nodes deliver them.

use std::collections::BTreeMap;
use std::io::Write;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use sluice_api::Page;
use sluice_api::client::{Client, Failure};
use sluice_api::usage::UsageRecord;

use super::lists::now_ms;
use super::{aside, client};
use crate::cli::{Output, UsageArgs};
use crate::moment::Moment;
use crate::quantity::{Memory, Period};
use crate::run::share_text;

/// How often it is asked for more.
const ASK_EVERY: Duration = Duration::from_secs(2);
/// Records of one node come in order; those of another, or of one that was away, may begin this
/// much earlier than the latest.
const LATE_MS: u64 = 10 * 60_000;
/// Records of one answer.
const PAGE: u32 = 1000;

pub(crate) fn usage(arguments: &UsageArgs) -> Result<ExitCode> {
    if let Some(command) = &arguments.command {
        return aside::run(command);
    }
    let client = client(&arguments.at)?;
    let since_ms = now_ms().saturating_sub(arguments.since.duration().as_millis() as u64);
    let (mut shown, mut is_away) = (Shown::since(since_ms), false);
    loop {
        let records = match shown.news(|cursor| page(&client, arguments, cursor)) {
            Ok(records) => {
                is_away = false;
                records
            }
            // A server that is started again knows all that was used meanwhile.
            Err(failure) if arguments.follow && failure.is_temporary() => {
                if !std::mem::replace(&mut is_away, true) {
                    eprintln!("sluice: {failure}; waiting for it");
                }
                Vec::new()
            }
            Err(failure) => return Err(failure.into()),
        };
        for record in records {
            if writeln!(std::io::stdout().lock(), "{}", line(&record, arguments.output)?).is_err() {
                return Ok(ExitCode::SUCCESS);
            }
        }
        if !arguments.follow {
            return Ok(ExitCode::SUCCESS);
        }
        std::thread::sleep(ASK_EVERY);
    }
}

fn page(
    client: &Client,
    arguments: &UsageArgs,
    cursor: &str,
) -> std::result::Result<Page<UsageRecord>, Failure> {
    let tenant = arguments.tenant.as_ref().map_or_else(String::new, |tenant| format!("&tenant={tenant}"));
    client.get(&format!("/usage?limit={PAGE}&cursor={cursor}{tenant}"))
}

/// Which records were shown, as far as they may come again.
struct Shown {
    since_ms: u64,
    /// By their ids, with their beginnings.
    records: BTreeMap<String, u64>,
}

impl Shown {
    fn since(since_ms: u64) -> Shown {
        Shown { since_ms, records: BTreeMap::new() }
    }

    /// The records that were not shown yet, in the order of their beginnings. Where a page fails,
    /// none counts as shown.
    fn news<E>(
        &mut self,
        page: impl Fn(&str) -> std::result::Result<Page<UsageRecord>, E>,
    ) -> std::result::Result<Vec<UsageRecord>, E> {
        let latest_ms = self.records.values().max().copied().unwrap_or(0);
        let from_ms = latest_ms.saturating_sub(LATE_MS).max(self.since_ms);
        self.records.retain(|_, begun_ms| *begun_ms >= from_ms);
        let (mut news, mut cursor) = (Vec::new(), Some(format!("{from_ms}.")));
        while let Some(at) = cursor {
            let Page { items, next } = page(&at)?;
            news.extend(items);
            cursor = next;
        }
        news.retain(|record: &UsageRecord| self.records.insert(record.id.clone(), record.from_ms).is_none());
        Ok(news)
    }
}

/// `2026-11-23T15:02:11.318Z  acme/research  lease 9.1  25%  held 10.0 s  used 2.4 s  7 GiB`
fn line(record: &UsageRecord, output: Output) -> Result<String> {
    if output == Output::Json {
        return Ok(serde_json::to_string(record)?);
    }
    let period = |duration| Period::from_duration(duration).to_string();
    Ok(format!(
        "{}  {}  lease {}.{}  {}  held {}  used {}  {}{}",
        Moment::from_ms(record.until_ms),
        record.tenant,
        record.lease,
        record.attempt,
        share_text(record.share_ppm),
        period(Duration::from_millis(record.held_ms())),
        period(Duration::from_nanos(record.used_ppm_ms)),
        Memory::from_bytes(record.memory_mib << 20),
        if record.last { "  last" } else { "" }
    ))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn record(id: &str, from_ms: u64) -> UsageRecord {
        let record = json!({
            "id": id, "node": 1, "lease": 9, "attempt": 1, "sequence": 1, "tenant": "acme", "from_ms": from_ms,
            "until_ms": from_ms + 10_000, "share_ppm": 250_000, "gpus": 1, "memory_mib": 1024, "used_ppm_ms": 2_400_000_000_u64,
            "kernels": 1, "bytes_in": 1, "bytes_out": 1, "memory_peak": 1, "last": true,
        });
        serde_json::from_value(record).unwrap()
    }

    #[test]
    fn each_record_is_shown_once_also_one_that_comes_late() {
        let mut shown = Shown::since(1_000);
        let mut ledger = vec![record("a", 1_000), record("b", 2_000)];
        let mut news = |ledger: &[UsageRecord]| -> Vec<String> {
            let page = |cursor: &str| -> Result<Page<UsageRecord>> {
                let from_ms: u64 = cursor.split_once('.').unwrap().0.parse().unwrap();
                let items = ledger.iter().filter(|record| record.from_ms >= from_ms).cloned().collect();
                Ok(Page { items, next: None })
            };
            shown.news(page).unwrap().into_iter().map(|record| record.id).collect()
        };
        assert_eq!(news(&ledger), ["a", "b"]);
        ledger.push(record("late", 1_500));
        assert_eq!(news(&ledger), ["late"]);
        ledger.push(record("long after", 2_000 + 2 * LATE_MS));
        assert_eq!(news(&ledger), ["long after"]);
        assert_eq!(news(&ledger), [""; 0]);
    }

    #[test]
    fn records_before_a_failure_are_shown_with_the_next_answer() {
        let mut shown = Shown::since(0);
        let pages = |cursor: &str, fails: bool| match cursor {
            "0." => Ok(Page { items: vec![record("a", 1_000)], next: Some("1000.a".into()) }),
            _ if fails => Err("away"),
            _ => Ok(Page { items: vec![record("b", 2_000)], next: None }),
        };
        assert_eq!(shown.news(|cursor| pages(cursor, true)).unwrap_err(), "away");
        let news = shown.news(|cursor| pages(cursor, false)).unwrap();
        assert_eq!(news.iter().map(|record| record.id.as_str()).collect::<Vec<_>>(), ["a", "b"]);
    }

    #[test]
    fn a_record_is_a_line() {
        let said = line(&record("a", 0), Output::Table).unwrap();
        assert!(said.ends_with("acme  lease 9.1  25%  held 10.0 s  used 2.4 s  1 GiB  last"), "{said}");
        assert!(line(&record("a", 0), Output::Json).unwrap().starts_with('{'));
    }
}
