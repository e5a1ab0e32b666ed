//! How a program under a lease reaches its node: the value of the environment variable `SLUICE_SESSION`.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use crate::handshake::LeaseToken;

/// Where a node listens: `HOST:PORT`, or `unix:PATH` on the same machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeAddress {
    Tcp(String),
    Unix(PathBuf),
}

/// Not an address of a node; the text says what one looks like.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no address of a node: expected HOST:PORT, such as gpu-server:7583, or unix:PATH")]
pub struct NotAnAddress(String);

impl FromStr for NodeAddress {
    type Err = NotAnAddress;

    fn from_str(text: &str) -> Result<NodeAddress, NotAnAddress> {
        let refused = || NotAnAddress(text.to_string());
        if let Some(path) = text.strip_prefix("unix:") {
            return if path.is_empty() { Err(refused()) } else { Ok(NodeAddress::Unix(path.into())) };
        }
        match text.rsplit_once(':') {
            Some((host, port)) if !host.is_empty() && port.parse::<u16>().is_ok() => {
                Ok(NodeAddress::Tcp(text.to_string()))
            }
            _ => Err(refused()),
        }
    }
}

impl fmt::Display for NodeAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NodeAddress::Tcp(address) => f.pad(address),
            NodeAddress::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// A lease's token and its node, written `TOKEN@ADDRESS` with the token in hexadecimal digits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attachment {
    pub token: LeaseToken,
    pub node: NodeAddress,
}

/// Not an attachment. The text does not repeat it, since it may hold a secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected TOKEN@ADDRESS, as `sluice run` sets it")]
pub struct NotAnAttachment;

impl FromStr for Attachment {
    type Err = NotAnAttachment;

    fn from_str(text: &str) -> Result<Attachment, NotAnAttachment> {
        let (digits, address) = text.split_once('@').ok_or(NotAnAttachment)?;
        let mut token = [0; 32];
        if digits.len() != 2 * token.len() || !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
            return Err(NotAnAttachment);
        }
        for (byte, at) in token.iter_mut().zip((0..digits.len()).step_by(2)) {
            *byte = u8::from_str_radix(&digits[at..at + 2], 16).map_err(|_| NotAnAttachment)?;
        }
        let node = address.parse().map_err(|_| NotAnAttachment)?;
        Ok(Attachment { token: LeaseToken(token), node })
    }
}

impl fmt::Display for Attachment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for byte in self.token.0 {
            write!(f, "{byte:02x}")?;
        }
        write!(f, "@{}", self.node)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses() {
        for text in ["gpu:7583", "10.0.0.1:1", "[::1]:7583", "unix:/run/sluice.sock"] {
            assert_eq!(text.parse::<NodeAddress>().map(|address| address.to_string()), Ok(text.to_string()));
        }
        for text in ["", "gpu", ":7583", "gpu:", "gpu:http", "gpu:70000", "unix:"] {
            assert!(text.parse::<NodeAddress>().unwrap_err().to_string().contains("HOST:PORT"), "{text}");
        }
    }

    #[test]
    fn attachments_come_back_as_they_went() {
        let token = LeaseToken(std::array::from_fn(|at| at as u8 * 7));
        for node in [NodeAddress::Tcp("gpu:7583".into()), NodeAddress::Unix("/tmp/a@b".into())] {
            let attachment = Attachment { token, node };
            assert_eq!(attachment.to_string().parse(), Ok(attachment));
        }
        for text in ["", "@gpu:1", "zz@gpu:1", &"é".repeat(32), &format!("{}@gpu", "0".repeat(64))] {
            assert_eq!(text.parse::<Attachment>(), Err(NotAnAttachment), "{text}");
        }
    }
}
