use super::{Result, Store, Tx, from_json, signed, text, to_json, unsigned};
use crate::fleet::{CardId, CardRecord};

/// A GPU of which nothing is to be kept any more is deleted.
pub(super) async fn write(
    transaction: &mut Tx<'_>,
    (node, card): &CardId,
    record: Option<&CardRecord>,
) -> Result<()> {
    let query = match record {
        Some(_) => {
            "INSERT INTO card (node, card, health) VALUES ($1, $2, $3) \
             ON CONFLICT (node, card) DO UPDATE SET health = excluded.health"
        }
        None => "DELETE FROM card WHERE node = $1 AND card = $2",
    };
    let query = sqlx::query(query).bind(signed(*node)).bind(card.clone());
    let query = match record {
        Some(record) => query.bind(to_json(record)),
        None => query,
    };
    query.execute(&mut **transaction).await?;
    Ok(())
}

impl Store {
    pub(crate) async fn cards(&self) -> Result<Vec<(CardId, CardRecord)>> {
        let rows = sqlx::query("SELECT * FROM card ORDER BY node, card").fetch_all(&self.pool).await?;
        let card = |row| Ok(((unsigned(row, "node")?, text(row, "card")?), from_json(row, "health")?));
        rows.iter().map(card).collect()
    }
}
