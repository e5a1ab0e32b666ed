//! Places for connections, so that peers without a token cannot use up the server's file
//! descriptors.
//!
//! ```text
//!            accepted                  a request with a valid token
//!  (socket) ──────────▶ unauthenticated ──────────────────────────▶ authenticated
//!                         │  a newer connection takes the place, or REQUEST_TIME_MAX is over
//!                         ▼
//!                       closed
//! ```
//! A connection is unauthenticated until one of its requests carries a valid token. A new
//! connection is always admitted: where the unauthenticated connections of its network, or of all
//! networks, have reached their limit, one of them is closed for it. That is the oldest of those
//! that have sent nothing or of those that have sent something, whichever are more. So silent
//! connections do not displace a client in its handshake, and clients that send their request at
//! once are served however many connections are held open beside them, from their own address or
//! from others. Authenticated connections have places of their own.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

/// An unauthenticated connection is closed when it has had no request for this long.
pub(super) const REQUEST_TIME_MAX: Duration = Duration::from_secs(10);
/// The most unauthenticated connections, and the part of all descriptors that they may be.
const UNAUTHENTICATED_MAX: usize = 2048;
const UNAUTHENTICATED_PART: usize = 4;
/// The part of the unauthenticated connections that one network may hold.
const NETWORK_PART: usize = 2;
/// The most authenticated connections, and the part of all descriptors that they may be.
const AUTHENTICATED_MAX: usize = 65_536;
const AUTHENTICATED_PART: usize = 2;
/// The part of the authenticated connections that one token may hold.
const TOKEN_PART: usize = 4;

/// How many connections there may be of each sort.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Limits {
    unauthenticated: usize,
    of_network: usize,
    authenticated: usize,
    of_token: usize,
}

impl Limits {
    /// The limits for a process that may open this many files; what they leave is for the database
    /// and the rest.
    fn of_files(files: usize) -> Limits {
        let unauthenticated = (files / UNAUTHENTICATED_PART).clamp(NETWORK_PART, UNAUTHENTICATED_MAX);
        let authenticated = (files / AUTHENTICATED_PART).clamp(TOKEN_PART, AUTHENTICATED_MAX);
        Limits {
            unauthenticated,
            of_network: unauthenticated / NETWORK_PART,
            authenticated,
            of_token: authenticated / TOKEN_PART,
        }
    }
}

/// The connections that a server has.
#[derive(Debug)]
pub(crate) struct Places {
    limits: Limits,
    held: Mutex<Connections>,
}

#[derive(Debug, Default)]
struct Connections {
    accepted: u64,
    /// The unauthenticated connections, the oldest first.
    unauthenticated: BTreeMap<u64, Unauthenticated>,
    of_network: HashMap<IpAddr, OfNetwork>,
    authenticated: usize,
    of_token: HashMap<String, usize>,
}

#[derive(Debug)]
struct Unauthenticated {
    network: IpAddr,
    evicted: Arc<Notify>,
}

/// The unauthenticated connections of one network, by their numbers: the oldest first.
#[derive(Debug, Default)]
struct OfNetwork {
    silent: BTreeSet<u64>,
    /// Those that have sent at least a byte.
    speaking: BTreeSet<u64>,
}

impl OfNetwork {
    fn len(&self) -> usize {
        self.silent.len() + self.speaking.len()
    }

    /// The connection to close for a new one.
    fn to_close(&self) -> Option<u64> {
        let more = if self.silent.len() >= self.speaking.len() { &self.silent } else { &self.speaking };
        more.first().copied()
    }

    fn remove(&mut self, number: u64) {
        let _ = self.silent.remove(&number) || self.speaking.remove(&number);
    }
}

impl Places {
    /// Places for a process that may open this many files.
    pub(crate) fn of_files(files: usize) -> Arc<Places> {
        Arc::new(Places { limits: Limits::of_files(files), held: Mutex::default() })
    }

    /// Admits a connection, and closes another one if that is needed.
    pub(super) fn admit(self: &Arc<Places>, address: IpAddr) -> ConnectionSlot {
        let (network, evicted) = (network(address), Arc::new(Notify::new()));
        let mut held = self.lock();
        if held.of_network.get(&network).is_some_and(|own| own.len() >= self.limits.of_network) {
            held.evict(Some(network));
        } else if held.unauthenticated.len() >= self.limits.unauthenticated {
            let largest = held.largest_network();
            held.evict(largest);
        }
        held.accepted += 1;
        let number = held.accepted;
        held.unauthenticated.insert(number, Unauthenticated { network, evicted: Arc::clone(&evicted) });
        held.of_network.entry(network).or_default().silent.insert(number);
        ConnectionSlot {
            places: Arc::clone(self),
            number,
            evicted,
            state: Mutex::new(State { token: None, requests: 0, idle_since: Instant::now() }),
        }
    }

