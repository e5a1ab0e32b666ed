//! RFC 9457 problem details: what every refusal of the API looks like.

use std::fmt;

use serde::{Deserialize, Serialize};

/// `application/problem+json` (RFC 9457, section 3.1).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Problem {
    /// Stable, for programs to compare: `/problems/` and a [`Kind`].
    #[serde(rename = "type")]
    pub kind: String,
    pub title: String,
    pub status: u16,
    /// What is wrong this time, and the way out.
    pub detail: String,
    /// The field of the request at fault.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub field: Option<String>,
}

macro_rules! kinds {
    ($($(#[$doc:meta])* $kind:ident $name:literal $status:literal $title:literal)*) => {
        /// The kinds of problems that the API answers with.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Kind { $($(#[$doc])* $kind,)* }

        impl Kind {
            pub const fn name(self) -> &'static str { match self { $(Kind::$kind => concat!("/problems/", $name),)* } }
            pub const fn status(self) -> u16 { match self { $(Kind::$kind => $status,)* } }
            pub const fn title(self) -> &'static str { match self { $(Kind::$kind => $title,)* } }
        }
    };
}

kinds! {
    Invalid "invalid-request" 422 "The request makes no sense"
    Malformed "malformed-request" 400 "The request cannot be read"
    Unauthenticated "unauthenticated" 401 "A valid token is needed"
    Forbidden "forbidden" 403 "The token does not allow this"
    NotFound "not-found" 404 "There is no such thing"
    MethodNotAllowed "method-not-allowed" 405 "The path does not take this method"
    Conflict "conflict" 409 "The state does not allow this"
    /// An idempotency key came again, with another request.
    KeyReused "idempotency-key-reused" 422 "The idempotency key belongs to another request"
    /// Waiting would not help: no quota or no node is large enough.
    NeverFits "never-fits" 422 "This can never be granted"
    TooSlow "too-slow" 408 "The request did not arrive in time"
    TooLarge "too-large" 413 "The request is too large"
    /// Not as the header If-Match says.
    HasChanged "has-changed" 412 "It has changed meanwhile"
    TooMany "too-many-requests" 429 "Too many requests"
    /// Nothing was done; ask again later.
    Unavailable "unavailable" 503 "The server cannot do this now"
    /// Nothing was done; the server's database needs free disk space, then ask again.
    DiskFull "disk-full" 503 "The disk of the server's database is full"
    Internal "internal" 500 "The server failed"
}

impl Problem {
    pub fn new(kind: Kind, detail: impl Into<String>) -> Problem {
        Problem {
            kind: kind.name().into(),
            title: kind.title().into(),
            status: kind.status(),
            detail: detail.into(),
            field: None,
        }
    }

    /// Names the field at fault.
    pub fn at(mut self, field: &str) -> Problem {
        self.field = Some(field.into());
        self
    }

    pub fn is(&self, kind: Kind) -> bool {
        self.kind == kind.name()
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.field {
            Some(field) => write!(f, "{field}: {}", self.detail),
            None => f.write_str(&self.detail),
        }
    }
}

impl std::error::Error for Problem {}
