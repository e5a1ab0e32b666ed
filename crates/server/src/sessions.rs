//! Sessions of the web view: what a browser holds in place of a token, and the links that begin
//! one.
//!
//! A session of a server's own token reads `slw_TOKEN_UNTIL_NONCE_MAC`. The MAC covers the rest and
//! the hash of the token, under a key that follows from the one that grants are signed with. So
//! every replica can check it, also after a restart, it is stored nowhere, and it ends with its
//! token. The browser never keeps the token itself. A session of an identity provider's person is
//! their ID token, which the server checks with every request as it checks those of `sluice login`.
//!
//! A session comes in a cookie, which browsers also add to requests that another site makes. So a
//! request that changes something has to repeat a value that only pages of this server can read: a
//! second MAC, over the session.

use std::collections::HashMap;
use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as BASE64;
use sluice_api::grant::Signer;

use crate::auth;
use crate::store::StoredToken;

const PREFIX: &str = "slw_";
const PURPOSE: &str = "sluice 2026-11 sessions of the web view";
const CSRF_PURPOSE: &str = "sluice 2026-11 request tokens of the web view";
const COOKIE_PURPOSE: &str = "sluice 2026-11 cookies of the web view";
/// A session ends after half a day, or with its token.
const LIFETIME_MS: u64 = 12 * 3_600_000;
/// A link can be used for ten minutes.
const LINK_LIFETIME_MS: u64 = 10 * 60_000;
/// The most links that wait to be used.
const LINKS_MAX: usize = 1000;

/// The keys of sessions, and the links that have not been used yet. Links are known to the server
/// that made them alone.
pub(crate) struct Sessions {
    key: [u8; 32],
    csrf_key: [u8; 32],
    /// The name of the cookie. Browsers do not tell ports of one host apart, so each installation
    /// has a name of its own.
    pub(crate) cookie: String,
    links: Mutex<HashMap<[u8; 32], SignInLink>>,
}

/// A link by the hash of its code.
struct SignInLink {
    session: String,
    until_ms: u64,
}

/// A session that a text says it is.
pub(crate) struct Claimed<'a> {
    /// The id of its token.
    pub(crate) token: &'a str,
    pub(crate) until_ms: u64,
    signed: &'a str,
    mac: blake3::Hash,
}

impl Sessions {
    pub(crate) fn new(signer: &Signer) -> Sessions {
        let name = blake3::hash(&signer.derive(COOKIE_PURPOSE)).to_hex();
        Sessions {
            key: signer.derive(PURPOSE),
            csrf_key: signer.derive(CSRF_PURPOSE),
            cookie: format!("sluice-{}", &name[..12]),
            links: Mutex::default(),
        }
    }

    /// The text of a new session of this token.
    pub(crate) fn begin(&self, stored: &StoredToken, now_ms: u64) -> io::Result<String> {
        let until_ms = stored.token.expires_at_ms.min(now_ms.saturating_add(LIFETIME_MS));
        let nonce = BASE64.encode(auth::random::<12>()?).replace(['-', '_'], "x");
        let signed = format!("{PREFIX}{}_{until_ms}_{nonce}", stored.token.id);
        let mac = self.mac(&signed, stored).to_hex();
        Ok(format!("{signed}_{mac}"))
    }

    /// Whether this server made the session for this token; whether it has ended is another
    /// question.
    pub(crate) fn opens(&self, claimed: &Claimed<'_>, stored: &StoredToken) -> bool {
        // Hashes are compared in constant time.
        self.mac(claimed.signed, stored) == claimed.mac
    }

    fn mac(&self, signed: &str, stored: &StoredToken) -> blake3::Hash {
        let mut hasher = blake3::Hasher::new_keyed(&self.key);
        hasher.update(&(signed.len() as u64).to_le_bytes());
        hasher.update(signed.as_bytes());
        hasher.update(stored.hash.as_bytes());
        hasher.finalize()
    }

    /// What a request under this session has to repeat to change something.
    pub(crate) fn csrf(&self, session: &str) -> blake3::Hash {
        blake3::keyed_hash(&self.csrf_key, session.as_bytes())
    }

    /// The code of a link that begins this session, and until when it can be used.
    pub(crate) fn link(&self, session: String, now_ms: u64) -> io::Result<Option<(String, u64)>> {
        let code = BASE64.encode(auth::random::<32>()?);
        let until_ms = now_ms.saturating_add(LINK_LIFETIME_MS);
        let mut links = self.lock();
        links.retain(|_, link| link.until_ms > now_ms);
        if links.len() >= LINKS_MAX {
            return Ok(None);
        }
        links.insert(hash(&code), SignInLink { session, until_ms });
        Ok(Some((code, until_ms)))
    }

