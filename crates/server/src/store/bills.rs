use sluice_api::bill::{Correction, Invoice};
use sqlx::Row;
use sqlx::any::AnyRow;

use super::{Result, Store, Tx, from_json, parsed, signed, text, to_json, unsigned};

pub(super) async fn write_correction(transaction: &mut Tx<'_>, correction: &Correction) -> Result<()> {
    let query = sqlx::query(
        "INSERT INTO correction (id, tenant, micro, at_ms, reason, made_at_ms, made_by) \
         VALUES ($1, $2, $3, $4, $5, $6, $7)",
    );
    query
        .bind(signed(correction.id))
        .bind(correction.tenant.to_string())
        .bind(correction.micro)
        .bind(signed(correction.at_ms))
        .bind(correction.reason.clone())
        .bind(signed(correction.made_at_ms))
        .bind(correction.made_by.clone())
        .execute(&mut **transaction)
        .await?;
    Ok(())
}

pub(super) async fn write_invoice(transaction: &mut Tx<'_>, invoice: &Invoice) -> Result<()> {
    let query = sqlx::query(
        "INSERT INTO invoice (number, tenant, from_ms, until_ms, issued_at_ms, bill) VALUES ($1, $2, $3, $4, $5, $6)",
    );
    query
        .bind(signed(invoice.number))
        .bind(invoice.bill.tenant.to_string())
        .bind(signed(invoice.bill.from_ms))
        .bind(signed(invoice.bill.until_ms))
        .bind(signed(invoice.issued_at_ms))
        .bind(to_json(&invoice.bill))
        .execute(&mut **transaction)
        .await?;
    Ok(())
}

impl Store {
    /// In the order in which they were made.
    pub(crate) async fn corrections(&self) -> Result<Vec<Correction>> {
        let rows = sqlx::query("SELECT * FROM correction ORDER BY id").fetch_all(&self.pool).await?;
        rows.iter().map(correction).collect()
    }

    pub(crate) async fn has_invoices(&self) -> Result<bool> {
        let row = sqlx::query("SELECT number FROM invoice LIMIT 1").fetch_optional(&self.pool).await?;
        Ok(row.is_some())
    }

    pub(crate) async fn invoice(&self, number: u64) -> Result<Option<Invoice>> {
        let query = sqlx::query("SELECT * FROM invoice WHERE number = $1").bind(signed(number));
        query.fetch_optional(&self.pool).await?.as_ref().map(invoice).transpose()
    }

    /// All of them, the first one first.
    pub(crate) async fn invoices(&self) -> Result<Vec<Invoice>> {
        let rows = sqlx::query("SELECT * FROM invoice ORDER BY number").fetch_all(&self.pool).await?;
        rows.iter().map(invoice).collect()
    }
}

fn correction(row: &AnyRow) -> Result<Correction> {
    Ok(Correction {
        id: unsigned(row, "id")?,
        tenant: parsed(row, "tenant")?,
        micro: row.try_get("micro")?,
        at_ms: unsigned(row, "at_ms")?,
        reason: text(row, "reason")?,
        made_at_ms: unsigned(row, "made_at_ms")?,
        made_by: text(row, "made_by")?,
    })
}

fn invoice(row: &AnyRow) -> Result<Invoice> {
    Ok(Invoice {
        number: unsigned(row, "number")?,
        issued_at_ms: unsigned(row, "issued_at_ms")?,
        bill: from_json(row, "bill")?,
    })
}
