//! By what a node beyond this machine is known, and who asks it: from the environment, so that
//! every command finds it.

use std::env;
use std::path::PathBuf;

use sluice_transport::tls::{ClientIdentity, Trust};
use sluice_transport::token::NodeToken;
use sluice_wire::address::{Endpoint, Fingerprint};

/// A PEM file with the authorities that nodes' certificates come from.
pub const CA_VARIABLE: &str = "SLUICE_TLS_CA";
/// PEM files by which this user is known to nodes that ask for that.
pub const CERTIFICATE_VARIABLE: &str = "SLUICE_TLS_CERT";
pub const KEY_VARIABLE: &str = "SLUICE_TLS_KEY";

/// The token of a node that wants one.
pub const TOKEN_VARIABLE: &str = "SLUICE_NODE_TOKEN";

/// What to say to a node that wants its token.
pub(crate) fn token() -> Result<NodeToken, String> {
    match env::var(TOKEN_VARIABLE) {
        Ok(token) if !token.trim().is_empty() => Ok(NodeToken::new(&token)),
        _ => Err(format!(
            "it lends to holders of its token only: set {TOKEN_VARIABLE} to that; its operator has it in the file of \
             `sluice node --token-file`"
        )),
    }
}

/// What a node's certificate is checked by.
pub(crate) fn trust(address: &str, fingerprint: Option<Fingerprint>) -> Result<Trust, String> {
    match (fingerprint, file(CA_VARIABLE)) {
        (Some(fingerprint), _) => Ok(Trust::Fingerprint(fingerprint)),
        (None, Some(authorities)) => Trust::authorities(&authorities),
        (None, None) => Err(format!(
            "its address is not one of this machine's, and nothing says how to know it: write its fingerprint behind the address \
             ({address}/FINGERPRINT, as `sluice node` prints it), or name a file with its authority in {CA_VARIABLE}, \
             or say plain-text:{address} where the network is trusted"
        )),
    }
}

/// Who asks, if that is said. What the program of a lease asks its node is proved by the lease's
/// token.
pub(crate) fn identity(node: &Endpoint) -> Result<Option<ClientIdentity>, String> {
    if crate::own_leases().iter().any(|(own, _)| own == node) {
        return Ok(None);
    }
    match (file(CERTIFICATE_VARIABLE), file(KEY_VARIABLE)) {
        (Some(certificate), Some(key)) => Ok(Some(ClientIdentity { certificate, key })),
        (None, None) => Ok(None),
        _ => Err(format!("{CERTIFICATE_VARIABLE} and {KEY_VARIABLE} are set together or not at all")),
    }
}

fn file(variable: &str) -> Option<PathBuf> {
    env::var_os(variable).filter(|value| !value.is_empty()).map(PathBuf::from)
}
