//! Whom a pool lets in.

use serde::{Deserialize, Serialize};

use super::Window;
use crate::tenant::TenantPath;
#[cfg(feature = "openapi")]
use crate::written::WrittenWindow;

/// Who may use a pool.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum Access {
    /// Every tenant.
    #[default]
    Public,
    /// These tenants and those below them.
    Private { tenants: Vec<TenantPath> },
    /// During the windows these tenants and those below them, at other times all tenants.
    /// Leases of others are preempted when a window begins.
    Reserved {
        tenants: Vec<TenantPath>,
        #[cfg_attr(feature = "openapi", schema(value_type = Vec<WrittenWindow>))]
        windows: Vec<Window>,
    },
}

impl Access {
    /// Whether this tenant is let in at a moment; at some moment, if none is said.
    pub fn lets_in(&self, tenant: &TenantPath, at_ms: Option<u64>) -> bool {
        let among = |tenants: &[TenantPath]| tenants.iter().any(|listed| listed.contains(tenant));
        match self {
            Access::Public => true,
            Access::Private { tenants } => among(tenants),
            Access::Reserved { tenants, windows } => {
                let taken = |at_ms| windows.iter().any(|window| window.contains(at_ms));
                among(tenants) || !at_ms.is_some_and(taken)
            }
        }
    }
}
