//! Where a node is, and what a program needs to attach to its lease: the text forms that people,
//! environment variables and configuration files hold.

use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::str::FromStr;

use crate::handshake::LeaseToken;

/// The environment variable by which a program finds its session: a [`SessionAddress`].
pub const SESSION_VARIABLE: &str = "SLUICE_SESSION";

/// The environment variable that names the file for a session's [`crate::log`].
pub const RECORD_VARIABLE: &str = "SLUICE_RECORD";

/// Set to `clone`, it gives a forked child of a program a clone of the program's session.
pub const FORK_VARIABLE: &str = "SLUICE_FORK";
/// What it is set to for that.
pub const FORK_CLONES: &str = "clone";

/// Names the folder in which each process that opens a session leaves its command line, for a
/// report on all processes of a run.
pub const REPORT_VARIABLE: &str = "SLUICE_REPORT";
/// Whether the client library sends repeated commands as what changed (`sequences`): `on`, `off`,
/// or by the link's round trip.
pub const RECOGNISE_VARIABLE: &str = "SLUICE_RECOGNISE";
/// `on` and `off` say whether large data are packed where the link is slow, whatever its round
/// trip.
pub const PACK_VARIABLE: &str = "SLUICE_PACK";
/// Set in a program's environment to the connections over which large copies go, instead of what
/// the link suggests.
pub const STRIPES_VARIABLE: &str = "SLUICE_STRIPES";

/// Where a node listens, and how it is spoken to. Plain text goes over loopback only, unless the
/// user says so.
///
/// | text | is |
/// |---|---|
/// | `unix:PATH` | a socket file |
/// | `HOST:PORT` | plain text on loopback; beyond it TLS, certified by a trusted authority |
/// | `HOST:PORT/FINGERPRINT` | TLS, with this very certificate |
/// | `tls:HOST:PORT` | TLS, also on loopback |
/// | `plain-text:HOST:PORT` | plain text, also beyond loopback |
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Endpoint {
    /// A host, by name or number (IPv6 in brackets), with its port. Plain text.
    Tcp(String),
    /// A host and its port, with TLS. Without a fingerprint the certificate is checked by
    /// authorities.
    Tls {
        address: String,
        fingerprint: Option<Fingerprint>,
    },
    Unix(PathBuf),
}

/// SHA-256 of a certificate.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Fingerprint(pub [u8; 32]);

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
    #[error("{0:?} ends with no fingerprint: 64 hexadecimal digits, as `sluice node` prints them")]
    Fingerprint(String),
    #[error("an address of a session ends with # and a token of {} hexadecimal digits", 2 * size_of::<LeaseToken>())]
    Token,
}

impl Endpoint {
    /// Without its fingerprint, for people to read.
    pub fn place(&self) -> String {
        match self {
            Endpoint::Tcp(address) | Endpoint::Tls { address, .. } => address.clone(),
            Endpoint::Unix(_) => self.to_string(),
        }
    }
}

impl FromStr for Endpoint {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Endpoint, AddressError> {
        let wrong = || AddressError::Endpoint(text.to_owned());
        if let Some(path) = text.strip_prefix("unix:") {
            return if path.is_empty() { Err(wrong()) } else { Ok(Endpoint::Unix(path.into())) };
        }
        let named = |address: &str| host_and_port(address).map(|_| address.to_owned()).ok_or_else(wrong);
        if let Some(address) = text.strip_prefix(PLAIN_TEXT) {
            return Ok(Endpoint::Tcp(named(address)?));
        }
        let (tls, rest) = text.strip_prefix(TLS).map_or((false, text), |rest| (true, rest));
        let (address, fingerprint) = match rest.split_once('/') {
            Some((address, digits)) => {
                let fingerprint = from_hex(digits).map(Fingerprint);
                (address, Some(fingerprint.ok_or_else(|| AddressError::Fingerprint(text.to_owned()))?))
            }
            None => (rest, None),
        };
        let address = named(address)?;
        let plain = !tls && fingerprint.is_none() && is_loopback(&address);
        Ok(if plain { Endpoint::Tcp(address) } else { Endpoint::Tls { address, fingerprint } })
    }
}

const PLAIN_TEXT: &str = "plain-text:";
const TLS: &str = "tls:";

/// The parts of `HOST:PORT`, if it is that.
fn host_and_port(text: &str) -> Option<(&str, u16)> {
    let (host, port) = text.rsplit_once(':')?;
    let bare_ipv6 = host.contains(':') && !(host.starts_with('[') && host.ends_with(']'));
    if host.is_empty() || bare_ipv6 || host.contains('/') { None } else { Some((host, port.parse().ok()?)) }
}

