//! What the node's log says of peers that were turned away: of each kind one line an hour for each
//! address, however often it tries.

use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Most addresses that are distinguished for each kind. Those of the local network are fewer.
const ADDRESSES_MAX: usize = 256;
/// This long after the first of them all are forgotten, so that the log is not silent for good
/// after that many.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(3600);

#[derive(Debug, Default)]
pub(crate) struct Strangers(Mutex<LoggedAddresses>);

/// Why a peer was turned away.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Kind {
    WrongToken,
    /// It did not come to a question, or asked one that is none.
    TurnedAway,
}

#[derive(Debug, Default)]
struct LoggedAddresses {
    addresses: HashMap<Kind, HashSet<IpAddr>>,
    /// When the first of them came.
    since: Option<Instant>,
}

impl Strangers {
    /// Logs `what` about a peer, unless as much was logged of its address.
    pub(crate) fn say(&self, peer: &str, kind: Kind, what: &str) {
        if let Some(text) = self.news(peer, kind, what, Instant::now()) {
            tracing::warn!(peer, "{text}");
        }
    }

    fn news(&self, peer: &str, kind: Kind, what: &str, now: Instant) -> Option<String> {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if known.since.is_none_or(|since| now.duration_since(since) >= FORGOTTEN_AFTER) {
            *known = LoggedAddresses { addresses: HashMap::new(), since: Some(now) };
        }
        let addresses = known.addresses.entry(kind).or_default();
        let before = addresses.len();
        // Programs of this machine have none, and are as one.
        let address = peer.parse().map_or(IpAddr::from([127, 0, 0, 1]), |peer: SocketAddr| peer.ip());
        if before >= ADDRESSES_MAX || !addresses.insert(address) {
            return None;
        }
        let further = match before + 1 {
            ADDRESSES_MAX => "; further addresses are not named within the hour",
            _ => "; further tries from there are not named within the hour",
        };
        Some(format!("{peer} {what}{further}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_named_once_and_not_without_end() {
        let strangers = Strangers::default();
        let begin = Instant::now();
        let wrong_token =
            |peer: &str, now| strangers.news(peer, Kind::WrongToken, "has shown a wrong token", now);
        let news = |peer: &str| wrong_token(peer, begin + FORGOTTEN_AFTER / 2);
        let first = wrong_token("10.0.0.1:4000", begin).expect("the first time");
        let expect =
            "10.0.0.1:4000 has shown a wrong token; further tries from there are not named within the hour";
        assert_eq!(first, expect);
        assert_eq!(news("10.0.0.1:4001"), None);
        let other_kind = strangers.news("10.0.0.1:4001", Kind::TurnedAway, "said nothing", begin);
        assert!(other_kind.expect("of another kind").starts_with("10.0.0.1:4001 said nothing; further"));
        assert!(news("[fd00::1]:4000").is_some());
        assert!(news("pid 17").is_some());
        assert_eq!(news("127.0.0.1:9"), None);
        let said = (0..1000_u32).filter_map(|i| news(&format!("10.1.{}.{}:5", i / 256, i % 256)));
        let said: Vec<String> = said.collect();
        assert_eq!(said.len(), ADDRESSES_MAX - 3);
        assert!(said.last().expect("some").ends_with("; further addresses are not named within the hour"));
        let later = wrong_token("10.0.0.1:4000", begin + FORGOTTEN_AFTER).expect("an hour later");
        assert_eq!(later, first);
    }
}
