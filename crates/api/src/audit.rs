//! The audit log's chain: each entry's hash covers the entry before it, so that no edit, deletion,
//! insertion or reordering goes unseen, and a hash kept elsewhere (an anchor) also shows a log that
//! was cut off or written anew.

use serde::{Deserialize, Serialize};

/// One change, and who made it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Entry {
    /// From 1, without gaps.
    pub sequence: u64,
    pub at_ms: u64,
    /// The token that it was done with, and its name.
    pub actor: String,
    /// What was done, as `tenant.changed`.
    pub action: String,
    /// What it was done to.
    pub subject: String,
    /// The change itself, as JSON.
    pub detail: String,
    /// Of the entry before; of the first, [`BEGINNING`].
    pub previous: String,
    pub hash: String,
}

/// What the first entry follows.
pub const BEGINNING: &str = "0000000000000000000000000000000000000000000000000000000000000000";

/// Where a log stands: its last entry's number and hash.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Head {
    pub sequence: u64,
    pub hash: String,
}

impl Default for Head {
    fn default() -> Head {
        Head { sequence: 0, hash: BEGINNING.into() }
    }
}

/// What was tampered with.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Broken {
    #[error("entry {expected} is missing: after it comes {found}")]
    Missing { expected: u64, found: u64 },
    #[error("entry {0} does not follow the one before it")]
    Chain(u64),
    #[error("entry {0} was changed after it had been written")]
    Content(u64),
    #[error("the log ends with entry {end}, but entry {anchored} had been there")]
    Cut { end: u64, anchored: u64 },
    #[error("entry {0} is not the one that had been there")]
    Rewritten(u64),
}

impl Entry {
    /// The entry after `head`.
    pub fn after(head: &Head, at_ms: u64, actor: &str, action: &str, subject: &str, detail: &str) -> Entry {
        let mut entry = Entry {
            sequence: head.sequence + 1,
            at_ms,
            actor: actor.into(),
            action: action.into(),
            subject: subject.into(),
            detail: detail.into(),
            previous: head.hash.clone(),
            hash: String::new(),
        };
        entry.hash = entry.digest();
        entry
    }

    pub fn head(&self) -> Head {
        Head { sequence: self.sequence, hash: self.hash.clone() }
    }

    /// Over every other field, each with its length, so that no two entries have the same bytes.
    fn digest(&self) -> String {
        let mut hasher = blake3::Hasher::new();
        hasher.update(b"sluice audit 1");
        hasher.update(&self.sequence.to_le_bytes());
        hasher.update(&self.at_ms.to_le_bytes());
        for text in [&self.actor, &self.action, &self.subject, &self.detail, &self.previous] {
            hasher.update(&(text.len() as u64).to_le_bytes());
            hasher.update(text.as_bytes());
        }
        hasher.finalize().to_hex().to_string()
    }
}

/// Follows a log entry by entry.
#[derive(Clone, Debug)]
pub struct Verification {
    head: Head,
    anchor: Option<Head>,
}

impl Verification {
    /// Of a whole log; it must contain the anchor, if there is one.
    pub fn new(anchor: Option<Head>) -> Verification {
        Verification { head: Head::default(), anchor }
    }

    /// Takes the next entry.
    pub fn follow(&mut self, entry: &Entry) -> Result<(), Broken> {
        let expected = self.head.sequence + 1;
        if entry.sequence != expected {
            return Err(Broken::Missing { expected, found: entry.sequence });
        }
        if entry.previous != self.head.hash {
            return Err(Broken::Chain(entry.sequence));
        }
        if entry.hash != entry.digest() {
            return Err(Broken::Content(entry.sequence));
        }
        if let Some(anchor) = &self.anchor
            && anchor.sequence == entry.sequence
            && anchor.hash != entry.hash
        {
            return Err(Broken::Rewritten(entry.sequence));
        }
        self.head = entry.head();
        Ok(())
    }

    /// Where the log stands, once all entries have been followed.
    pub fn end(self) -> Result<Head, Broken> {
        match self.anchor {
            Some(anchor) if anchor.sequence > self.head.sequence => {
                Err(Broken::Cut { end: self.head.sequence, anchored: anchor.sequence })
            }
            _ => Ok(self.head),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn log(length: u64) -> Vec<Entry> {
        let mut head = Head::default();
        let mut entries = Vec::new();
        for at in 0..length {
            let entry =
                Entry::after(&head, at, "admin", "tenant.changed", "acme", &format!("{{\"n\":{at}}}"));
            head = entry.head();
            entries.push(entry);
        }
        entries
    }

    fn verify(entries: &[Entry], anchor: Option<Head>) -> Result<Head, Broken> {
        let mut verification = Verification::new(anchor);
        entries.iter().try_for_each(|entry| verification.follow(entry))?;
        verification.end()
    }

    #[test]
    fn a_log_as_it_was_written_verifies() {
        let entries = log(20);
        assert_eq!(verify(&entries, None), Ok(entries[19].head()));
        assert_eq!(verify(&entries, Some(entries[7].head())), Ok(entries[19].head()));
        assert_eq!(verify(&[], None), Ok(Head::default()));
    }

    #[test]
    fn what_a_chain_alone_cannot_show_an_anchor_does() {
        let entries = log(20);
        let anchor = Some(entries[19].head());
        assert_eq!(verify(&entries[..10], anchor.clone()), Err(Broken::Cut { end: 10, anchored: 20 }));
        let mut head = Head::default();
        let rewritten: Vec<Entry> = (0..20)
            .map(|at| {
                let entry = Entry::after(&head, at, "admin", "tenant.changed", "other", "{}");
                head = entry.head();
                entry
            })
            .collect();
        assert_eq!(verify(&rewritten, anchor), Err(Broken::Rewritten(20)));
    }

    proptest! {
        #[test]
        fn every_edit_is_found(at in 0_usize..19, kind in 0..6, with in any::<u64>()) {
            let mut entries = log(20);
            match kind {
                0 => entries[at].at_ms ^= with | 1,
                1 => entries[at].detail.push('x'),
                2 => { entries[at].actor = format!("someone {with}"); }
                3 => { entries.remove(at); }
                4 => entries.swap(at, at + 1),
                _ => { let again = entries[at].clone(); entries.insert(at, again); }
            }
            prop_assert!(verify(&entries, None).is_err());
        }
    }
}
