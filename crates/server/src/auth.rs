//! Tokens: made, kept as hashes, and recognised.
//!
//! A token reads `slc_ID_SECRET`; the id finds its row, the row holds the BLAKE3 hash of the whole
//! text. The secret has 256 random bits, so a plain hash is as good as a slow one. Hashes are
//! compared in constant time.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as BASE64;
use sluice_api::lease::LeaseId;
use sluice_api::node::NodeId;
use sluice_api::problem::{Kind, Problem};
use sluice_api::tenant::TenantPath;
use sluice_api::token::{Role, Token};
use tokio::time::Instant;

use crate::fleet::LeaseRecord;
use crate::identity::Provider;
use crate::lease_key;
use crate::policy::{self, Action};
use crate::server::Server;
use crate::sessions::Claimed;
use crate::store::StoredToken;

const PREFIX: &str = "slc";

/// Who asks.
#[derive(Clone, Debug)]
pub(crate) struct Principal {
    pub(crate) token: Token,
    /// The node that the token was made for.
    pub(crate) node: Option<NodeId>,
}

impl Principal {
    /// The principal that makes the first tokens, and that notices what no request asked about.
    pub(crate) fn server() -> Principal {
        let token = Token {
            id: "server".into(),
            tenant: TenantPath::root(),
            role: Role::Platform,
            name: "itself".into(),
            created_at_ms: 0,
            expires_at_ms: 0,
            node: None,
            revoked: false,
            last_used_at_ms: None,
        };
        Principal { token, node: None }
    }

    /// As the audit log names it.
    pub(crate) fn name(&self) -> String {
        format!("{} ({})", self.token.id, self.token.name)
    }

    /// As people know them: by the name of their token, or its id where it has none.
    pub(crate) fn person(&self) -> String {
        let Token { id, name, .. } = &self.token;
        if name.is_empty() { id.clone() } else { name.clone() }
    }

    /// The policy's answer.
    pub(crate) fn may(&self, action: Action, tenant: &TenantPath) -> bool {
        policy::allows(self.token.role, &self.token.tenant, action, tenant)
    }

    /// Of what a request asks to see, of a tenant and all below it, the part that it may see:
    /// `None` if nothing.
    pub(crate) fn sees(&self, action: Action, asked: Option<&TenantPath>) -> Option<TenantPath> {
        let scope = Some(&self.token.tenant).filter(|scope| self.may(action, scope))?;
        match asked {
            Some(asked) if scope.contains(asked) => Some(asked.clone()),
            Some(asked) if !asked.contains(scope) => None,
            _ => Some(scope.clone()),
        }
    }

    /// Refuses what the token does not allow, and says what the token is.
    pub(crate) fn need(&self, action: Action, tenant: &TenantPath) -> Result<(), Problem> {
        if self.may(action, tenant) {
            return Ok(());
        }
        let Token { role, tenant: scope, .. } = &self.token;
        let detail = format!(
            "this token is of role {} for {scope}, which does not allow that for {tenant}",
            role.name()
        );
        Err(Problem::new(Kind::Forbidden, detail))
    }
}

/// A new token and its secret, which is nowhere else.
pub(crate) fn make(
    tenant: TenantPath,
    role: Role,
    name: String,
    node: Option<NodeId>,
    lifetime_ms: u64,
    now_ms: u64,
) -> io::Result<(StoredToken, String)> {
    let (id, secret) =
        (BASE64.encode(random::<9>()?).replace(['-', '_'], "x"), BASE64.encode(random::<32>()?));
    let text = format!("{PREFIX}_{id}_{secret}");
    let token = Token {
        id,
        tenant,
        role,
        name,
        created_at_ms: now_ms,
        expires_at_ms: now_ms.saturating_add(lifetime_ms),
        node: None,
        revoked: false,
        last_used_at_ms: None,
    };
    Ok((StoredToken { token, hash: hash(&text).to_hex().to_string(), node }, text))
}

/// Tokens that were looked up lately.
#[derive(Default)]
pub(crate) struct Recognised(Mutex<HashMap<String, (StoredToken, Instant)>>);

/// The leader learns of every revocation; a follower looks again after this.
const RECOGNISED_MAX: Duration = Duration::from_secs(2);
/// More tokens than this are not in use at a time; if they are, they are looked up again.
const RECOGNISED_COUNT_MAX: usize = 50_000;