/// Whether what goes to `HOST:PORT` stays on this machine, as far as its name tells.
pub fn is_loopback(address: &str) -> bool {
    let Some((host, _)) = host_and_port(address) else { return false };
    let number = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
    host == "localhost" || number.is_ok_and(|number| number.is_loopback())
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Endpoint::Tcp(address) if is_loopback(address) => f.write_str(address),
            Endpoint::Tcp(address) => write!(f, "{PLAIN_TEXT}{address}"),
            Endpoint::Tls { address, fingerprint: Some(fingerprint) } => write!(f, "{address}/{fingerprint}"),
            Endpoint::Tls { address, fingerprint: None } if is_loopback(address) => {
                write!(f, "{TLS}{address}")
            }
            Endpoint::Tls { address, fingerprint: None } => f.write_str(address),
            Endpoint::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl SessionAddress {
    /// Several of them with commas between, as [`SESSION_VARIABLE`] has them. A comma in the path
    /// of a socket ends nothing.
    pub fn list(text: &str) -> Result<Vec<SessionAddress>, AddressError> {
        let (mut addresses, mut start) = (Vec::new(), 0);
        for (end, _) in text.match_indices(',').chain([(text.len(), "")]) {
            match text[start..end].parse() {
                Ok(address) => {
                    addresses.push(address);
                    start = end + 1;
                }
                Err(error) if end == text.len() => return Err(error),
                Err(_) => {}
            }
        }
        Ok(addresses)
    }
}

impl FromStr for SessionAddress {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<SessionAddress, AddressError> {
        let (node, digits) = text.rsplit_once('#').ok_or(AddressError::Token)?;
        let token = LeaseToken(from_hex(digits).ok_or(AddressError::Token)?);
        Ok(SessionAddress { node: node.parse()?, token })
    }
}

impl FromStr for Fingerprint {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Fingerprint, AddressError> {
        from_hex(text).map(Fingerprint).ok_or_else(|| AddressError::Fingerprint(text.to_owned()))
    }
}

fn from_hex(digits: &str) -> Option<[u8; 32]> {
    let mut bytes = [0; 32];
    if digits.len() != 2 * bytes.len() || !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        return None;
    }
    for (byte, at) in bytes.iter_mut().zip((0..).step_by(2)) {
        *byte = u8::from_str_radix(&digits[at..at + 2], 16).ok()?;
    }
    Some(bytes)
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
        let pinned = format!("127.0.0.1:7583/{}", "0f".repeat(32));
        for node in [
            "gpu1:7583",
            "[::1]:7583",
            "10.0.0.7:1",
            "unix:/run/a#b.sock",
            "plain-text:gpu1:7583",
            "tls:localhost:7583",
            &pinned,
        ] {
            let address = SessionAddress { node: node.parse().unwrap(), token: LeaseToken([0xa5; 32]) };
            assert!(address.to_string().starts_with(node));
            assert_eq!(address.to_string().parse(), Ok(address));
        }
    }

    #[test]
    fn several_addresses_are_a_list() {
        let address = |node: &str| SessionAddress { node: node.parse().unwrap(), token: LeaseToken([7; 32]) };
        let list = [address("gpu1:7583"), address("unix:/run/a,b.sock"), address("[::1]:1")];
        let text = list.each_ref().map(ToString::to_string).join(",");
        assert_eq!(SessionAddress::list(&text).as_deref(), Ok(&list[..]));
        assert_eq!(SessionAddress::list(&list[0].to_string()).as_deref(), Ok(&list[..1]));
        assert!(SessionAddress::list("").is_err() && SessionAddress::list(&format!("{text},")).is_err());
    }

    #[test]
    fn plain_text_leaves_this_machine_only_by_its_name() {
        let check = |text: &str, expect: Endpoint| assert_eq!(text.parse(), Ok(expect), "{text}");
        let tls = |address: &str, fingerprint| Endpoint::Tls { address: address.into(), fingerprint };
        for text in ["127.0.0.1:1", "127.1.2.3:1", "[::1]:1", "localhost:1"] {
            check(text, Endpoint::Tcp(text.into()));
            check(&format!("tls:{text}"), tls(text, None));
        }
        for text in ["gpu1:1", "10.0.0.7:1", "[fe80::1]:1", "localhost.example:1", "0.0.0.0:1"] {
            check(text, tls(text, None));
            check(&format!("plain-text:{text}"), Endpoint::Tcp(text.into()));
            check(&format!("{text}/{}", "ab".repeat(32)), tls(text, Some(Fingerprint([0xab; 32]))));
        }
    }

    #[test]
    fn what_is_no_address_is_refused() {
        for text in ["", "gpu1", ":7583", "gpu1:port", "gpu1:70000", "::1:7583", "unix:"] {
            assert_eq!(text.parse::<Endpoint>(), Err(AddressError::Endpoint(text.to_owned())));
        }
        for text in ["gpu1:7583/", "gpu1:7583/12", &format!("gpu1:7583/{}", "x".repeat(64))] {
            assert_eq!(text.parse::<Endpoint>(), Err(AddressError::Fingerprint(text.to_owned())));
        }
        for text in ["gpu1:7583", "gpu1:7583#", "gpu1:7583#12", &format!("gpu1:7583#{}", "é".repeat(32))] {
            assert_eq!(text.parse::<SessionAddress>(), Err(AddressError::Token));
        }
    }
}