    /// Closes an unauthenticated connection, for when the system has no descriptor left.
    pub(super) fn evict_one(&self) {
        let mut held = self.lock();
        let largest = held.largest_network();
        held.evict(largest);
    }

    fn lock(&self) -> MutexGuard<'_, Connections> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Connections {
    fn largest_network(&self) -> Option<IpAddr> {
        self.of_network.iter().max_by_key(|(_, own)| own.len()).map(|(network, _)| *network)
    }

    fn evict(&mut self, network: Option<IpAddr>) {
        let own = network.and_then(|network| self.of_network.get(&network));
        if let Some(evicted) = own.and_then(OfNetwork::to_close).and_then(|number| self.remove(number)) {
            evicted.notify_one();
        }
    }

    /// Takes an unauthenticated connection out of the list, if it is there.
    fn remove(&mut self, number: u64) -> Option<Arc<Notify>> {
        let Unauthenticated { network, evicted } = self.unauthenticated.remove(&number)?;
        if let Some(own) = self.of_network.get_mut(&network) {
            own.remove(number);
            if own.len() == 0 {
                self.of_network.remove(&network);
            }
        }
        Some(evicted)
    }
}

/// One network is what one subscriber commonly has: an address of IPv4, a /64 of IPv6.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V4(address) => IpAddr::V4(address),
        IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() >> 64 << 64)),
    }
}

/// The place of one connection; dropping it frees the place.
#[derive(Debug)]
pub(crate) struct ConnectionSlot {
    places: Arc<Places>,
    number: u64,
    evicted: Arc<Notify>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// The token that authenticated the connection.
    token: Option<String>,
    /// Requests that are being answered.
    requests: usize,
    idle_since: Instant,
}

impl ConnectionSlot {
    /// Notes that the connection has sent something.
    pub(super) fn speaks(&self) {
        let mut held = self.places.lock();
        let Some(network) = held.unauthenticated.get(&self.number).map(|own| own.network) else {
            return;
        };
        if let Some(own) = held.of_network.get_mut(&network)
            && own.silent.remove(&self.number)
        {
            own.speaking.insert(self.number);
        }
    }

    /// Moves the connection to the authenticated ones: one of its requests carries this token,
    /// which is valid. It stays where it is if the token, or all tokens together, hold as many
    /// places as they may.
    pub(crate) fn authenticate(&self, token: &str) {
        let mut state = self.lock();
        if state.token.is_some() {
            return;
        }
        let mut held = self.places.lock();
        let limits = self.places.limits;
        let own = held.of_token.get(token).copied().unwrap_or(0);
        if own >= limits.of_token || held.authenticated >= limits.authenticated {
            return;
        }
        // An evicted connection is about to be closed.
        if held.remove(self.number).is_some() {
            held.authenticated += 1;
            *held.of_token.entry(token.to_owned()).or_default() += 1;
            state.token = Some(token.to_owned());
        }
    }

    /// Counts a request as being answered until the guard is dropped.
    pub(super) fn begin_request(self: &Arc<ConnectionSlot>) -> RequestGuard {
        self.lock().requests += 1;
        RequestGuard(Arc::clone(self))
    }

    /// Returns when the connection has to be closed: its place is needed, or it had its time
    /// without a request.
    pub(super) async fn is_lost(&self) {
        tokio::select! {
            () = self.evicted.notified() => {}
            () = self.outstays() => {}
        }
    }

    async fn outstays(&self) {
        let mut look_at = Instant::now() + REQUEST_TIME_MAX;
        loop {
            tokio::time::sleep_until(look_at).await;
            match self.idle_since() {
                None => return std::future::pending().await,
                Some(idle_since) => look_at = idle_since + REQUEST_TIME_MAX,
            }
            if look_at <= Instant::now() {
                return;
            }
        }
    }

    /// When the last request was answered, or now while one is; none where the connection is
    /// authenticated.
    fn idle_since(&self) -> Option<Instant> {
        let state = self.lock();
        let idle_since = if state.requests == 0 { state.idle_since } else { Instant::now() };
        state.token.is_none().then_some(idle_since)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        let token = self.lock().token.take();
        let mut held = self.places.lock();
        let Some(token) = token else {
            held.remove(self.number);
            return;
        };
        held.authenticated -= 1;
        if let Some(own) = held.of_token.get_mut(&token) {
            *own -= 1;
            if *own == 0 {
                held.of_token.remove(&token);
            }
        }
    }
}

/// A request that is being answered.
pub(super) struct RequestGuard(Arc<ConnectionSlot>);