impl Recognised {
    fn get(&self, id: &str, leads: bool) -> Option<StoredToken> {
        let known = self.lock();
        let (stored, since) = known.get(id)?;
        (leads || since.elapsed() < RECOGNISED_MAX).then(|| stored.clone())
    }

    fn keep(&self, stored: StoredToken) {
        let mut known = self.lock();
        if known.len() >= RECOGNISED_COUNT_MAX {
            known.clear();
        }
        known.insert(stored.token.id.clone(), (stored, Instant::now()));
    }

    /// It has changed.
    pub(crate) fn forget(&self, id: &str) {
        self.lock().remove(id);
    }

    pub(crate) fn forget_all(&self) {
        self.lock().clear();
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, (StoredToken, Instant)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whose token it is, if it is one that holds now.
pub(crate) async fn recognise(server: &Server, text: &str, now_ms: u64) -> Result<Principal, Problem> {
    let refused = |detail: &str| Err(Problem::new(Kind::Unauthenticated, detail));
    if lease_key::lease_of(text).is_some() {
        return refused("this is the key of a lease, which opens that lease and nothing else");
    }
    if Provider::may_know(text)
        && let Some(provider) = server.identity.get()
    {
        let principal = provider.recognise(text).await?;
        server.last_uses.note_person(&principal.token, provider.issuer(), now_ms);
        return Ok(principal);
    }
    let session = Claimed::read(text);
    let own = || text.strip_prefix(PREFIX)?.strip_prefix('_')?.split_once('_').map(|(id, _)| id);
    let id = session.as_ref().map(|session| session.token).or_else(own);
    let Some(id) = id.filter(|_| text.len() < 256) else {
        return refused("the token in the header Authorization is none of this server");
    };
    let known = server.recognised.get(id, server.fence().is_some());
    let looked_up = known.is_none();
    let stored = match known {
        Some(stored) => Some(stored),
        None => server.store.token(id).await.map_err(crate::server::unwell)?,
    };
    let is_known = |stored: &StoredToken| match &session {
        Some(session) => server.sessions.opens(session, stored),
        None => blake3::Hash::from_hex(&stored.hash).is_ok_and(|kept| kept == hash(text)),
    };
    let Some(stored) = stored.filter(is_known) else {
        return refused("the token in the header Authorization is none of this server");
    };
    if stored.token.revoked {
        return refused("the token has been revoked");
    }
    if stored.token.expires_at_ms <= now_ms {
        return refused("the token has expired; an administrator makes a new one with `sluice token create`");
    }
    if session.is_some_and(|session| session.until_ms <= now_ms) {
        return refused("the session has ended; sign in again");
    }
    if looked_up {
        server.recognised.keep(stored.clone());
    }
    server.last_uses.note(&stored.token.id, now_ms);
    Ok(Principal { token: stored.token, node: stored.node })
}

/// Who asks about one lease: whose token it is, or, with the key of that lease, who asked for it.
pub(crate) async fn recognise_for(
    server: &Server,
    text: &str,
    lease: LeaseId,
    now_ms: u64,
) -> Result<Principal, Problem> {
    if lease_key::lease_of(text) != Some(lease) {
        return recognise(server, text, now_ms).await;
    }
    let record =
        server.lease(lease).await?.filter(|record| lease_key::opens(&server.signer, record, text, now_ms));
    let Some(LeaseRecord { tenant, token: id, created_at_ms, .. }) = record else {
        let detail = format!("this is no key of lease {lease}, or it has ended");
        return Err(Problem::new(Kind::Unauthenticated, detail));
    };
    let name = format!("lease {lease}");
    let (role, expires_at_ms, revoked) = (Role::Member, u64::MAX, false);
    let (node, last_used_at_ms) = (None, None);
    let token =
        Token { id, tenant, role, name, created_at_ms, expires_at_ms, revoked, node, last_used_at_ms };
    Ok(Principal { token, node: None })
}

fn hash(text: &str) -> blake3::Hash {
    blake3::hash(text.as_bytes())
}

/// From the kernel.
pub(crate) fn random<const N: usize>() -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes)
}
