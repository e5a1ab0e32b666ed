//! API tokens and the roles that they carry.

use serde::{Deserialize, Serialize};

use crate::lease::LeaseId;
use crate::tenant::TenantPath;

/// What the holder of a token is, for the token's tenant and all below it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum Role {
    /// Runs the installation: everything.
    Platform,
    /// Owns GPUs: nodes, prices, bills.
    Provider,
    /// Tenants, quotas and tokens below its own tenant.
    TenantAdmin,
    /// Asks for leases.
    Member,
    /// Sees.
    Viewer,
    /// Sees, and reads the audit log.
    Auditor,
    /// A machine that lends its GPUs.
    Node,
}

impl Role {
    pub const ALL: [Role; 7] = [
        Role::Platform,
        Role::Provider,
        Role::TenantAdmin,
        Role::Member,
        Role::Viewer,
        Role::Auditor,
        Role::Node,
    ];

    /// As it is written.
    pub fn name(self) -> &'static str {
        match self {
            Role::Platform => "platform",
            Role::Provider => "provider",
            Role::TenantAdmin => "tenant_admin",
            Role::Member => "member",
            Role::Viewer => "viewer",
            Role::Auditor => "auditor",
            Role::Node => "node",
        }
    }
}

impl std::str::FromStr for Role {
    type Err = String;

    fn from_str(text: &str) -> Result<Role, String> {
        let text = text.replace('-', "_");
        Role::ALL.into_iter().find(|role| role.name() == text).ok_or_else(|| {
            let names: Vec<&str> = Role::ALL.iter().map(|role| role.name()).collect();
            format!("{text:?} is no role; there are {}", names.join(", "))
        })
    }
}

/// A token to be made.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct NewToken {
    pub tenant: TenantPath,
    pub role: Role,
    /// What it is for, for people to read.
    #[serde(default)]
    pub name: String,
    /// Seconds for which it is valid.
    pub lifetime_s: u64,
    /// The name of the only node that may join with it, for the role `node`. Without it the token
    /// is good for every node that has none of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
}

/// A token as it is listed: never with its secret.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Token {
    pub id: String,
    pub tenant: TenantPath,
    pub role: Role,
    pub name: String,
    /// The name of the only node that may join with it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    pub created_at_ms: u64,
    pub expires_at_ms: u64,
    pub revoked: bool,
    /// When a request came with it last, or with a session of the web view that it began; where it
    /// is read as `/tokens` lists it. Servers write it down once a minute, so what came to another
    /// server may be a minute late.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_used_at_ms: Option<u64>,
}

impl Token {
    /// Whether an identity provider gave it, and not this server.
    pub fn is_of_provider(&self) -> bool {
        self.id.starts_with(PROVIDER_PREFIX)
    }
}

/// What the ids of those begin with whom an identity provider knows.
pub const PROVIDER_PREFIX: &str = "oidc-";

/// A person of the identity provider who has been here.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Person {
    /// As the id of their token, and as leases and the audit log name it.
    pub id: String,
    /// The tenant and the role that the rules gave when the person was here last.
    pub tenant: TenantPath,
    pub role: Role,
    pub name: String,
    /// The identity provider.
    pub issuer: String,
    pub first_seen_ms: u64,
    /// When a request of theirs came last; as [`Token::last_used_at_ms`].
    pub last_seen_ms: u64,
}

/// A token that has been revoked, and the leases that were asked for with it and had not ended.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RevokedToken {
    #[serde(flatten)]
    pub token: Token,
    pub leases: Vec<LeaseId>,
    /// Whether they have been ended with it. Else they continue, and who has the key of one can
    /// watch and end it.
    pub ended: bool,
}

/// The identity provider whose tokens the server takes, for `sluice login`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Login {
    /// Under which the provider describes itself (OpenID Connect Discovery 1.0).
    pub issuer: String,
    pub client_id: String,
    pub scopes: Vec<String>,
}

/// The one time that a token is shown.
#[derive(Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct MadeToken {
    #[serde(flatten)]
    pub token: Token,
    /// What goes into `Authorization: Bearer`.
    pub secret: String,
}
