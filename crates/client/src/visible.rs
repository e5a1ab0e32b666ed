//! Which of its GPUs a program sees, and in which order (CUDA C++ Programming Guide, CUDA Environment Variables).

/// Ordinals or beginnings of UUIDs, with commas between. The list ends before the first word that names no GPU.
pub(crate) const VARIABLE: &str = "CUDA_VISIBLE_DEVICES";

/// The GPUs that the variable's text names, by their place in `uuids`; all of them where it is not set.
pub(crate) fn devices(text: Option<&str>, uuids: &[[u8; 16]]) -> Vec<usize> {
    let Some(text) = text else { return (0..uuids.len()).collect() };
    let mut visible = Vec::new();
    for word in text.split(',') {
        match named(word.trim(), uuids) {
            Some(index) if !visible.contains(&index) => visible.push(index),
            _ => break,
        }
    }
    visible
}

fn named(word: &str, uuids: &[[u8; 16]]) -> Option<usize> {
    let Some(digits) = word.strip_prefix("GPU-") else {
        return word.parse().ok().filter(|&index: &usize| index < uuids.len());
    };
    let wanted = digits.replace('-', "").to_lowercase();
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
        check(Some("0,1,0,2"), &[0, 1]);
        check(Some("GPU-2222,GPU-11111111-1111"), &[2, 1]);
        check(Some("GPU-1"), &[]);
        check(Some("GPU-"), &[]);
        check(Some(""), &[]);
    }
}
