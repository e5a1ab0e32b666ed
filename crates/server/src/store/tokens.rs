use sluice_api::node::NodeId;
use sluice_api::tenant::TenantPath;
use sluice_api::token::Token;
use sqlx::AssertSqlSafe;
use sqlx::any::AnyRow;
use sqlx::query::Query;

use super::{Result, Store, Tx, parsed, signed, small, text, unsigned, unsigned_or_null};

/// A token as it is kept: with the hash of its secret.
#[derive(Clone, Debug)]
pub(crate) struct StoredToken {
    pub(crate) token: Token,
    pub(crate) hash: String,
    /// The node that it was made for.
    pub(crate) node: Option<NodeId>,
}

pub(super) async fn write(transaction: &mut Tx<'_>, stored: &StoredToken) -> Result<()> {
    let token = &stored.token;
    sqlx::query(
        "INSERT INTO token (id, hash, tenant, role, name, node, created_at_ms, expires_at_ms, revoked, node_name) \
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)",
    )
    .bind(token.id.clone())
    .bind(stored.hash.clone())
    .bind(token.tenant.to_string())
    .bind(token.role.name())
    .bind(token.name.clone())
    .bind(stored.node.map(signed))
    .bind(signed(token.created_at_ms))
    .bind(signed(token.expires_at_ms))
    .bind(i64::from(token.revoked))
    .bind(token.node.clone().unwrap_or_default())
    .execute(&mut **transaction)
    .await?;
    Ok(())
}

pub(super) async fn revoke(transaction: &mut Tx<'_>, id: &str) -> Result<()> {
    sqlx::query("UPDATE token SET revoked = 1 WHERE id = $1")
        .bind(id.to_owned())
        .execute(&mut **transaction)
        .await?;
    Ok(())
}

impl Store {
    pub(crate) async fn token(&self, id: &str) -> Result<Option<StoredToken>> {
        let query = sqlx::query("SELECT * FROM token WHERE id = $1").bind(id.to_owned());
        query.fetch_optional(&self.pool).await?.as_ref().map(stored_token).transpose()
    }

    /// Tokens for a tenant and those below it whose id comes after `after`, in their order.
    pub(crate) async fn tokens(
        &self,
        tenant: &TenantPath,
        after: &str,
        limit: u32,
    ) -> Result<Vec<StoredToken>> {
        let of = self.within("token", tenant).await?;
        if of.is_nobody() {
            return Ok(Vec::new());
        }
        let sql = of.sql("token", "id > $1", "id", 2);
        let query = sqlx::query(AssertSqlSafe(sql)).bind(after.to_owned()).bind(i64::from(limit));
        let rows = of.names().into_iter().fold(query, Query::bind).fetch_all(&self.pool).await?;
        rows.iter().map(stored_token).collect()
    }

    /// Ids of the tokens for this tenant that have not been revoked.
    pub(crate) async fn tokens_for(&self, tenant: &TenantPath) -> Result<Vec<String>> {
        let query = sqlx::query("SELECT id FROM token WHERE tenant = $1 AND revoked = 0 ORDER BY id");
        let rows = query.bind(tenant.to_string()).fetch_all(&self.pool).await?;
        rows.iter().map(|row| text(row, "id")).collect()
    }

    /// Returns whether there is a valid token that names this node as the only one that may join
    /// with it.
    pub(crate) async fn is_node_named(&self, name: &str, now_ms: u64) -> Result<bool> {
        let query = sqlx::query(
            "SELECT id FROM token WHERE node_name = $1 AND revoked = 0 AND expires_at_ms > $2 LIMIT 1",
        );
        let query = query.bind(name.to_owned()).bind(signed(now_ms));
        Ok(query.fetch_optional(&self.pool).await?.is_some())
    }

    /// Ids of the tokens that a node has been given and that still hold.
    pub(crate) async fn tokens_of_node(&self, node: NodeId) -> Result<Vec<String>> {
        let query = sqlx::query("SELECT id FROM token WHERE node = $1 AND revoked = 0");
        let rows = query.bind(signed(node)).fetch_all(&self.pool).await?;
        rows.iter().map(|row| text(row, "id")).collect()
    }
}

fn stored_token(row: &AnyRow) -> Result<StoredToken> {
    let token = Token {
        id: text(row, "id")?,
        tenant: parsed(row, "tenant")?,
        role: parsed(row, "role")?,
        name: text(row, "name")?,
        node: Some(text(row, "node_name")?).filter(|name| !name.is_empty()),
        created_at_ms: unsigned(row, "created_at_ms")?,
        expires_at_ms: unsigned(row, "expires_at_ms")?,
        revoked: small(row, "revoked")? != 0,
        last_used_at_ms: None,
    };
    Ok(StoredToken { token, hash: text(row, "hash")?, node: unsigned_or_null(row, "node")? })
}
