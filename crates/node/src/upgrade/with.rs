//! How the state writes what has no form of its own there.

/// Messages and parts of them, as they are on the wire, in hexadecimal digits.
pub(crate) mod wire {
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};
    use sluice_wire::{Decode, Encode, Reader};

    pub(crate) fn serialize<T: Encode, S: Serializer>(value: &T, to: S) -> Result<S::Ok, S::Error> {
        let mut bytes = Vec::new();
        value.encode(&mut bytes);
        let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        to.serialize_str(&digits)
    }

    pub(crate) fn deserialize<'d, T, D>(from: D) -> Result<T, D::Error>
    where
        T: for<'a> Decode<'a>,
        D: Deserializer<'d>,
    {
        let digits = String::deserialize(from)?;
        let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
        let bytes: Option<Vec<u8>> = digits.as_bytes().chunks(2).map(byte).collect();
        let bytes = bytes.filter(|_| digits.len() % 2 == 0).ok_or_else(|| D::Error::custom("no digits"))?;
        let mut reader = Reader::new(&bytes);
        let value = T::decode(&mut reader).map_err(D::Error::custom)?;
        reader.end().map_err(D::Error::custom)?;
        Ok(value)
    }
}

/// What has a text that is read back.
pub(crate) mod text {
    use std::fmt::Display;
    use std::str::FromStr;

    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};

    pub(crate) fn serialize<T: Display, S: Serializer>(value: &T, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(value)
    }

    pub(crate) fn deserialize<'d, T, D>(from: D) -> Result<T, D::Error>
    where
        T: FromStr<Err: Display>,
        D: Deserializer<'d>,
    {
        String::deserialize(from)?.parse().map_err(D::Error::custom)
    }
}

/// Moments of the monotonic clock, which all programs of a running system share.
pub(crate) mod moment {
    use std::time::{Duration, Instant};

    use serde::{Deserialize, Deserializer, Serializer};

    pub(crate) fn serialize<S: Serializer>(at: &Instant, to: S) -> Result<S::Ok, S::Error> {
        let (now, since_boot) = now();
        let at = match now.checked_duration_since(*at) {
            Some(ago) => since_boot.saturating_sub(ago),
            None => since_boot.saturating_add(at.saturating_duration_since(now)),
        };
        to.serialize_u64(u64::try_from(at.as_nanos()).unwrap_or(u64::MAX))
    }

    pub(crate) fn deserialize<'d, D: Deserializer<'d>>(from: D) -> Result<Instant, D::Error> {
        let at = Duration::from_nanos(u64::deserialize(from)?);
        let (now, since_boot) = now();
        let moment = match since_boot.checked_sub(at) {
            Some(ago) => now.checked_sub(ago),
            None => now.checked_add(at.saturating_sub(since_boot)),
        };
        // One that this clock cannot show is long ago, or far away; nothing depends on how far.
        Ok(moment.unwrap_or(now))
    }

    /// One moment in two forms: as the standard library has it, and as the system does.
    fn now() -> (Instant, Duration) {
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: the call writes one structure.
        unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
        let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
        (Instant::now(), Duration::new(seconds, u32::try_from(time.tv_nsec).unwrap_or(0)))
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use serde::{Deserialize, Serialize};
    use sluice_wire::address::Endpoint;
    use sluice_wire::handshake::{Once, OpeningNonce};

    #[derive(Debug, Serialize, Deserialize)]
    struct All {
        #[serde(with = "super::wire")]
        once: Once,
        #[serde(with = "super::text")]
        node: Endpoint,
        #[serde(with = "super::moment")]
        at: Instant,
    }

    #[test]
    fn what_is_written_is_read_back() {
        let now = Instant::now();
        for at in [now, now - Duration::from_millis(1), now + Duration::from_secs(1000)] {
            let once = Once { nonce: OpeningNonce([0xa5; 32]), attempt: 7 };
            let all = All { once, node: "plain-text:gpu1:7583".parse().unwrap(), at };
            let text = serde_json::to_string(&all).unwrap();
            let read: All = serde_json::from_str(&text).unwrap();
            assert_eq!((read.once, read.node), (all.once, all.node));
            let apart = read.at.max(at) - read.at.min(at);
            assert!(apart < Duration::from_millis(100), "{apart:?}");
            for (wrong, right) in [("a5a5", "zz"), ("a5a5", "a"), ("plain-text", "")] {
                assert!(serde_json::from_str::<All>(&text.replacen(wrong, right, 1)).is_err(), "{right}");
            }
        }
    }
}
