//! Invoices and corrections of bills in the database.

use sluice_api::bill::Correction;
use sluice_api::invoice::{Invoice, InvoiceState};
use sluice_api::tenant::TenantPath;
use sqlx::Row;
use sqlx::any::AnyRow;

use super::{Result, Store, Tx, from_json, largest, parsed, signed, text, to_json, unsigned, within};

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

/// Inserts an invoice, or updates the state and the document of one that exists.
pub(super) async fn write_invoice(transaction: &mut Tx<'_>, invoice: &Invoice) -> Result<()> {
    let query = sqlx::query(
        "INSERT INTO invoice (number, tenant, from_ms, until_ms, issued_at_ms, bill, state, document) \
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8) \
         ON CONFLICT (number) DO UPDATE SET state = excluded.state, document = excluded.document",
    );
    query
        .bind(signed(invoice.number))
        .bind(invoice.bill.tenant.to_string())
        .bind(signed(invoice.bill.from_ms))
        .bind(signed(invoice.bill.until_ms))
        .bind(signed(invoice.issued_at_ms))
        .bind(to_json(&invoice.bill))
        .bind(invoice.state.name())
        .bind(to_json(invoice))
        .execute(&mut **transaction)
        .await?;
    Ok(())
}

pub(super) async fn write_draft(
    transaction: &mut Tx<'_>,
    number: u64,
    draft: Option<&Invoice>,
) -> Result<()> {
    let query = sqlx::query("DELETE FROM invoice_draft WHERE number = $1").bind(signed(number));
    query.execute(&mut **transaction).await?;
    let Some(draft) = draft else { return Ok(()) };
    let query = sqlx::query("INSERT INTO invoice_draft (number, tenant, document) VALUES ($1, $2, $3)");
    let query = query.bind(signed(number)).bind(draft.bill.tenant.to_string()).bind(to_json(draft));
    query.execute(&mut **transaction).await?;
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

    /// Returns the invoices of a tenant, of tenants below it and of tenants above it, in the order
    /// of their numbers.
    pub(crate) async fn invoices_about(&self, tenant: &TenantPath) -> Result<Vec<Invoice>> {
        let (own, below) = within(tenant);
        let query = sqlx::query("SELECT * FROM invoice WHERE tenant = $1 OR tenant LIKE $2 ORDER BY number");
        let rows = query.bind(own).bind(below).fetch_all(&self.pool).await?;
        let mut invoices: Vec<Invoice> = rows.iter().map(invoice).collect::<Result<_>>()?;
        for above in tenant.lineage().skip(1).chain([TenantPath::root()]).filter(|above| above != tenant) {
            let query = sqlx::query("SELECT * FROM invoice WHERE tenant = $1").bind(above.to_string());
            for row in query.fetch_all(&self.pool).await? {
                invoices.push(invoice(&row)?);
            }
        }
        invoices.sort_by_key(|invoice| invoice.number);
        Ok(invoices)
    }

    /// Returns invoices of a tenant and of tenants below it after a number, in the named state or
    /// in any.
    pub(crate) async fn invoices_within(
        &self,
        tenant: &TenantPath,
        state: Option<InvoiceState>,
        after: u64,
        limit: u32,
    ) -> Result<Vec<Invoice>> {
        let (own, below) = within(tenant);
        let query = sqlx::query(
            "SELECT * FROM invoice WHERE (tenant = $1 OR tenant LIKE $2) AND number > $3 AND (state = $4 OR $4 = '') \
             ORDER BY number LIMIT $5",
        );
        let state = state.map_or("", InvoiceState::name);
        let query = query.bind(own).bind(below).bind(signed(after)).bind(state).bind(i64::from(limit));
        query.fetch_all(&self.pool).await?.iter().map(invoice).collect()
    }

    pub(crate) async fn last_invoice(&self) -> Result<u64> {
        largest(&self.pool, "SELECT MAX(number) AS largest FROM invoice").await
    }

    /// Returns the drafts of a tenant and of tenants below it, in the order of their numbers.
    pub(crate) async fn drafts(&self, tenant: &TenantPath) -> Result<Vec<Invoice>> {
        let (own, below) = within(tenant);
        let query = sqlx::query(
            "SELECT document FROM invoice_draft WHERE tenant = $1 OR tenant LIKE $2 ORDER BY number",
        );
        let rows = query.bind(own).bind(below).fetch_all(&self.pool).await?;
        rows.iter().map(|row| from_json(row, "document")).collect()
    }

    pub(crate) async fn draft(&self, number: u64) -> Result<Option<Invoice>> {
        let query = sqlx::query("SELECT document FROM invoice_draft WHERE number = $1").bind(signed(number));
        let row = query.fetch_optional(&self.pool).await?;
        row.map(|row| from_json(&row, "document")).transpose()
    }

    pub(crate) async fn last_draft(&self) -> Result<u64> {
        largest(&self.pool, "SELECT MAX(number) AS largest FROM invoice_draft").await
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
    if !text(row, "document")?.is_empty() {
        return from_json(row, "document");
    }
    // An earlier release kept the bill alone.
    let (number, issued_at_ms) = (unsigned(row, "number")?, unsigned(row, "issued_at_ms")?);
    Ok(crate::billing::of_bill(from_json(row, "bill")?, number, issued_at_ms))
}
