//! Do node journals, the ledger and the invoices say the same? Each is read on its own and compared
//! here.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};
use sluice_api::bill::Bill;
use sluice_api::invoice::Invoice;
use sluice_api::usage::{UsageRecord, read_journal_line};

use super::bills::signed;
use super::client;
use crate::cli::ReconcileArgs;
use crate::progress::Progress;

pub(crate) fn reconcile(arguments: &ReconcileArgs) -> Result<ExitCode> {
    let client = client(&arguments.at)?;
    let mut ledger = BTreeMap::new();
    let mut progress = Progress::new();
    client.each("/usage?limit=1000", |record: UsageRecord| {
        ledger.insert(record.id.clone(), record);
        progress.at(|| format!("{} records of the ledger read", ledger.len()));
    })?;
    let mut findings = Vec::new();
    let mut journals = Journals::default();
    for folder in &arguments.journals {
        journals.read(folder, &mut findings)?;
    }
    journals.compare(&ledger, &mut findings);
    let invoices: Vec<Invoice> = client.list("/invoices")?;
    let mut due = Vec::new();
    for (number, invoice) in invoices.iter().filter(|invoice| invoice.covers()).enumerate() {
        progress.at(|| format!("{number} invoices compared"));
        let Bill { tenant, from_ms, until_ms, .. } = &invoice.bill;
        let path = format!("/bill?tenant={tenant}&from_ms={from_ms}&until_ms={until_ms}");
        let now: Bill = client.get(&path)?;
        due.extend(differs(invoice, &now, &invoices));
    }
    drop(progress);
    println!(
        "{} records in {} journals, {} in the ledger, {} invoices: {}",
        journals.records.len(),
        arguments.journals.len(),
        ledger.len(),
        invoices.len(),
        if findings.is_empty() { "they agree".to_owned() } else { format!("{} differences", findings.len()) }
    );
    findings.iter().chain(&due).for_each(|line| println!("{line}"));
    if let Some(line) = journals.not_compared(&ledger) {
        println!("{line}");
    }
    Ok(if findings.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// What the journals of some nodes hold.
#[derive(Default)]
struct Journals {
    /// By id, with whether the server has confirmed it.
    records: BTreeMap<String, (UsageRecord, bool)>,
}

impl Journals {
    /// The journal that is written, and those that were put aside when they were whole.
    fn read(&mut self, folder: &Path, findings: &mut Vec<String>) -> Result<()> {
        let named = |path: &PathBuf| {
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            name == "usage.journal"
                || name.strip_prefix("usage.journal.").is_some_and(|n| n.parse::<u32>().is_ok())
        };
        let entries = std::fs::read_dir(folder).with_context(|| folder.display().to_string())?;
        let paths = entries.map(|entry| Ok(entry?.path())).collect::<Result<Vec<PathBuf>>>()?;
        let confirmed = std::fs::read_to_string(folder.join("usage.confirmed")).unwrap_or_default();
        let confirmed: u64 = confirmed.trim().parse().unwrap_or(0);
        for path in paths.into_iter().filter(named) {
            let bytes = std::fs::read(&path).with_context(|| path.display().to_string())?;
            let whole = path.extension().is_some_and(|extension| extension != "journal");
            let mut end = 0;
            for line in bytes.split_inclusive(|&byte| byte == b'\n') {
                end += line.len() as u64;
                match read_journal_line(line) {
                    Some(record) => {
                        self.records.insert(record.id.clone(), (record, whole || end <= confirmed));
                    }
                    None => findings
                        .push(format!("{}: a line before byte {end} is torn or changed", path.display())),
                }
            }
        }
        Ok(())
    }

    /// Nodes of the ledger of which no journal was read: only they could say that something of
    /// theirs is missing, or another.
    fn not_compared(&self, ledger: &BTreeMap<String, UsageRecord>) -> Option<String> {
        let of = |records: &mut dyn Iterator<Item = &UsageRecord>| -> BTreeMap<u64, usize> {
            records.fold(BTreeMap::new(), |mut nodes, record| {
                *nodes.entry(record.node).or_default() += 1;
                nodes
            })
        };
        let read = of(&mut self.records.values().map(|(record, _)| record));
        let nodes = of(&mut ledger.values()).into_iter().filter(|(node, _)| !read.contains_key(node));
        let nodes: Vec<String> = nodes.map(|(node, records)| format!("{node} ({records} records)")).collect();
        (!nodes.is_empty())
            .then(|| format!("not compared, since no --journal is of them: nodes {}", nodes.join(", ")))
    }

    fn compare(&self, ledger: &BTreeMap<String, UsageRecord>, findings: &mut Vec<String>) {
        for (id, (record, confirmed)) in &self.records {
            let of = format!("usage record {id} (lease {}, node {})", record.lease, record.node);
            match ledger.get(id) {
                Some(counted) if counted == record => {}
                Some(_) => findings.push(format!("{of}: the ledger and the journal hold different amounts")),
                None if *confirmed => findings.push(format!("{of}: confirmed, and not in the ledger")),
                // It is in flight.
                None => {}
            }
        }
        let nodes: Vec<u64> = self.records.values().map(|(record, _)| record.node).collect();
        let missing = ledger
            .values()
            .filter(|record| nodes.contains(&record.node) && !self.records.contains_key(&record.id));
        findings.extend(missing.map(|record| {
            format!(
                "usage record {} (lease {}, node {}): not in the node's journal",
                record.id, record.lease, record.node
            )
        }));
    }
}

/// What has come for an invoice's period since it was issued and is on no invoice yet. It is no
/// difference that has to be settled: the tenant's next invoice has it.
fn differs(invoice: &Invoice, now: &Bill, all: &[Invoice]) -> Option<String> {
    let then = &invoice.bill;
    let carried = all.iter().filter(|other| other.covers()).flat_map(|other| &other.carried);
    let carried: i64 =
        carried.filter(|carried| carried.invoice == invoice.number).map(|carried| carried.micro).sum();
    let difference = now.total_micro - then.total_micro - carried;
    (difference != 0).then(|| {
        format!(
            "invoice {} of {}: {} came for its period since, and will be on the tenant's next invoice",
            invoice.number,
            then.tenant,
            signed(difference)
        )
    })
}

#[cfg(test)]
mod tests {
    use sluice_api::node::Attempt;
    use sluice_api::usage::journal_line;

    use super::*;

    fn record(sequence: u32) -> UsageRecord {
        let id = UsageRecord::id_of(1, Attempt { lease: 2, attempt: 1, task: 0 }, sequence);
        let json = serde_json::json!({
            "id": id, "node": 1, "lease": 2, "attempt": 1, "sequence": sequence, "tenant": "acme", "from_ms": 0,
            "until_ms": 10, "share_ppm": 1, "gpus": 1, "memory_mib": 1, "used_ppm_ms": 0, "kernels": 0, "bytes_in": 0,
            "bytes_out": 0, "memory_peak": 0, "last": false
        });
        serde_json::from_value(json).unwrap()
    }

    #[test]
    fn what_came_late_is_due_until_an_invoice_has_it() {
        let bill = |total_micro: i64| -> Bill {
            let bill = serde_json::json!({
                "tenant": "acme", "from_ms": 0, "until_ms": 10, "lines": [], "corrections": [], "total_micro": total_micro,
                "records": 1,
            });
            serde_json::from_value(bill).unwrap()
        };
        let invoice = |number: u64, carried: serde_json::Value| -> Invoice {
            let invoice = serde_json::json!({ "number": number, "issued_at_ms": 0, "bill": bill(5_000_000), "carried": carried });
            serde_json::from_value(invoice).unwrap()
        };
        let first = invoice(1, serde_json::json!([]));
        let due = differs(&first, &bill(4_500_000), std::slice::from_ref(&first)).unwrap();
        assert!(due.contains("-0.5 came") && due.contains("next invoice"), "{due}");
        let carried = serde_json::json!([{ "invoice": 1, "reason": "a fault", "micro": -500_000 }]);
        assert_eq!(differs(&first, &bill(4_500_000), &[first.clone(), invoice(2, carried)]), None);
    }

    #[test]
    fn every_kind_of_difference_is_found() {
        let folder = std::env::temp_dir().join(format!("sluice-reconcile-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let lines: Vec<String> = (1..5).map(|sequence| journal_line(&record(sequence))).collect();
        std::fs::write(folder.join("usage.journal.1"), &lines[0]).unwrap();
        std::fs::write(folder.join("usage.journal"), format!("{}{}{}torn", lines[1], lines[2], lines[3]))
            .unwrap();
        std::fs::write(folder.join("usage.confirmed"), (lines[1].len() + lines[2].len()).to_string())
            .unwrap();
        let mut findings = Vec::new();
        let mut journals = Journals::default();
        journals.read(&folder, &mut findings).unwrap();
        assert_eq!((journals.records.len(), findings.len()), (4, 1), "{findings:?}");

        // The first is counted otherwise, the second as it is, the third not at all, the fourth is
        // on its way, one more is not known.
        let counted = [UsageRecord { kernels: 7, ..record(1) }, record(2), record(9)];
        let ledger = counted.into_iter().map(|record| (record.id.clone(), record)).collect();
        findings.clear();
        assert_eq!(journals.not_compared(&ledger), None);
        assert_eq!(
            Journals::default().not_compared(&ledger).as_deref(),
            Some("not compared, since no --journal is of them: nodes 1 (3 records)")
        );
        journals.compare(&ledger, &mut findings);
        let kinds = ["different amounts", "confirmed, and not", "not in the node's journal"];
        assert_eq!(findings.len(), kinds.len(), "{findings:?}");
        for kind in kinds {
            assert!(findings.iter().any(|finding| finding.contains(kind)), "{kind}: {findings:?}");
        }
        std::fs::remove_dir_all(folder).unwrap();
    }
}
