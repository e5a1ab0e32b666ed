//! Grants: a lease in a form that a node can check alone.
//!
//! ```text
//! sluice1.BASE64URL(JSON of Grant).BASE64URL(SIGNATURE)
//! ```
//! SIGNATURE is an Ed25519 signature over everything before the last point.
//! The server signs with the key of its data folder; a node learns the public key when it joins. A
//! grant is good for one claim, before it expires; the lease then lives as long as the connection
//! that claimed it.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as BASE64;
use ed25519_compact::{KeyPair, PublicKey, Seed, Signature};
use serde::{Deserialize, Serialize};

use crate::GPU_PPM;
use crate::lease::LeaseId;
use crate::node::NodeId;
use crate::pool::{Promise, Tier};
use crate::tenant::TenantPath;

/// What a server promises to the program that brings this to the node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Grant {
    pub lease: LeaseId,
    /// A later attempt makes the grants of earlier ones worthless.
    pub attempt: u32,
    /// Which of the lease's tasks, from 0.
    pub task: u32,
    pub node: NodeId,
    pub tenant: TenantPath,
    /// For the usage records: what prices depend on.
    pub tier: Tier,
    pub pool: String,
    /// Indices of the node's GPUs, in the order in which the program sees them.
    pub gpus: Vec<u32>,
    pub share_ppm: u32,
    /// Millionths of each GPU that may be leased in all, this lease included: more than there are
    /// where its pool is overcommitted.
    #[serde(default = "whole", skip_serializing_if = "is_whole")]
    pub promised_ppm: u32,
    /// Bytes on each GPU.
    pub memory: u64,
    pub hard_cap: bool,
    /// The most of each GPU's compute in millionths, also while it would be idle otherwise;
    /// `hard_cap` says it without.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit_ppm: Option<u32>,
    /// Its sessions keep their memory and get no GPU time.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub suspended: bool,
    /// Counts the sizes that the attempt was given. A grant whose version is higher than that of
    /// the lease on the node changes what the lease has there; the first one is 0.
    #[serde(default, skip_serializing_if = "is_first")]
    pub version: u32,
    /// Counts the orders to move the task of this attempt to another node; 0 where the attempt
    /// began. A later one is good for a claim of its own.
    #[serde(default, skip_serializing_if = "is_first")]
    pub moves: u32,
    /// How long it waits for its GPUs at most, which its node counts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub promise: Option<Promise>,
    /// The last moment to claim it, or to resize by it.
    pub expires_at_ms: u64,
}

impl Grant {
    /// The most of each GPU's compute, in millionths; a whole GPU without a limit.
    pub fn limit_ppm(&self) -> u32 {
        self.limit_ppm.unwrap_or(if self.hard_cap { self.share_ppm } else { GPU_PPM })
    }
}

fn is_first(version: &u32) -> bool {
    *version == 0
}

fn whole() -> u32 {
    GPU_PPM
}

fn is_whole(ppm: &u32) -> bool {
    *ppm == GPU_PPM
}

/// Why a node turns a grant away.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GrantError {
    #[error("this is no grant")]
    Format,
    #[error("the grant was not signed by the server that this node has joined")]
    Signature,
    #[error("the grant expired {0} s ago; ask the server again (is this machine's clock right?)")]
    Expired(u64),
    #[error("the grant is for another node")]
    Node,
}

const PREFIX: &str = "sluice1";
/// Bytes of a grant as text; real ones have some 400.
const SIZE_MAX: usize = 8192;

/// Signs grants.
pub struct Signer(KeyPair);

impl Signer {
    /// From the 32 secret bytes of a key file.
    pub fn new(seed: [u8; 32]) -> Signer {
        Signer(KeyPair::from_seed(Seed::new(seed)))
    }

    /// Bytes for another purpose, which only who has the key file can derive.
    pub fn derive(&self, purpose: &str) -> [u8; 32] {
        blake3::derive_key(purpose, &*self.0.sk.seed())
    }

    /// What nodes check with.
    pub fn verifier(&self) -> Verifier {
        Verifier(self.0.pk)
    }

    pub fn sign(&self, grant: &Grant) -> String {
        // A struct of numbers and strings always has a JSON form.
        let json = serde_json::to_vec(grant).unwrap_or_default();
        let signed = format!("{PREFIX}.{}", BASE64.encode(json));
        let signature = self.0.sk.sign(signed.as_bytes(), None);
        format!("{signed}.{}", BASE64.encode(signature.as_ref()))
    }
}

/// Checks grants.
#[derive(Clone, Debug, PartialEq)]
pub struct Verifier(PublicKey);

