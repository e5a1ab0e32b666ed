//! What a node and the processes that it starts say to each other: the daemon's accounts on one
//! side, a CUDA driver on the other.
//!
//! A *worker* serves one session. It finds a link to the daemon open ([`link`]), and a page on
//! which it counts what the session does ([`counters`]). Other processes answer one question and
//! end: what devices a driver has ([`probe`]), how fast they are ([`measure`]), and what NVML says
//! of them ([`health`]). The daemon stays free of drivers and of their crashes, and of the code
//! that they take.

use std::os::fd::RawFd;

pub mod counters;
pub mod health;
pub mod link;
pub mod measure;
pub mod probe;

/// The version of what is said on a link, of what the counter page has, and of what workers send
/// each other when a session moves: a daemon that was upgraded serves workers of its former
/// program. Raised with each change of these that the other side does not understand.
pub const VERSION: u32 = 1;

/// The descriptors that a worker finds open: the client's socket, the link to the daemon, the
/// counter page.
pub const INHERITED_FDS: [RawFd; 3] = [3, 4, 5];

#[cfg(test)]
mod tests {
    use super::*;

    /// A hash (FNV-1a) of what both sides have to agree on, without comments.
    fn declared() -> u64 {
        let (link, counters) = (include_str!("link.rs"), include_str!("counters.rs"));
        let end = |text: &'static str, last: &str| text.split(last).next().unwrap_or_default();
        let [link, counters] =
            [end(link, "/// One end of the pair."), end(counters, "/// A snapshot of [`Counters`].")];
        let lines = link.lines().chain(counters.lines()).map(str::trim);
        let code = lines.filter(|line| !line.is_empty() && !line.starts_with("//"));
        code.flat_map(str::bytes).fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
        })
    }

    #[test]
    fn a_link_that_has_changed_has_another_version() {
        let expected = (1, 0xe66e_deee_2451_e25a);
        let said = "does a worker of the release before understand it? If not, raise VERSION; then put the new hash here";
        assert_eq!((VERSION, declared()), expected, "{said}");
    }
}
