//! Who has shown a wrong token, for the node's log: one line for each address, however often it tries.

use std::collections::HashSet;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Mutex, PoisonError};

/// Most addresses that are told apart. Those of the local network are fewer, and whoever has more is told of often enough.
const ADDRESSES_MAX: usize = 256;

#[derive(Debug, Default)]
pub(crate) struct Strangers(Mutex<HashSet<IpAddr>>);

impl Strangers {
    /// Says so, unless it was said of this peer's address.
    pub(crate) fn say(&self, peer: &str) {
        if let Some(text) = self.news(peer) {
            eprintln!("sluice node: {text}");
        }
    }

    fn news(&self, peer: &str) -> Option<String> {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let before = known.len();
        // Programs of this machine have none, and are as one.
        let address = peer.parse().map_or(IpAddr::from([127, 0, 0, 1]), |peer: SocketAddr| peer.ip());
        if before >= ADDRESSES_MAX || !known.insert(address) {
            return None;
        }
        let further = match before + 1 {
            ADDRESSES_MAX => "; further addresses are not named",
            _ => "; further tries from there are not named",
        };
        Some(format!("{peer} has shown a wrong token{further}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_named_once_and_not_without_end() {
        let strangers = Strangers::default();
        let first = strangers.news("10.0.0.1:4000").expect("the first time");
        assert_eq!(first, "10.0.0.1:4000 has shown a wrong token; further tries from there are not named");
        assert_eq!(strangers.news("10.0.0.1:4001"), None);
        assert!(strangers.news("[fd00::1]:4000").is_some());
        assert!(strangers.news("pid 17").is_some());
        assert_eq!(strangers.news("127.0.0.1:9"), None);
        let said = (0..1000_u32).filter_map(|i| strangers.news(&format!("10.1.{}.{}:5", i / 256, i % 256)));
        let said: Vec<String> = said.collect();
        assert_eq!(said.len(), ADDRESSES_MAX - 3);
        assert!(said.last().expect("some").ends_with("; further addresses are not named"));
    }
}
