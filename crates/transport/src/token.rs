//! A node's token: a text that its users have, and prove to have without saying it.

use std::fmt;

use ring::hmac;

/// So that nobody finds it by trying.
pub const CHARACTERS_MIN: usize = 16;

#[derive(Clone)]
pub struct NodeToken(hmac::Key);

impl NodeToken {
    /// Of a text as it stands in a file or in the environment.
    pub fn new(text: &str) -> NodeToken {
        NodeToken(hmac::Key::new(hmac::HMAC_SHA256, text.trim().as_bytes()))
    }

    /// What only a holder can answer to this challenge.
    pub fn proof(&self, challenge: &[u8; 32]) -> [u8; 32] {
        let tag = hmac::sign(&self.0, challenge);
        std::array::from_fn(|at| tag.as_ref()[at])
    }

    /// Whether a holder has answered, in a time that does not tell how much of it is right.
    pub fn is_proof(&self, challenge: &[u8; 32], proof: &[u8; 32]) -> bool {
        hmac::verify(&self.0, challenge, proof).is_ok()
    }
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
    fn a_proof_is_of_one_token_and_one_challenge() {
        let (token, other) = (NodeToken::new("a token of a node\n"), NodeToken::new("another token"));
        let proof = token.proof(&[7; 32]);
        assert!(NodeToken::new("a token of a node").is_proof(&[7; 32], &proof));
        assert!(!token.is_proof(&[8; 32], &proof) && !other.is_proof(&[7; 32], &proof));
        assert!(!format!("{token:?}").contains("node\n"));
    }
}
