//! A node's token: a text that its users have, and prove to have without saying it.

use std::fmt;

use ring::hmac;
use sluice_wire::address::Fingerprint;

/// The shortest token, so that it cannot be found by trying.
pub const CHARACTERS_MIN: usize = 16;

#[derive(Clone)]
pub struct NodeToken(hmac::Key);

impl NodeToken {
    /// Of a text as it stands in a file or in the environment.
    pub fn new(text: &str) -> NodeToken {
        NodeToken(hmac::Key::new(hmac::HMAC_SHA256, text.trim().as_bytes()))
    }

    /// What only a holder can answer to this challenge of the node that has shown this certificate.
    /// With it, a node that hands on another's challenge gets nothing that the other takes; in
    /// plain text there is none, and nothing keeps it from that.
    pub fn proof(&self, challenge: &[u8; 32], shown: Option<Fingerprint>) -> [u8; 32] {
        let tag = hmac::sign(&self.0, &of_node(challenge, shown));
        std::array::from_fn(|at| tag.as_ref()[at])
    }

    /// Whether a holder has answered, in a time that does not tell how much of it is right.
    pub fn is_proof(&self, challenge: &[u8; 32], shown: Option<Fingerprint>, proof: &[u8; 32]) -> bool {
        hmac::verify(&self.0, &of_node(challenge, shown), proof).is_ok()
    }
}

fn of_node(challenge: &[u8; 32], shown: Option<Fingerprint>) -> Vec<u8> {
    let shown = shown.map_or_else(Vec::new, |Fingerprint(bytes)| bytes.to_vec());
    [challenge.as_slice(), &shown].concat()
}

impl fmt::Debug for NodeToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("NodeToken(secret)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proof_is_of_one_token_one_challenge_and_one_certificate() {
        let (token, other) = (NodeToken::new("a token of a node\n"), NodeToken::new("another token"));
        let [none, shown, another] = [None, Some(Fingerprint([1; 32])), Some(Fingerprint([2; 32]))];
        for (shown, not) in [(none, shown), (shown, none), (shown, another)] {
            let proof = token.proof(&[7; 32], shown);
            assert!(NodeToken::new("a token of a node").is_proof(&[7; 32], shown, &proof));
            assert!(!token.is_proof(&[8; 32], shown, &proof) && !other.is_proof(&[7; 32], shown, &proof));
            assert!(!token.is_proof(&[7; 32], not, &proof));
        }
        assert!(!format!("{token:?}").contains("node\n"));
    }
}
