//! Which other nodes this one connects to, for copies between their memories.
//!
//! The address is the program's word, so what is checked is the address that is connected to, after
//! names have been looked up; and it is looked up once, so that a name that means something else
//! the next time leads nowhere else.

use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::str::FromStr;

use ipnet::IpNet;
use sluice_wire::address::Endpoint;

/// What an operator lets a node connect to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Peering {
    /// Wherever programs say.
    #[default]
    Any,
    None,
    /// Only to hosts at these addresses.
    Only(Vec<PeerAddresses>),
}

/// Some addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PeerAddresses {
    /// Of a network, or a single one.
    Network(IpNet),
    /// Those that a host's name has at the time.
    Host(String),
}

/// Why a node does not connect to another; the text goes to the client.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PeeringRefusal {
    #[error("its operator lets it connect to no other node (--peers none)")]
    None,
    #[error("its operator does not let it connect there (--peers)")]
    NotListed,
    #[error("unknown host ({0})")]
    Unknown(#[source] std::io::Error),
}

/// Of a name that has more addresses the others are not tried: each may keep a thread for seconds.
const ADDRESSES_MAX: usize = 4;

impl Peering {
    /// Returns each address at which this node may try to connect to that one; there is at least
    /// one.
    pub(crate) fn allowed(&self, node: &Endpoint) -> Result<Vec<Endpoint>, PeeringRefusal> {
        let places = match self {
            Peering::Any => return Ok(vec![node.clone()]),
            Peering::None => return Err(PeeringRefusal::None),
            Peering::Only(places) => places,
        };
        let address = match node {
            Endpoint::Tcp(address) | Endpoint::Tls { address, .. } => address,
            // No connection goes there anyway.
            Endpoint::Unix(_) => return Err(PeeringRefusal::NotListed),
        };
        let addresses = address.to_socket_addrs().map_err(PeeringRefusal::Unknown)?;
        let allowed = allowed_of(places, addresses).into_iter().map(|address| at(node, address));
        let allowed: Vec<Endpoint> = allowed.collect();
        if allowed.is_empty() { Err(PeeringRefusal::NotListed) } else { Ok(allowed) }
    }
}

fn allowed_of(places: &[PeerAddresses], addresses: impl Iterator<Item = SocketAddr>) -> Vec<SocketAddr> {
    let listed = |address: &SocketAddr| places.iter().any(|place| place.has(address.ip()));
    addresses.filter(listed).take(ADDRESSES_MAX).collect()
}

fn at(node: &Endpoint, address: SocketAddr) -> Endpoint {
    let address = address.to_string();
    match node {
        Endpoint::Tls { fingerprint, .. } => Endpoint::Tls { address, fingerprint: *fingerprint },
        _ => Endpoint::Tcp(address),
    }
}

impl PeerAddresses {
    fn has(&self, address: IpAddr) -> bool {
        // An IPv4 address may come dressed as one of IPv6.
        let address = address.to_canonical();
        match self {
            PeerAddresses::Network(network) => network.contains(&address),
            // A name that is not known now has no addresses.
            PeerAddresses::Host(name) => {
                let known = (name.as_str(), 0).to_socket_addrs();
                known.into_iter().flatten().any(|known| known.ip().to_canonical() == address)
            }
        }
    }
}

impl FromStr for Peering {
    type Err = String;

    /// `any`, `none`, or hosts and networks with commas between them.
    fn from_str(text: &str) -> Result<Peering, String> {
        match text {
            "any" => Ok(Peering::Any),
            "none" => Ok(Peering::None),
            _ => text.split(',').map(str::parse).collect::<Result<_, _>>().map(Peering::Only),
        }
    }
}

impl FromStr for PeerAddresses {
    type Err = String;

