//! Who has shown a wrong token, for the node's log: one line an hour for each address, however often it tries.

use std::collections::HashSet;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Most addresses that are told apart. Those of the local network are fewer, and whoever has more is told of often enough.
const ADDRESSES_MAX: usize = 256;
/// So long after the first of them all are forgotten, so that the log is not silent for good after that many.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(3600);

#[derive(Debug, Default)]
pub(crate) struct Strangers(Mutex<Known>);

#[derive(Debug, Default)]
struct Known {
    addresses: HashSet<IpAddr>,
    /// When the first of them came.
    since: Option<Instant>,
}

impl Strangers {
    /// Says so, unless it was said of this peer's address.
    pub(crate) fn say(&self, peer: &str) {
        if let Some(text) = self.news(peer, Instant::now()) {
            eprintln!("sluice node: {text}");
        }
    }

    fn news(&self, peer: &str, now: Instant) -> Option<String> {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if known.since.is_none_or(|since| now.duration_since(since) >= FORGOTTEN_AFTER) {
            *known = Known { addresses: HashSet::new(), since: Some(now) };
        }
        let before = known.addresses.len();
        // Programs of this machine have none, and are as one.
        let address = peer.parse().map_or(IpAddr::from([127, 0, 0, 1]), |peer: SocketAddr| peer.ip());
        if before >= ADDRESSES_MAX || !known.addresses.insert(address) {
            return None;
        }
        let further = match before + 1 {
            ADDRESSES_MAX => "; further addresses are not named within the hour",
            _ => "; further tries from there are not named within the hour",
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
        let begin = Instant::now();
        let news = |peer: &str| strangers.news(peer, begin + FORGOTTEN_AFTER / 2);
        let first = strangers.news("10.0.0.1:4000", begin).expect("the first time");
        let expect =
            "10.0.0.1:4000 has shown a wrong token; further tries from there are not named within the hour";
        assert_eq!(first, expect);
        assert_eq!(news("10.0.0.1:4001"), None);
        assert!(news("[fd00::1]:4000").is_some());
        assert!(news("pid 17").is_some());
        assert_eq!(news("127.0.0.1:9"), None);
        let said = (0..1000_u32).filter_map(|i| news(&format!("10.1.{}.{}:5", i / 256, i % 256)));
        let said: Vec<String> = said.collect();
        assert_eq!(said.len(), ADDRESSES_MAX - 3);
        assert!(said.last().expect("some").ends_with("; further addresses are not named within the hour"));
        let later = strangers.news("10.0.0.1:4000", begin + FORGOTTEN_AFTER).expect("an hour later");
        assert_eq!(later, first);
    }
}
