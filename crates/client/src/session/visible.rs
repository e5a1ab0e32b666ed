//! Which of its GPUs a program sees, and in which order (CUDA C++ Programming Guide, CUDA
//! Environment Variables).

/// Ordinals or beginnings of UUIDs, with commas between. The list ends before the first word that
/// names no GPU, or is of the other kind.
pub(crate) const VARIABLE: &str = "CUDA_VISIBLE_DEVICES";

/// The GPUs that the variable's text names, by their place in `uuids`; all of them where it is not
/// set, and none where it names one twice.
pub(crate) fn devices(text: Option<&str>, uuids: &[[u8; 16]]) -> Vec<usize> {
    let Some(text) = text else { return (0..uuids.len()).collect() };
    let by_uuid = text.trim_start().starts_with(UUID);
    let named = |word: &str| if by_uuid { with_uuid(word, uuids) } else { ordinal(word) };
    let mut named_ones = Vec::new();
    for index in text.split(',').map_while(|word| named(word.trim())) {
        if named_ones.contains(&index) {
            return Vec::new();
        }
        named_ones.push(index);
    }
    named_ones.into_iter().take_while(|&index| index < uuids.len()).collect()
}

const UUID: &str = "GPU-";

/// What the word begins with, as the C library's `strtol` reads it.
fn ordinal(word: &str) -> Option<usize> {
    let word = word.strip_prefix('+').unwrap_or(word);
    let end = word.find(|c: char| !c.is_ascii_digit()).unwrap_or(word.len());
    word[..end].parse().ok()
}

fn with_uuid(word: &str, uuids: &[[u8; 16]]) -> Option<usize> {
    let wanted = word.strip_prefix(UUID)?.replace('-', "").to_lowercase();
    let hex = |uuid: &[u8; 16]| uuid.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let mut fitting = uuids.iter().enumerate().filter(|(_, uuid)| hex(uuid).starts_with(&wanted));
    match (fitting.next(), fitting.next()) {
        (Some((index, _)), None) if !wanted.is_empty() => Some(index),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_variable_chooses_and_orders() {
        let uuids = [[0x10; 16], [0x11; 16], [0x22; 16]];
        let check = |text, expect: &[usize]| assert_eq!(devices(text, &uuids), expect, "{text:?}");
        check(None, &[0, 1, 2]);
        check(Some("2, 0"), &[2, 0]);
        check(Some("1,3,0"), &[1]);
        check(Some("1,-1,0"), &[1]);
        check(Some("0,1,0,2"), &[]);
        check(Some("0,0"), &[]);
        check(Some("1gpu,0 of two,+2"), &[1, 0, 2]);
        check(Some("gpu1"), &[]);
        check(Some("1,GPU-22"), &[1]);
        check(Some("GPU-22,1"), &[2]);
        check(Some("GPU-22,GPU-2222"), &[]);
        check(Some("99999999999999999999"), &[]);
        check(Some("GPU-2222,GPU-11111111-1111"), &[2, 1]);
        check(Some("GPU-1"), &[]);
        check(Some("GPU-"), &[]);
        check(Some(""), &[]);
    }
}
