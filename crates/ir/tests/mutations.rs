//! Damaged PTX: whatever it says, lowering gives a kernel or an error, and passes keep a kernel
//! well formed.
//!
//! Lines are dropped, doubled and moved, words exchanged. `SLUICE_MUTATIONS` asks for more than the
//! usual number, and `SLUICE_PTX_DIR` for other texts.

use std::path::{Path, PathBuf};

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use sluice_ir::analysis::{BlockShape, Shapes};
use sluice_ir::{lower, passes, verify};

/// Words that fit in many places of an instruction, and in few of them well.
const WORDS: [&str; 24] = [
    "%r1",
    "%r2",
    "%rd1",
    "%p1",
    "%h1",
    "%f1",
    "0",
    "-1",
    "0x7fffffff",
    "0xffffffffffffffff",
    "33",
    "0f3F800000",
    "%tid.x",
    "%clock64",
    "{%r1, %r2}",
    "_",
    ".u64",
    ".s16",
    ".f32",
    ".b128",
    ".v4",
    ".sat",
    ".wide",
    "@%p1 ret;",
];

#[derive(Clone, Debug)]
enum Mutation {
    Drop(usize),
    Double(usize),
    Swap(usize, usize),
    Word(usize, usize, usize),
}

fn mutation() -> impl Strategy<Value = Mutation> {
    prop_oneof![
        any::<usize>().prop_map(Mutation::Drop),
        any::<usize>().prop_map(Mutation::Double),
        any::<(usize, usize)>().prop_map(|(a, b)| Mutation::Swap(a, b)),
        any::<(usize, usize, usize)>().prop_map(|(line, at, word)| Mutation::Word(line, at, word)),
    ]
}

fn apply(lines: &mut Vec<String>, mutation: &Mutation) {
    let count = lines.len();
    match *mutation {
        Mutation::Drop(line) => {
            lines.remove(line % count);
        }
        Mutation::Double(line) => {
            let line = line % count;
            lines.insert(line, lines[line].clone());
        }
        Mutation::Swap(a, b) => lines.swap(a % count, b % count),
        Mutation::Word(line, at, word) => {
            let line = &mut lines[line % count];
            let mut words: Vec<String> = line.split_inclusive([' ', '.', ',']).map(str::to_owned).collect();
            if words.is_empty() {
                return;
            }
            let at = at % words.len();
            let end = if words[at].ends_with(',') { "," } else { " " };
            words[at] = format!("{}{end}", WORDS[word % WORDS.len()]);
            *line = words.concat();
        }
    }
}

fn texts() -> Vec<String> {
    let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/ptx");
    let directory = std::env::var_os("SLUICE_PTX_DIR").map_or(own, PathBuf::from);
    let mut paths: Vec<PathBuf> = std::fs::read_dir(directory)
        .expect("the directory of cases")
        .map(|entry| entry.expect("an entry").path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "ptx"))
        .collect();
    paths.sort();
    paths.into_iter().map(|path| std::fs::read_to_string(path).expect("a readable case")).collect()
}

#[test]
fn damaged_text_is_an_error_or_a_well_formed_kernel() {
    let texts = texts();
    let cases = std::env::var("SLUICE_MUTATIONS").ok().and_then(|count| count.parse().ok()).unwrap_or(300);
    let mut runner = TestRunner::new(Config { cases, failure_persistence: None, ..Config::default() });
    let strategy = (0..texts.len(), prop::collection::vec(mutation(), 1..4));
    let outcome = runner.run(&strategy, |(text, mutations)| {
        let mut lines: Vec<String> = texts[text].lines().map(str::to_owned).collect();
        mutations.iter().for_each(|mutation| apply(&mut lines, mutation));
        let Ok(module) = sluice_ptx::parse(lines.join("\n")) else { return Ok(()) };
        for function in module.functions.iter().filter(|function| function.is_entry) {
            let Ok(mut kernel) = lower::lower_kernel(&module, &function.name) else { continue };
            passes::pipeline(&mut kernel);
            prop_assert_eq!(verify::verify_scheduled(&kernel), Ok(()), "{}", kernel);
            Shapes::new(&kernel, BlockShape::Rows);
        }
        Ok(())
    });
    outcome.unwrap_or_else(|failure| panic!("{failure}"));
}
