//! Which bytes are found to have changed.

use super::*;

fn mirror(host: &[u8]) -> Mirror {
    Mirror {
        host: host.as_ptr() as u64,
        device: 0,
        bytes: host.len() as u64,
        ordinal: 0,
        is_managed: false,
        pages: HostPages::Program,
        is_read_only: false,
        agreed: vec![0; host.len()],
        hashes: vec![0; host.len().div_ceil(MIRROR_PAGE)],
        number: None,
    }
}

#[test]
fn differences_are_runs() {
    let runs = |old: &[u8], new: &[u8]| differences(old, new).collect::<Vec<_>>();
    assert_eq!(runs(b"abcdef", b"abcdef"), []);
    assert_eq!(runs(b"abcdef", b"xbcxxf"), [0..1, 3..5]);
    assert_eq!(runs(b"abc", b"xyz").first(), Some(&(0..3)));
    assert_eq!(runs(b"", b""), []);
}

#[test]
fn a_page_that_changed_in_many_places_goes_whole() {
    let old = [0; 64];
    let mut new = [0; 64];
    new.iter_mut().step_by(2).for_each(|byte| *byte = 1);
    assert_eq!(changes(&old, &new).first(), Some(&(0..64)), "and nothing else is left to say");
    assert_eq!(changes(&old, &new[..4]), [0..1, 2..3]);
}

#[test]
fn what_the_program_wrote_meanwhile_stays() {
    let mut host = vec![0_u8; 100];
    let mut mirror = mirror(&host);
    host[7] = 70;
    let mut theirs = vec![0; 100];
    theirs[8] = 80;
    mirror.host = host.as_mut_ptr() as u64;
    mirror.take(0..100, &theirs);
    assert_eq!((host[7], host[8]), (70, 80));
    assert_eq!((mirror.agreed[7], mirror.agreed[8]), (0, 80), "what the program wrote is still to be sent");
}
