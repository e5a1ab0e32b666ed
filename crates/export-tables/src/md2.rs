//! MD2 (RFC 1319) and HMAC over it (RFC 2104). Broken as a hash for decades; the CUDA runtime wants
//! it all the same.

const BLOCK: usize = 16;

/// HMAC-MD2 with a key of exactly one block.
pub(crate) fn hmac_md2(key: &[u8; BLOCK], message: &[u8]) -> [u8; BLOCK] {
    let inner = md2(&[&key.map(|byte| byte ^ 0x36), message]);
    md2(&[&key.map(|byte| byte ^ 0x5c), &inner])
}

/// MD2 of the concatenation of `parts`.
fn md2(parts: &[&[u8]]) -> [u8; BLOCK] {
    let mut padded = parts.concat();
    let padding = BLOCK - padded.len() % BLOCK;
    padded.resize(padded.len() + padding, padding as u8);
    padded.extend(checksum(&padded));

    let mut state = [0; 3 * BLOCK];
    for block in padded.chunks_exact(BLOCK) {
        for (i, &byte) in block.iter().enumerate() {
            state[BLOCK + i] = byte;
            state[2 * BLOCK + i] = byte ^ state[i];
        }
        mix(&mut state);
    }
    std::array::from_fn(|i| state[i])
}

/// RFC 1319, 3.2, with the correction of its errata: the checksum byte is mixed in, not replaced.
fn checksum(padded: &[u8]) -> [u8; BLOCK] {
    let mut checksum = [0; BLOCK];
    let mut last = 0;
    for block in padded.chunks_exact(BLOCK) {
        for (sum, &byte) in checksum.iter_mut().zip(block) {
            *sum ^= PI[usize::from(byte ^ last)];
            last = *sum;
        }
    }
    checksum
}

/// RFC 1319, 3.4: eighteen rounds over the state.
fn mix(state: &mut [u8; 3 * BLOCK]) {
    let mut last = 0u8;
    for round in 0..18 {
        for byte in state.iter_mut() {
            *byte ^= PI[usize::from(last)];
            last = *byte;
        }
        last = last.wrapping_add(round);
    }
}

/// RFC 1319, 3.2: a permutation of the byte values made from the digits of pi.
#[rustfmt::skip]
const PI: [u8; 256] = [
    41, 46, 67, 201, 162, 216, 124, 1, 61, 54, 84, 161, 236, 240, 6, 19,
    98, 167, 5, 243, 192, 199, 115, 140, 152, 147, 43, 217, 188, 76, 130, 202,
    30, 155, 87, 60, 253, 212, 224, 22, 103, 66, 111, 24, 138, 23, 229, 18,
    190, 78, 196, 214, 218, 158, 222, 73, 160, 251, 245, 142, 187, 47, 238, 122,
    169, 104, 121, 145, 21, 178, 7, 63, 148, 194, 16, 137, 11, 34, 95, 33,
    128, 127, 93, 154, 90, 144, 50, 39, 53, 62, 204, 231, 191, 247, 151, 3,
    255, 25, 48, 179, 72, 165, 181, 209, 215, 94, 146, 42, 172, 86, 170, 198,
    79, 184, 56, 210, 150, 164, 125, 182, 118, 252, 107, 226, 156, 116, 4, 241,
    69, 157, 112, 89, 100, 113, 135, 32, 134, 91, 207, 101, 230, 45, 168, 2,
    27, 96, 37, 173, 174, 176, 185, 246, 28, 70, 97, 105, 52, 64, 126, 15,
    85, 71, 163, 35, 221, 81, 175, 58, 195, 92, 249, 206, 186, 197, 234, 38,
    44, 83, 13, 110, 133, 40, 132, 9, 211, 223, 205, 244, 65, 129, 77, 82,
    106, 220, 55, 200, 108, 193, 171, 250, 36, 225, 123, 8, 12, 189, 177, 74,
    120, 136, 149, 139, 227, 99, 232, 109, 233, 203, 213, 254, 59, 0, 29, 57,
    242, 239, 183, 14, 102, 88, 208, 228, 166, 119, 114, 248, 235, 117, 75, 10,
    49, 68, 80, 180, 143, 237, 31, 26, 219, 153, 141, 51, 159, 17, 131, 20,
];

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(digest: [u8; BLOCK]) -> String {
        digest.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// The test suite of RFC 1319, A.5.
    #[test]
    fn md2_of_the_rfc_test_suite() {
        for (message, digest) in [
            ("", "8350e5a3e24c153df2275c9f80692773"),
            ("a", "32ec01ec4a6dac72c0ab96fb34c0b5d1"),
            ("abc", "da853b0d3f88d99b30283a69e6ded6bb"),
            ("message digest", "ab4f496bfb2a530b219ff33031fe06b0"),
            ("abcdefghijklmnopqrstuvwxyz", "4e8ddff3650292ab5a4108c3aa47940b"),
        ] {
            assert_eq!(hex(md2(&[message.as_bytes()])), digest, "{message:?}");
        }
    }

    #[test]
    fn hmac_hashes_the_message_between_two_keys() {
        let key = [3; BLOCK];
        let inner = md2(&[&[3 ^ 0x36; BLOCK], b"message"]);
        assert_eq!(hmac_md2(&key, b"message"), md2(&[&[3 ^ 0x5c; BLOCK], &inner]));
    }
}