impl Drop for RequestGuard {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.requests -= 1;
        state.idle_since = Instant::now();
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    fn is_evicted(place: &ConnectionSlot) -> bool {
        place.is_lost().now_or_never().is_some()
    }

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[tokio::test]
    async fn a_network_at_its_limit_loses_its_oldest_connection_and_no_other_does() {
        let places = Places::of_files(32);
        let other = places.admit(address("10.0.0.2"));
        let own: Vec<ConnectionSlot> = (0..4).map(|_| places.admit(address("10.0.0.1"))).collect();
        assert!(!own.iter().any(is_evicted));
        let newest = places.admit(address("::ffff:10.0.0.1"));
        assert_eq!(own.iter().map(is_evicted).collect::<Vec<_>>(), [true, false, false, false]);
        assert!(!is_evicted(&newest) && !is_evicted(&other));
    }

    #[tokio::test]
    async fn silent_connections_do_not_displace_one_that_speaks() {
        let places = Places::of_files(32);
        let client = places.admit(address("10.0.0.1"));
        client.speaks();
        let silent: Vec<ConnectionSlot> = (0..100).map(|_| places.admit(address("10.0.0.1"))).collect();
        assert!(!is_evicted(&client));
        assert_eq!(silent.iter().filter(|place| !is_evicted(place)).count(), 3);
    }

    #[tokio::test]
    async fn connections_that_speak_do_not_displace_one_that_is_about_to() {
        let places = Places::of_files(32);
        let admit_speaking = || {
            let place = places.admit(address("10.0.0.1"));
            place.speaks();
            place
        };
        let before: Vec<ConnectionSlot> = (0..4).map(|_| admit_speaking()).collect();
        let client = places.admit(address("10.0.0.1"));
        let after: Vec<ConnectionSlot> = (0..100).map(|_| admit_speaking()).collect();
        assert!(before.iter().all(is_evicted) && !is_evicted(&client));
        assert_eq!(after.iter().filter(|place| !is_evicted(place)).count(), 3);
    }

    #[tokio::test]
    async fn where_all_places_are_taken_the_largest_network_makes_room() {
        let places = Places::of_files(32);
        let large: Vec<ConnectionSlot> =
            (1..=4).map(|n| places.admit(address(&format!("2001:db8::{n}")))).collect();
        let small: Vec<ConnectionSlot> =
            (1..=4).map(|n| places.admit(address(&format!("2001:db8:0:{n}::1")))).collect();
        let newest = places.admit(address("10.0.0.1"));
        assert!(is_evicted(&large[0]) && !small.iter().any(is_evicted) && !is_evicted(&newest));
    }

    #[tokio::test]
    async fn a_connection_with_a_valid_token_is_never_closed_for_another() {
        let places = Places::of_files(32);
        let client = places.admit(address("10.0.0.1"));
        client.authenticate("a token");
        let others: Vec<ConnectionSlot> = (0..100).map(|_| places.admit(address("10.0.0.1"))).collect();
        assert!(!is_evicted(&client));
        assert_eq!(others.iter().filter(|place| !is_evicted(place)).count(), 4);
    }

    #[tokio::test]
    async fn one_token_holds_a_part_of_the_places_and_frees_them() {
        let places = Places::of_files(32);
        let admit = |token: &str| {
            let place = places.admit(address("10.0.0.1"));
            place.authenticate(token);
            place
        };
        let own: Vec<ConnectionSlot> = (0..5).map(|_| admit("one")).collect();
        let is_authenticated = |place: &ConnectionSlot| place.lock().token.is_some();
        assert_eq!(own.iter().filter(|place| is_authenticated(place)).count(), 4);
        assert!(is_authenticated(&admit("other")));
        drop(own);
        assert!(is_authenticated(&admit("one")));
        let held = places.lock();
        assert_eq!((held.unauthenticated.len(), held.of_network.len()), (0, 0));
        assert_eq!((held.authenticated, held.of_token.len()), (0, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_without_a_request_is_closed_after_its_time_and_one_that_is_answered_is_not() {
        let places = Places::of_files(32);
        let [silent, busy, client] = [(); 3].map(|()| Arc::new(places.admit(address("10.0.0.1"))));
        client.authenticate("a token");
        let request = busy.begin_request();
        let begun = Instant::now();
        silent.is_lost().await;
        assert_eq!(begun.elapsed(), REQUEST_TIME_MAX);
        let lost = tokio::time::timeout(REQUEST_TIME_MAX * 10, busy.is_lost()).await;
        assert!(lost.is_err());
        drop(request);
        let answered = Instant::now();
        busy.is_lost().await;
        assert!(answered.elapsed() >= REQUEST_TIME_MAX);
        assert!(tokio::time::timeout(REQUEST_TIME_MAX * 10, client.is_lost()).await.is_err());
    }
}
