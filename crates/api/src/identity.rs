//! The identity provider whose people are taken beside the server's own tokens, and what they are
//! here.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::tenant::TenantPath;
use crate::token::Role;

/// An OpenID Connect provider, and the rules by which its people get roles.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Identity {
    /// The URL under which it describes itself; `https`, but on loopback.
    pub issuer: String,
    /// Of `sluice login`, a public client.
    pub client_id: String,
    /// Whom tokens are for; the client unless said.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub audiences: Vec<String>,
    /// What `sluice login` asks for.
    #[serde(default = "usual_scopes")]
    pub scopes: Vec<String>,
    /// The first rule that matches decides; a person whom none matches is refused.
    pub rules: Vec<Rule>,
}

/// Persons with this claim have this role for this tenant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Rule {
    pub claim: String,
    /// Its value, or one of them.
    pub is: Value,
    pub tenant: TenantPath,
    pub role: Role,
}

fn usual_scopes() -> Vec<String> {
    ["openid", "profile", "email", "offline_access"].map(String::from).to_vec()
}
