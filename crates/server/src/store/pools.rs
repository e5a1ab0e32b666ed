use sluice_api::pool::Pool;

use super::{Result, Store, Tx, from_json, to_json};

pub(super) async fn write(transaction: &mut Tx<'_>, pool: &Pool) -> Result<()> {
    let query = sqlx::query(
        "INSERT INTO pool (name, declared) VALUES ($1, $2) ON CONFLICT (name) DO UPDATE SET declared = excluded.declared",
    );
    query.bind(pool.name.clone()).bind(to_json(pool)).execute(&mut **transaction).await?;
    Ok(())
}

impl Store {
    pub(crate) async fn pools(&self) -> Result<Vec<Pool>> {
        let rows = sqlx::query("SELECT declared FROM pool ORDER BY name").fetch_all(&self.pool).await?;
        rows.iter().map(|row| from_json(row, "declared")).collect()
    }
}
