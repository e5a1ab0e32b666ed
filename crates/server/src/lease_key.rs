//! Keys of leases: what opens one lease and nothing else, whatever becomes of the token that it was
//! asked for with.
//!
//! A key reads `slk_ID_SECRET`. The secret is a MAC over what makes the lease this one and no
//! other, under a key that follows from the one that grants are signed with: all replicas know it,
//! also after a restart, and it is stored nowhere.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as BASE64;
use sluice_api::grant::Signer;
use sluice_api::lease::LeaseId;

use crate::fleet::LeaseRecord;

const PREFIX: &str = "slk_";
const PURPOSE: &str = "sluice 2026-11 keys of leases";
/// For this long after its end a lease can still be read with its key: a client that watches it
/// learns how it ended.
const LAST_WORD_MS: u64 = 10 * 60_000;

/// The key of a lease.
pub(crate) fn of(signer: &Signer, lease: &LeaseRecord) -> String {
    format!("{PREFIX}{}_{}", lease.id, BASE64.encode(mac(signer, lease).as_bytes()))
}

/// The lease that a text says it is the key of, if it looks like a key.
pub(crate) fn lease_of(text: &str) -> Option<LeaseId> {
    let (id, _) = text.strip_prefix(PREFIX)?.split_once('_')?;
    id.parse().ok()
}

/// Whether the text is the key of this lease, and it has not ended for long.
pub(crate) fn opens(signer: &Signer, lease: &LeaseRecord, text: &str, now_ms: u64) -> bool {
    let secret = text.strip_prefix(PREFIX).and_then(|rest| rest.split_once('_')).map(|(_, secret)| secret);
    let bytes = secret.and_then(|secret| <[u8; 32]>::try_from(BASE64.decode(secret).ok()?).ok());
    // Hashes are compared in constant time.
    bytes.is_some_and(|bytes| mac(signer, lease) == blake3::Hash::from_bytes(bytes))
        && lease.ended_at_ms.is_none_or(|at_ms| now_ms < at_ms.saturating_add(LAST_WORD_MS))
}

/// Ids alone are given out again where a backup is restored.
fn mac(signer: &Signer, lease: &LeaseRecord) -> blake3::Hash {
    let mut hasher = blake3::Hasher::new_keyed(&signer.derive(PURPOSE));
    hasher.update(&lease.id.to_le_bytes());
    hasher.update(&lease.created_at_ms.to_le_bytes());
    hasher.update(lease.token.as_bytes());
    hasher.finalize()
}

#[cfg(test)]
mod tests {
    use crate::fleet::Fleet;

    use super::*;

    #[test]
    fn a_key_opens_its_lease_alone_and_not_for_long_after_its_end() {
        let mut fleet = Fleet::new(Vec::new(), Vec::new(), Vec::new(), Vec::new(), 0, 0, 0);
        let ask = || serde_json::from_str("{}").unwrap();
        let ids =
            [1000, 2000].map(|at_ms| fleet.request("acme".parse().unwrap(), ask(), "a token".into(), at_ms));
        let [first, second] = ids.map(|id| fleet.lease(id).unwrap().clone());
        let signer = Signer::new([7; 32]);
        let key = of(&signer, &first);
        assert_eq!(lease_of(&key), Some(first.id));
        assert!(opens(&signer, &first, &key, u64::MAX), "it has not ended");
        assert!(!opens(&signer, &second, &key, 0));
        assert!(!opens(&Signer::new([8; 32]), &first, &key, 0));
        for other in [
            LeaseRecord { created_at_ms: 1001, ..first.clone() },
            LeaseRecord { token: "another".into(), ..first.clone() },
        ] {
            assert!(!opens(&signer, &other, &key, 0), "{other:?} has the id of one before");
        }
        for text in ["", "slk_", "slk_1", "slk_1_", "slc_1_x", &key[..key.len() - 1], &format!("{key}A")] {
            assert!(!opens(&signer, &first, text, 0), "{text}");
        }
        let ended = LeaseRecord { ended_at_ms: Some(5000), ..first };
        assert!(opens(&signer, &ended, &key, 5000 + LAST_WORD_MS - 1));
        assert!(!opens(&signer, &ended, &key, 5000 + LAST_WORD_MS));
    }
}
