use sluice_api::pool::Pool;

use super::{Result, Store, Tx, from_json, signed, to_json, unsigned};

/// What a pool was declared as, until its next declaration.
#[derive(Clone, Debug)]
pub(crate) struct Declared {
    pub(crate) from_ms: u64,
    pub(crate) pool: Pool,
}

/// From a moment on; if that is before its last declaration, since the clock was set back, right
/// after that.
pub(super) async fn write(transaction: &mut Tx<'_>, pool: &Pool, from_ms: u64) -> Result<()> {
    let declared = to_json(pool);
    let query = sqlx::query(
        "INSERT INTO pool (name, declared) VALUES ($1, $2) ON CONFLICT (name) DO UPDATE SET declared = excluded.declared",
    );
    query.bind(pool.name.clone()).bind(declared.clone()).execute(&mut **transaction).await?;
    let query = sqlx::query(
        "INSERT INTO pool_declaration (name, from_ms, declared) \
         SELECT $1, CASE WHEN latest >= $2 THEN latest + 1 ELSE $2 END, $3 \
         FROM (SELECT COALESCE(MAX(from_ms), -1) AS latest FROM pool_declaration WHERE name = $1) AS known",
    );
    query.bind(pool.name.clone()).bind(signed(from_ms)).bind(declared).execute(&mut **transaction).await?;
    Ok(())
}

pub(super) async fn remove(transaction: &mut Tx<'_>, name: &str) -> Result<()> {
    let query = sqlx::query("DELETE FROM pool WHERE name = $1");
    query.bind(name.to_owned()).execute(&mut **transaction).await?;
    Ok(())
}

impl Store {
    pub(crate) async fn pools(&self) -> Result<Vec<Pool>> {
        let rows = sqlx::query("SELECT declared FROM pool ORDER BY name").fetch_all(&self.pool).await?;
        rows.iter().map(|row| from_json(row, "declared")).collect()
    }

    /// All declarations of pools, each pool's together, the oldest first.
    pub(crate) async fn pool_declarations(&self) -> Result<Vec<Declared>> {
        let query = sqlx::query("SELECT from_ms, declared FROM pool_declaration ORDER BY name, from_ms");
        let rows = query.fetch_all(&self.pool).await?;
        let declared =
            |row| Ok(Declared { from_ms: unsigned(row, "from_ms")?, pool: from_json(row, "declared")? });
        rows.iter().map(declared).collect()
    }
}
