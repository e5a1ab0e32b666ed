//! Which connections a listener keeps of those that have not proved yet that they may be there.
//!
//! Such a connection costs its sender nothing, so whatever number of places there is, one sender
//! can fill it. A newcomer is therefore never refused: when all places are taken, it displaces the
//! connection that has waited longest among those of the source that has the most. Who floods a
//! listener displaces its own connections; another source keeps its few.
//!
//! A connection that has proved itself leaves, and counts elsewhere.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

/// Where connections come from, as far as senders can be distinguished.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Source {
    /// A socket of this machine, of any process.
    Local,
    /// An address of IPv4; of IPv6 the network of 64 bits, which one sender has as a whole (RFC
    /// 6177, section 2).
    Address(IpAddr),
}

impl From<SocketAddr> for Source {
    fn from(peer: SocketAddr) -> Source {
        Source::Address(match peer.ip().to_canonical() {
            IpAddr::V6(address) => {
                let network = u128::from(address) & !u128::from(u64::MAX);
                Ipv6Addr::from(network).into()
            }
            address => address,
        })
    }
}

/// The number of a connection; a later one is larger.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Entry(u64);

/// The connections that have not proved themselves; `H` is what ends one.
#[derive(Debug)]
pub struct Unproven<H> {
    places: usize,
    next: u64,
    waiting: BTreeMap<Entry, (Source, H)>,
    /// The connections of each source, in the order in which they came.
    sources: HashMap<Source, BTreeSet<Entry>>,
    /// The sources by how many connections they have.
    by_size: BTreeSet<(usize, Source)>,
}

impl<H> Unproven<H> {
    /// Admits this many connections at a time, at least one.
    pub fn new(places: usize) -> Unproven<H> {
        Unproven {
            places: places.max(1),
            next: 0,
            waiting: BTreeMap::new(),
            sources: HashMap::new(),
            by_size: BTreeSet::new(),
        }
    }

    /// Enters a connection; the answer has its number, and the connection that has to go for it.
    pub fn enter(&mut self, source: Source, handle: H) -> (Entry, Option<H>) {
        let displaced = if self.waiting.len() < self.places { None } else { self.displace() };
        let entry = Entry(self.next);
        self.next += 1;
        self.waiting.insert(entry, (source, handle));
        self.resize(source, |of| _ = of.insert(entry));
        (entry, displaced)
    }

    /// Takes a connection out, since it has proved itself or ended; `None` if it was displaced.
    pub fn leave(&mut self, entry: Entry) -> Option<H> {
        let (source, handle) = self.waiting.remove(&entry)?;
        self.resize(source, |of| _ = of.remove(&entry));
        Some(handle)
    }

    /// The number of connections.
    pub fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Whether there is no connection.
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    fn displace(&mut self) -> Option<H> {
        let (_, source) = self.by_size.last()?;
        let oldest = *self.sources.get(source)?.first()?;
        self.leave(oldest)
    }

    fn resize(&mut self, source: Source, change: impl FnOnce(&mut BTreeSet<Entry>)) {
        let of = self.sources.entry(source).or_default();
        self.by_size.remove(&(of.len(), source));
        change(of);
        match of.len() {
            0 => _ = self.sources.remove(&source),
            size => _ = self.by_size.insert((size, source)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(peer: &str) -> Source {
        peer.parse::<SocketAddr>().expect("an address").into()
    }

    #[test]
    fn a_source_is_what_one_sender_has() {
        assert_eq!(source("10.0.0.1:1"), source("10.0.0.1:2"));
        assert_eq!(source("[::ffff:10.0.0.1]:1"), source("10.0.0.1:2"));
        assert_eq!(source("[2001:db8::1]:1"), source("[2001:db8::ffff:1]:1"));
        assert_ne!(source("[2001:db8::1]:1"), source("[2001:db8:0:1::1]:1"));
        assert_ne!(source("10.0.0.1:1"), source("10.0.0.2:1"));
    }

    #[test]
    fn who_floods_displaces_its_own_connections() {
        let (flood, other) = (source("10.0.0.1:1"), source("10.0.0.2:1"));
        let mut unproven = Unproven::new(4);
        let (honest, none) = unproven.enter(other, 0);
        assert_eq!(none, None);
        let gone: Vec<Option<i32>> = (1..=9).map(|number| unproven.enter(flood, number).1).collect();
        let expect = [None, None, None, Some(1), Some(2), Some(3), Some(4), Some(5), Some(6)];
        assert_eq!(gone, expect);
        assert_eq!((unproven.len(), unproven.leave(honest)), (4, Some(0)));
        assert_eq!(unproven.leave(honest), None, "it has left");
        assert_eq!(unproven.enter(flood, 10).1, None, "there is a place");
    }

    #[test]
    fn a_newcomer_of_the_same_source_is_admitted() {
        let flood = source("10.0.0.1:1");
        let mut unproven = Unproven::new(2);
        let (first, _) = unproven.enter(flood, 1);
        unproven.enter(flood, 2);
        let (honest, displaced) = unproven.enter(flood, 3);
        assert_eq!((displaced, unproven.leave(first)), (Some(1), None));
        assert_eq!(unproven.leave(honest), Some(3));
    }

    #[test]
    fn of_many_sources_with_one_connection_each_one_makes_way() {
        let mut unproven = Unproven::new(3);
        for number in 0..100_u32 {
            let (_, displaced) = unproven.enter(source(&format!("10.0.0.{number}:1")), number);
            assert_eq!(displaced.is_some(), number >= 3);
            assert!(unproven.len() <= 3);
        }
        assert_eq!(unproven.sources.len(), 3);
    }
}