    fn from_str(text: &str) -> Result<PeerAddresses, String> {
        if let Ok(address) = text.parse::<IpAddr>() {
            return Ok(PeerAddresses::Network(address.to_canonical().into()));
        }
        if let Ok(network) = text.parse::<IpNet>() {
            return Ok(PeerAddresses::Network(network));
        }
        let of_name = |c: char| c.is_ascii_alphanumeric() || "-._".contains(c);
        // What is all numbers and points is an address with a slip in it.
        let is_name = text.contains(|c: char| c.is_ascii_alphabetic()) && text.chars().all(of_name);
        if !is_name || ["any", "none"].contains(&text) {
            return Err(format!(
                "{text:?} is no host (gpu2), address (10.0.0.2) or network (10.0.0.0/8, fd00::/8); any and none stand alone, and \
                 no port is named"
            ));
        }
        Ok(PeerAddresses::Host(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allowed(peering: &str, node: &str) -> Result<String, String> {
        let peering: Peering = peering.parse().unwrap();
        peering
            .allowed(&node.parse().unwrap())
            .map(|nodes| nodes.iter().map(Endpoint::to_string).collect::<Vec<_>>().join(" or "))
            .map_err(|error| error.to_string())
    }

    #[test]
    fn a_node_connects_where_its_operator_lets_it() {
        for (peering, node) in [
            ("any", "plain-text:198.51.100.7:7583"),
            ("198.51.100.7", "plain-text:198.51.100.7:7583"),
            ("10.0.0.0/8,198.51.100.0/24", "plain-text:198.51.100.7:7583"),
            ("fd00::/8", "plain-text:[fd00::7]:7583"),
            ("127.0.0.1", "127.0.0.1:7583"),
        ] {
            assert_eq!(allowed(peering, node), Ok(node.to_owned()), "{peering}");
        }
        let fingerprint = "ab".repeat(32);
        let node = format!("198.51.100.7:7583/{fingerprint}");
        assert_eq!(allowed("198.51.100.7", &node), Ok(node.clone()));
        for (peering, node) in [
            ("198.51.100.0/24", "plain-text:198.51.101.7:7583"),
            ("0.0.0.0/0", "plain-text:[fd00::7]:7583"),
            ("127.0.0.1", "unix:/run/sluice.sock"),
        ] {
            let refusal = allowed(peering, node).unwrap_err();
            assert!(refusal.contains("does not let it connect there (--peers)"), "{peering}: {refusal}");
        }
        let refusal = allowed("none", "127.0.0.1:7583").unwrap_err();
        assert!(refusal.contains("(--peers none)"), "{refusal}");
    }

    #[test]
    fn a_name_stands_for_its_addresses() {
        let local = allowed("localhost", "127.0.0.1:7583");
        assert_eq!(local, Ok("127.0.0.1:7583".to_owned()));
        let by_name = allowed("127.0.0.0/8,::1", "localhost:7583").unwrap();
        let known = ["127.0.0.1:7583", "[::1]:7583"];
        assert!(by_name.split(" or ").all(|address| known.contains(&address)), "{by_name}");
        assert!(allowed("localhost", "plain-text:198.51.100.7:7583").is_err());
        // IPv4 in the dress of IPv6 is IPv4.
        assert!(allowed("127.0.0.1", "plain-text:[::ffff:127.0.0.1]:7583").is_ok());
        assert!(allowed("10.0.0.0/8", "plain-text:[::ffff:127.0.0.1]:7583").is_err());
    }

    #[test]
    fn each_allowed_address_of_a_name_is_one_to_try() {
        let places = ["10.0.0.0/8".parse().unwrap(), "fd00::/8".parse().unwrap()];
        let of = |addresses: &[&str]| {
            let addresses = addresses.iter().map(|ip| SocketAddr::new(ip.parse().unwrap(), 7583));
            allowed_of(&places, addresses).iter().map(|address| address.ip().to_string()).collect::<Vec<_>>()
        };
        assert_eq!(of(&["198.51.100.7", "fd00::7", "10.0.0.7", "::1"]), ["fd00::7", "10.0.0.7"]);
        assert_eq!(of(&["198.51.100.7"]), [""; 0]);
        assert_eq!(of(&["10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4", "10.0.0.5"]).len(), ADDRESSES_MAX);
    }

    #[test]
    fn what_is_no_place_is_refused() {
        for wrong in [
            "",
            "gpu2:7583",
            "10.0.0.0/33",
            "10.0.0",
            "gpu1,,gpu2",
            "gpu1,any",
            "none,gpu1",
            "gpu 1",
            "[fd00::1]",
        ] {
            let error = wrong.parse::<Peering>().unwrap_err();
            assert!(error.contains("any and none stand alone"), "{wrong:?}: {error}");
        }
    }
}
