use sluice_api::identity::Identity;

use super::{Result, Store, Tx, from_json, to_json};

/// In place of the one that is there, if any.
pub(super) async fn write(transaction: &mut Tx<'_>, identity: Option<&Identity>) -> Result<()> {
    sqlx::query("DELETE FROM identity").execute(&mut **transaction).await?;
    if let Some(identity) = identity {
        let query = sqlx::query("INSERT INTO identity (declared) VALUES ($1)");
        query.bind(to_json(identity)).execute(&mut **transaction).await?;
    }
    Ok(())
}

impl Store {
    pub(crate) async fn identity(&self) -> Result<Option<Identity>> {
        let row = sqlx::query("SELECT declared FROM identity").fetch_optional(&self.pool).await?;
        row.map(|row| from_json(&row, "declared")).transpose()
    }
}
