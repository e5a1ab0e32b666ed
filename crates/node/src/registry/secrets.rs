//! Random secrets, and how they are compared.

/// Compares secrets without telling by the duration how much was right.
pub(super) fn same(a: &[u8; 32], b: &[u8; 32]) -> bool {
    a.iter().zip(b).fold(0, |different, (x, y)| different | (x ^ y)) == 0
}

/// A secret that cannot be guessed.
pub(crate) fn random() -> [u8; 32] {
    let mut secret = [0_u8; 32];
    loop {
        // SAFETY: the pointer and length describe `secret`.
        let got = unsafe { libc::getrandom(secret.as_mut_ptr().cast(), secret.len(), 0) };
        // Requests of up to 256 bytes are never cut short once the pool is ready; EINTR can come
        // before.
        if got == secret.len() as isize {
            return secret;
        }
    }
}
