use super::{Result, Store, Tx, from_json, signed, text, to_json, unsigned};
use crate::fleet::Node;

pub(super) async fn write(transaction: &mut Tx<'_>, node: &Node, joined_at_ms: u64) -> Result<()> {
    sqlx::query(
        "INSERT INTO node (id, name, address, gpus, labels, joined_at_ms) VALUES ($1, $2, $3, $4, $5, $6) \
         ON CONFLICT (id) DO UPDATE SET address = excluded.address, gpus = excluded.gpus, labels = excluded.labels, \
         joined_at_ms = excluded.joined_at_ms",
    )
    .bind(signed(node.id))
    .bind(node.name.clone())
    .bind(node.address.clone())
    .bind(to_json(&node.gpus))
    .bind(to_json(&node.labels))
    .bind(signed(joined_at_ms))
    .execute(&mut **transaction)
    .await?;
    Ok(())
}

impl Store {
    pub(crate) async fn nodes(&self) -> Result<Vec<Node>> {
        let rows = sqlx::query("SELECT * FROM node ORDER BY id").fetch_all(&self.pool).await?;
        let node = |row| {
            let (id, name) = (unsigned(row, "id")?, text(row, "name")?);
            let mut node = Node::new(id, name, text(row, "address")?, from_json(row, "gpus")?);
            node.labels = from_json(row, "labels")?;
            Ok(node)
        };
        rows.iter().map(node).collect()
    }
}
