use super::*;

fn memory(bytes: &mut [u64], length: usize) -> Memory {
    // SAFETY: the slice outlives the test's use of it.
    unsafe { Memory::new(bytes.as_mut_ptr().cast(), length).unwrap() }
}

fn look(memory: &Memory, agreed: &[u8]) -> Vec<Word> {
    let mut found = Vec::new();
    memory.look(0, agreed, &mut found);
    found
}

fn word(mirror: u32, index: u32) -> Word {
    Word { mirror, index, mask: 255, value: u64::from(index) }
}

#[test]
fn a_look_finds_the_bytes_that_changed_up_to_the_last() {
    let mut bytes = [0_u64; 20];
    let memory = memory(&mut bytes, 157);
    let mut agreed = vec![0; 157];
    assert!(look(&memory, &agreed).is_empty());
    for (index, mask, value) in [(0, 1, 7), (9, 0b1100, 0x0102_0000), (19, 1 << 4, 5 << 32)] {
        memory.store(index, mask, value);
    }
    let found = look(&memory, &agreed);
    let expected = [(0, 1, 7), (9, 0b1100, 0x0102_0000), (19, 1 << 4, 5 << 32)];
    assert_eq!(found.iter().map(|word| (word.index, word.mask, word.value)).collect::<Vec<_>>(), expected);
    found.iter().for_each(|word| agree(&mut agreed, word));
    assert!(look(&memory, &agreed).is_empty());
}

#[test]
fn what_is_applied_leaves_the_other_bytes_of_a_word_alone() {
    let mut bytes = [u64::MAX; 4];
    let memory = memory(&mut bytes, 30);
    let mut agreed = vec![0; 30];
    for (index, mask) in [(1, 0b10), (3, 0b1)] {
        assert!(memory.apply(&mut agreed, &Word { mirror: 0, index, mask, value: 0 }));
    }
    assert!(!memory.apply(&mut agreed, &word(0, 4)), "behind the end");
    assert_eq!((memory.load(1), memory.load(3)), (!0xff00, 0xffff_ffff_ff00));
    assert_eq!((agreed[8], agreed[9]), (0, 0));
    assert_eq!(look(&memory, &agreed)[1].mask, !0b10, "what this side has written is still to be told");
}

#[test]
fn words_are_told_in_parts_and_in_order() {
    let runs = [3..5000, 9000..9001, 1..2, 100_000..200_000];
    let words: Vec<Word> = runs
        .into_iter()
        .flat_map(|run| run.map(|index| Word { mask: index as u8 | 1, ..word(index / 5000, index) }))
        .collect();
    let parts = tell(&words);
    assert!(parts.len() > 1 && parts.iter().all(|part| part.len() < 2 * PART));
    let mut back = Vec::new();
    parts.iter().for_each(|part| told(part, |word| back.push(word)).unwrap());
    assert!(back == words);
}

#[test]
fn what_makes_no_sense_is_refused() {
    let whole = tell(&[word(1, 2), word(1, 3)]).remove(0);
    for end in 1..whole.len() {
        assert!(told(&whole[..end], |_| ()).is_err(), "{end}");
    }
    for (first, count) in [(u32::MAX, 2), (0, u32::MAX), (7, 100)] {
        let mut bytes = Vec::new();
        [1, first, count].iter().for_each(|number| number.encode(&mut bytes));
        bytes.resize(200, 0);
        assert!(told(&bytes, |_| ()).is_err(), "{first} {count}");
    }
}

#[test]
fn the_last_word_of_all_can_be_told_of() {
    let last = word(1, u32::MAX - 1);
    let mut back = Vec::new();
    told(&tell(&[last])[0], |word| back.push(word)).unwrap();
    assert_eq!(back, [last]);
}

#[test]
fn data_are_applied_before_flags() {
    let flag = word(0, 5);
    let pair = [word(0, 700), word(0, 701)];
    let data: Vec<Word> = (PAGE * 4..PAGE * 4 + 20).map(|index| word(0, index)).collect();
    let seen = [&[flag], &pair[..], &data, &[word(1, 9)]].concat();
    let ordered = data_first(seen);
    assert!(ordered == [&data[..], &pair, &[flag, word(1, 9)]].concat());
}