impl Verifier {
    /// From the text that [`Verifier::to_text`] gave.
    pub fn from_text(text: &str) -> Option<Verifier> {
        let bytes = BASE64.decode(text).ok()?;
        PublicKey::from_slice(&bytes).ok().map(Verifier)
    }

    pub fn to_text(&self) -> String {
        BASE64.encode(self.0.as_ref())
    }

    /// The grant in `text`, if the server signed it for `node` and it can still be claimed at
    /// `now_ms`. Nothing of the text is parsed before its signature has been checked.
    pub fn check(&self, text: &str, node: NodeId, now_ms: u64) -> Result<Grant, GrantError> {
        if text.len() > SIZE_MAX {
            return Err(GrantError::Format);
        }
        let (signed, signature) = text.rsplit_once('.').ok_or(GrantError::Format)?;
        let payload = signed.strip_prefix(PREFIX).and_then(|rest| rest.strip_prefix('.'));
        let payload = payload.ok_or(GrantError::Format)?;
        let signature = BASE64.decode(signature).map_err(|_| GrantError::Format)?;
        let signature = Signature::from_slice(&signature).map_err(|_| GrantError::Format)?;
        self.0.verify(signed.as_bytes(), &signature).map_err(|_| GrantError::Signature)?;

        let json = BASE64.decode(payload).map_err(|_| GrantError::Format)?;
        let grant: Grant = serde_json::from_slice(&json).map_err(|_| GrantError::Format)?;
        if grant.node != node {
            return Err(GrantError::Node);
        }
        match now_ms.checked_sub(grant.expires_at_ms) {
            Some(late_ms) => Err(GrantError::Expired(late_ms / 1000)),
            None => Ok(grant),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grant() -> Grant {
        Grant {
            lease: 7,
            attempt: 1,
            task: 0,
            node: 3,
            tenant: "acme/research".parse().unwrap(),
            tier: Tier::Standard,
            pool: "default".into(),
            gpus: vec![0],
            share_ppm: 250_000,
            promised_ppm: GPU_PPM,
            memory: 1 << 30,
            hard_cap: false,
            limit_ppm: None,
            suspended: false,
            version: 0,
            moves: 0,
            promise: None,
            expires_at_ms: 1000,
        }
    }

    #[test]
    fn a_node_takes_what_its_server_signed_for_it_in_time() {
        let signer = Signer::new([1; 32]);
        let text = signer.sign(&grant());
        let verifier = Verifier::from_text(&signer.verifier().to_text()).unwrap();
        assert_eq!(verifier.check(&text, 3, 999), Ok(grant()));
        assert_eq!(verifier.check(&text, 4, 999), Err(GrantError::Node));
        assert_eq!(verifier.check(&text, 3, 61_000), Err(GrantError::Expired(60)));
        assert_eq!(Signer::new([2; 32]).verifier().check(&text, 3, 999), Err(GrantError::Signature));
    }

    #[test]
    fn grants_of_other_releases_are_read() {
        let mut json = serde_json::to_value(grant()).unwrap();
        for later in ["promised_ppm", "limit_ppm", "suspended", "version", "moves", "promise"] {
            assert_eq!(json.get(later), None, "as earlier releases sign and read them");
        }
        assert_eq!(grant().limit_ppm(), GPU_PPM);
        assert_eq!(Grant { hard_cap: true, ..grant() }.limit_ppm(), 250_000);
        assert_eq!(Grant { limit_ppm: Some(500_000), ..grant() }.limit_ppm(), 500_000);
        assert_eq!(serde_json::from_value::<Grant>(json.clone()).unwrap(), grant());
        json["promised_ppm"] = 1_500_000.into();
        let overcommitted = Grant { promised_ppm: 1_500_000, ..grant() };
        assert_eq!(serde_json::from_value::<Grant>(json).unwrap(), overcommitted);
        let signer = Signer::new([1; 32]);
        assert_eq!(signer.verifier().check(&signer.sign(&overcommitted), 3, 0), Ok(overcommitted));
    }

    #[test]
    fn every_changed_byte_is_noticed() {
        let signer = Signer::new([1; 32]);
        let text = signer.sign(&grant());
        for at in 0..text.len() {
            let mut changed = text.clone().into_bytes();
            changed[at] = if changed[at] == b'A' { b'B' } else { b'A' };
            let changed = String::from_utf8(changed).unwrap();
            assert!(signer.verifier().check(&changed, 3, 0).is_err(), "byte {at}");
        }
        for text in ["", ".", "..", "sluice1.", "sluice1..", "sluice1.e30.e30"] {
            assert_eq!(signer.verifier().check(text, 3, 0), Err(GrantError::Format), "{text}");
        }
    }
}
