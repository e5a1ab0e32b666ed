//! Sessions of the web view: how a browser signs in, and what it learns when it has.

use serde::{Deserialize, Serialize};

use crate::token::Token;

/// The name of the header by which a request that changes something shows that a page of this
/// server sent it.
pub const CSRF_HEADER: &str = "sluice-csrf";

/// What a browser signs in with.
#[derive(Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum SignIn {
    /// A token of the server, or an ID token of its identity provider.
    Token(String),
    /// The code of a sign-in link, which is valid once.
    Code(String),
}

/// A session of the web view. The session itself is in a cookie that scripts cannot read.
#[derive(Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Session {
    /// Whose session it is.
    pub token: Token,
    /// The value that requests under this session need in the header `Sluice-CSRF` to change
    /// anything.
    pub csrf: String,
    /// When the session ends.
    pub until_ms: u64,
}

/// A link that signs in once, as the holder of the token that it was made with.
#[derive(Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct SignInLink {
    /// What stands behind the server's URL: `/#sign-in=` and the code. A fragment, so no log of
    /// requests has it.
    pub path: String,
    /// Until when it can be used.
    pub until_ms: u64,
}

impl SignInLink {
    /// The path for a code.
    pub fn path_of(code: &str) -> String {
        format!("/#sign-in={code}")
    }
}