/// What a kernel that nothing stops may see halfway.
#[test]
fn counters_are_applied_after_what_stands_as_alone_as_they() {
    let counter = |mirror, index| Word { mask: 1, ..word(mirror, index) };
    let half = Word { mask: 0b1111, ..word(9, 7) };
    // A flag before the data of its page, data in pages of their own behind it, and a short run.
    let run: Vec<Word> = (8..40).map(|index| word(0, index)).collect();
    let apart: Vec<Word> = (1..9).map(|page| word(1, page * PAGE)).collect();
    let pair = [word(2, 8), word(2, 9)];
    let seen = [&[counter(0, 0)], &run[..], &apart, &pair, &[half]].concat();
    let ordered = data_first(seen);
    assert!(ordered == [&run[..], &pair, &apart, &[half, counter(0, 0)]].concat(), "{ordered:?}");
    // Words here and there of one page come before those of others, and its flag is the last of
    // them.
    let scattered: Vec<Word> = (0..20).map(|index| word(3, index * 2 + 4)).collect();
    let ordered = data_first([&[counter(3, 0), word(4, 0)], &scattered[..]].concat());
    assert!(ordered == [&scattered[..], &[counter(3, 0), word(4, 0)]].concat(), "{ordered:?}");
}

/// Looks that find these numbers one after the other: each is a word's value, by its index.
fn looks(scripts: &[&[(u32, u64)]]) -> (Vec<(u32, u64)>, usize) {
    let mut count = 0;
    let captured = capture(|| {
        let seen = scripts[count.min(scripts.len() - 1)];
        count += 1;
        seen.iter().map(|&(index, value)| Word { value, ..word(0, index) }).collect()
    });
    (captured.into_iter().map(|word| (word.index, word.value)).collect(), count)
}

#[test]
fn a_capture_is_what_two_looks_have_found() {
    assert_eq!(looks(&[&[]]), (vec![], 1));
    // The flag was seen before its data had been looked at.
    let (captured, count) = looks(&[&[(9, 1)], &[(3, 7), (9, 1)]]);
    assert_eq!((captured, count), (vec![(3, 7), (9, 1)], 3));
}

#[test]
fn a_stream_of_data_does_not_keep_a_flag_back() {
    let mut count = 0;
    let captured = capture(|| {
        count += 1;
        let data = (0..20).map(|index| Word { value: count, ..word(0, index) });
        data.chain([word(0, 5 * PAGE)]).collect()
    });
    assert_eq!(count as usize, LOOKS_MAX + 2);
    assert_eq!((captured[0].value, captured[20]), (count, word(0, 5 * PAGE)));
}

#[test]
fn a_word_that_changes_at_each_look_is_told_as_it_was_before_the_last() {
    let mut count = 0;
    let captured = capture(|| {
        count += 1;
        vec![Word { value: count, ..word(0, 1) }]
    });
    assert_eq!((captured[0].value, captured.len()), (count - 1, 1));
    assert_eq!(count as usize, 2 * LOOKS_MAX + 2);
}

/// Some of a page's data were changed back at the last look, so that the others look like flags; a
/// flag that is new there waits.
#[test]
fn data_that_have_become_few_are_told_beside_a_clock() {
    let mut count = 0;
    let looks = 2 * LOOKS_MAX + 2;
    let captured = capture(|| {
        count += 1;
        let data = 0..if count < looks { 20 } else { 3 };
        let data = data.map(|index| word(0, index));
        let clock = [Word { value: count as u64, ..word(0, 5 * PAGE) }];
        let new = (count == looks).then(|| word(0, 9 * PAGE));
        data.chain(clock).chain(new).collect()
    });
    let clock = Word { value: count as u64 - 1, ..word(0, 5 * PAGE) };
    assert_eq!((count, captured), (looks, vec![word(0, 0), word(0, 1), word(0, 2), clock]));
}

/// One thread writes data and then a flag; what is captured never has the flag of data that it
/// lacks.
#[test]
fn a_captured_flag_has_its_data() {
    const WORDS: usize = 4096;
    const ROUNDS: u64 = 1000;
    let mut bytes = vec![0_u64; WORDS];
    let memory = memory(&mut bytes, WORDS * WORD);
    let mut agreed = vec![0; WORDS * WORD];
    let mut copy = vec![0_u64; WORDS];
    let seen = AtomicU64::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for round in 1..=ROUNDS {
                let data = [WORDS - 1, 17, 900 + round as usize % 1000];
                data.into_iter().for_each(|index| memory.store(index, u8::MAX, round));
                memory.store(512, u8::MAX, round);
                // Whoever hands something over waits for the other side now and then.
                while round % 4 == 0 && seen.load(Ordering::Acquire) < round {
                    std::thread::yield_now();
                }
            }
        });
        while copy[512] < ROUNDS {
            for word in capture(|| look(&memory, &agreed)) {
                agree(&mut agreed, &word);
                copy[word.index as usize] = word.value;
            }
            let flag = copy[512];
            assert!(copy[17] >= flag && copy[WORDS - 1] >= flag, "{} {} {flag}", copy[17], copy[WORDS - 1]);
            seen.store(flag, Ordering::Release);
        }
    });
}
