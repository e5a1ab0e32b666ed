//! Between the types of `sluice-api` and those of the database.

use sluice_api::tenant::TenantPath;
use sqlx::any::AnyRow;
use sqlx::{AnyPool, Row};

use super::{Result, StoreError};

/// A number that the checks of `sluice-api` keep far below the largest.
pub(super) fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

pub(super) fn unsigned(row: &AnyRow, column: &'static str) -> Result<u64> {
    let number: i64 = row.try_get(column)?;
    u64::try_from(number).map_err(|_| StoreError::Content { what: column, value: number.to_string() })
}

pub(super) fn small(row: &AnyRow, column: &'static str) -> Result<u32> {
    let number = unsigned(row, column)?;
    u32::try_from(number).map_err(|_| StoreError::Content { what: column, value: number.to_string() })
}

pub(super) fn unsigned_or_null(row: &AnyRow, column: &'static str) -> Result<Option<u64>> {
    match row.try_get::<Option<i64>, _>(column)? {
        None => Ok(None),
        Some(_) => unsigned(row, column).map(Some),
    }
}

pub(super) fn small_or_null(row: &AnyRow, column: &'static str) -> Result<Option<u32>> {
    match row.try_get::<Option<i64>, _>(column)? {
        None => Ok(None),
        Some(_) => small(row, column).map(Some),
    }
}

pub(super) fn text(row: &AnyRow, column: &'static str) -> Result<String> {
    Ok(row.try_get(column)?)
}

pub(super) fn parsed<T: std::str::FromStr>(row: &AnyRow, column: &'static str) -> Result<T> {
    let text = text(row, column)?;
    text.parse().map_err(|_| StoreError::Content { what: column, value: text })
}

pub(super) fn from_json<T: serde::de::DeserializeOwned>(row: &AnyRow, column: &'static str) -> Result<T> {
    let text = text(row, column)?;
    serde_json::from_str(&text).map_err(|_| StoreError::Content { what: column, value: text })
}

pub(super) fn to_json(value: &impl serde::Serialize) -> String {
    // Lists and structs of numbers and strings always have a JSON form.
    serde_json::to_string(value).unwrap_or_default()
}

/// For `tenant = A OR tenant LIKE B`: it and all below it. Paths hold no sign that means something
/// to LIKE.
pub(super) fn within(tenant: &TenantPath) -> (String, String) {
    let below = if tenant.is_root() { "%".to_owned() } else { format!("{tenant}/%") };
    (tenant.to_string(), below)
}

/// The largest id of a table, 0 for none.
pub(super) async fn largest(pool: &AnyPool, query: &'static str) -> Result<u64> {
    let row = sqlx::query(query).fetch_one(pool).await?;
    Ok(unsigned_or_null(&row, "largest")?.unwrap_or(0))
}