    /// The session of a link, which cannot be used again.
    pub(crate) fn redeem(&self, code: &str, now_ms: u64) -> Option<String> {
        let link = self.lock().remove(&hash(code))?;
        (link.until_ms > now_ms).then_some(link.session)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<[u8; 32], SignInLink>> {
        self.links.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Codes are random, so looking up the hash of one tells nothing about others.
fn hash(code: &str) -> [u8; 32] {
    blake3::hash(code.as_bytes()).into()
}

impl Claimed<'_> {
    /// Reads a text that looks like a session.
    pub(crate) fn read(text: &str) -> Option<Claimed<'_>> {
        let (signed, mac) = text.rsplit_once('_')?;
        let mut parts = signed.strip_prefix(PREFIX)?.split('_');
        let (token, until, _nonce) = (parts.next()?, parts.next()?, parts.next()?);
        if parts.next().is_some() {
            return None;
        }
        let mac = blake3::Hash::from_hex(mac).ok()?;
        Some(Claimed { token, until_ms: until.parse().ok()?, signed, mac })
    }
}

#[cfg(test)]
mod tests {
    use sluice_api::tenant::TenantPath;
    use sluice_api::token::Role;

    use super::*;

    fn token(now_ms: u64, lifetime_ms: u64) -> StoredToken {
        auth::make(TenantPath::root(), Role::Member, "a".into(), None, lifetime_ms, now_ms).unwrap().0
    }

    #[test]
    fn a_session_is_of_its_token_and_its_installation_alone() {
        let sessions = Sessions::new(&Signer::new([7; 32]));
        let (own, other) = (token(0, u64::MAX), token(0, u64::MAX));
        let text = sessions.begin(&own, 1000).unwrap();
        let claimed = Claimed::read(&text).unwrap();
        assert_eq!((claimed.token, claimed.until_ms), (own.token.id.as_str(), 1000 + LIFETIME_MS));
        assert!(sessions.opens(&claimed, &own));
        assert!(!sessions.opens(&claimed, &other));
        assert!(!Sessions::new(&Signer::new([8; 32])).opens(&claimed, &own));
        let longer = text.replacen(&(1000 + LIFETIME_MS).to_string(), &u64::MAX.to_string(), 1);
        assert!(!sessions.opens(&Claimed::read(&longer).unwrap(), &own));
        for wrong in
            ["", "slw_", "slw_a_1_b", "slw_a_1_b_c", "slc_a_b", &text[..text.len() - 1], &format!("{text}_0")]
        {
            assert!(Claimed::read(wrong).is_none_or(|claimed| !sessions.opens(&claimed, &own)), "{wrong}");
        }
    }

    #[test]
    fn a_session_does_not_outlive_its_token() {
        let sessions = Sessions::new(&Signer::new([7; 32]));
        let text = sessions.begin(&token(1000, 500), 1000).unwrap();
        assert_eq!(Claimed::read(&text).unwrap().until_ms, 1500);
    }

    #[test]
    fn a_link_is_used_once_and_in_time() {
        let sessions = Sessions::new(&Signer::new([7; 32]));
        let (code, until_ms) = sessions.link("a session".into(), 1000).unwrap().unwrap();
        assert_eq!(until_ms, 1000 + LINK_LIFETIME_MS);
        assert_eq!(sessions.redeem("another", 1000), None);
        assert_eq!(sessions.redeem(&code, 2000).as_deref(), Some("a session"));
        assert_eq!(sessions.redeem(&code, 2000), None);
        let (late, until_ms) = sessions.link("a session".into(), 1000).unwrap().unwrap();
        assert_eq!(sessions.redeem(&late, until_ms), None);
    }

    #[test]
    fn links_that_nobody_uses_are_bounded_and_make_room_when_they_end() {
        let sessions = Sessions::new(&Signer::new([7; 32]));
        for _ in 0..LINKS_MAX {
            assert!(sessions.link(String::new(), 0).unwrap().is_some());
        }
        assert!(sessions.link(String::new(), 0).unwrap().is_none());
        assert!(sessions.link(String::new(), LINK_LIFETIME_MS).unwrap().is_some());
    }

    #[test]
    fn request_tokens_differ_between_sessions() {
        let sessions = Sessions::new(&Signer::new([7; 32]));
        let own = token(0, u64::MAX);
        let [one, two] = [(); 2].map(|()| sessions.begin(&own, 0).unwrap());
        assert_ne!(sessions.csrf(&one), sessions.csrf(&two));
    }
}
