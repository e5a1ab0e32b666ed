use std::collections::BTreeMap;

use sluice_api::node::NodeId;

use super::{Result, Store, Tx, from_json, signed, text, to_json, unsigned};
use crate::fleet::Node;

pub(super) async fn write(transaction: &mut Tx<'_>, node: &Node, joined_at_ms: u64) -> Result<()> {
    sqlx::query(
        "INSERT INTO node (id, name, address, gpus, labels, joined_at_ms, drain, first_joined_ms) \
         VALUES ($1, $2, $3, $4, $5, $6, $7, $6) ON CONFLICT (id) DO UPDATE SET first_joined_ms = \
         CASE WHEN node.forgotten = 1 THEN excluded.first_joined_ms ELSE node.first_joined_ms END, address = excluded.address, gpus = excluded.gpus, labels = excluded.labels, \
         joined_at_ms = excluded.joined_at_ms, drain = excluded.drain, forgotten = 0",
    )
    .bind(signed(node.id))
    .bind(node.name.clone())
    .bind(node.address.clone())
    .bind(to_json(&node.gpus))
    .bind(to_json(&node.labels))
    .bind(signed(joined_at_ms))
    .bind(to_json(&node.drain))
    .execute(&mut **transaction)
    .await?;
    Ok(())
}

pub(super) async fn write_drain(transaction: &mut Tx<'_>, node: &Node) -> Result<()> {
    let query = sqlx::query("UPDATE node SET drain = $1 WHERE id = $2");
    query.bind(to_json(&node.drain)).bind(signed(node.id)).execute(&mut **transaction).await?;
    Ok(())
}

/// What leases and records say of it keeps its meaning.
pub(super) async fn forget(transaction: &mut Tx<'_>, node: NodeId) -> Result<()> {
    for statement in
        ["UPDATE node SET forgotten = 1, drain = 'null' WHERE id = $1", "DELETE FROM card WHERE node = $1"]
    {
        sqlx::query(statement).bind(signed(node)).execute(&mut **transaction).await?;
    }
    Ok(())
}

impl Store {
    pub(crate) async fn nodes(&self) -> Result<Vec<Node>> {
        let query = sqlx::query("SELECT * FROM node WHERE forgotten = 0 ORDER BY id");
        let rows = query.fetch_all(&self.pool).await?;
        let node = |row| {
            let (id, name) = (unsigned(row, "id")?, text(row, "name")?);
            let mut node = Node::new(id, name, text(row, "address")?, from_json(row, "gpus")?);
            node.labels = from_json(row, "labels")?;
            node.drain = from_json(row, "drain")?;
            Ok(node)
        };
        rows.iter().map(node).collect()
    }

    /// All nodes, also those that are gone for good: their names, and when each was here first.
    pub(crate) async fn nodes_since(&self) -> Result<BTreeMap<NodeId, (String, u64)>> {
        let query = sqlx::query("SELECT id, name, first_joined_ms FROM node");
        let rows = query.fetch_all(&self.pool).await?;
        let since = |row| Ok((unsigned(row, "id")?, (text(row, "name")?, unsigned(row, "first_joined_ms")?)));
        rows.iter().map(since).collect()
    }

    /// The names of nodes that are gone for good.
    pub(crate) async fn forgotten_nodes(&self) -> Result<Vec<(NodeId, String)>> {
        let query = sqlx::query("SELECT id, name FROM node WHERE forgotten = 1 ORDER BY id");
        let rows = query.fetch_all(&self.pool).await?;
        rows.iter().map(|row| Ok((unsigned(row, "id")?, text(row, "name")?))).collect()
    }
}
