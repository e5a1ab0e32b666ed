use sluice_api::bill::Seller;

use super::{Result, Store, Tx, from_json, to_json};

/// In place of what is there.
pub(super) async fn write(transaction: &mut Tx<'_>, seller: &Seller) -> Result<()> {
    sqlx::query("DELETE FROM seller").execute(&mut **transaction).await?;
    let query = sqlx::query("INSERT INTO seller (declared) VALUES ($1)");
    query.bind(to_json(seller)).execute(&mut **transaction).await?;
    Ok(())
}

impl Store {
    pub(crate) async fn seller(&self) -> Result<Seller> {
        let row = sqlx::query("SELECT declared FROM seller").fetch_optional(&self.pool).await?;
        row.map_or_else(|| Ok(Seller::default()), |row| from_json(&row, "declared"))
    }
}
