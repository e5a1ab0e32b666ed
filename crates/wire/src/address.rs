//! Where a node is, and what a program needs to attach to its lease: the text forms that people, environment variables
//! and configuration files hold.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use crate::handshake::LeaseToken;

/// The environment variable by which a program finds its session: a [`SessionAddress`].
pub const SESSION_VARIABLE: &str = "SLUICE_SESSION";

/// Where a node listens: `HOST:PORT` or `unix:PATH`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Endpoint {
    /// A host, by name or number (IPv6 in brackets), with its port.
    Tcp(String),
    Unix(PathBuf),
}

/// A node and the token of a lease on it: `ENDPOINT#TOKEN`, the token in hexadecimal digits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionAddress {
    pub node: Endpoint,
    pub token: LeaseToken,
}

/// What is wrong with the text of an address; says what was expected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    #[error("{0:?} is neither HOST:PORT (such as gpu1:7583 or [::1]:7583) nor unix:PATH")]
    Endpoint(String),
    #[error("an address of a session ends with # and a token of {} hexadecimal digits", 2 * size_of::<LeaseToken>())]
    Token,
}

impl FromStr for Endpoint {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Endpoint, AddressError> {
        let wrong = || AddressError::Endpoint(text.to_owned());
        if let Some(path) = text.strip_prefix("unix:") {
            return if path.is_empty() { Err(wrong()) } else { Ok(Endpoint::Unix(path.into())) };
        }
        let (host, port) = text.rsplit_once(':').ok_or_else(wrong)?;
        let bare_ipv6 = host.contains(':') && !(host.starts_with('[') && host.ends_with(']'));
        if host.is_empty() || bare_ipv6 || port.parse::<u16>().is_err() {
            return Err(wrong());
        }
        Ok(Endpoint::Tcp(text.to_owned()))
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Endpoint::Tcp(address) => f.write_str(address),
            Endpoint::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

impl FromStr for SessionAddress {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<SessionAddress, AddressError> {
        let (node, digits) = text.rsplit_once('#').ok_or(AddressError::Token)?;
        let mut token = LeaseToken([0; 32]);
        if digits.len() != 2 * token.0.len() || !digits.is_ascii() {
            return Err(AddressError::Token);
        }
        for (index, byte) in token.0.iter_mut().enumerate() {
            let pair = &digits[2 * index..2 * index + 2];
            *byte = u8::from_str_radix(pair, 16).map_err(|_| AddressError::Token)?;
        }
        Ok(SessionAddress { node: node.parse()?, token })
    }
}

impl fmt::Display for SessionAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}#", self.node)?;
        self.token.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_survive_their_text() {
        for node in ["gpu1:7583", "[::1]:7583", "10.0.0.7:1", "unix:/run/a#b.sock"] {
            let address = SessionAddress { node: node.parse().unwrap(), token: LeaseToken([0xa5; 32]) };
            assert_eq!(address.to_string().parse(), Ok(address));
        }
    }

    #[test]
    fn what_is_no_address_is_refused() {
        for text in ["", "gpu1", ":7583", "gpu1:port", "gpu1:70000", "::1:7583", "unix:"] {
            assert_eq!(text.parse::<Endpoint>(), Err(AddressError::Endpoint(text.to_owned())));
        }
        for text in ["gpu1:7583", "gpu1:7583#", "gpu1:7583#12", &format!("gpu1:7583#{}", "é".repeat(32))] {
            assert_eq!(text.parse::<SessionAddress>(), Err(AddressError::Token));
        }
    }
}
