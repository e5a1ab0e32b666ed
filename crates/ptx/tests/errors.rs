//! What is wrong with a text, and where; and that no text whatever makes the parser panic.

use proptest::prelude::*;
use sluice_ptx::{ModuleIndex, parse};

fn check(text: &str, message: &str) {
    let error = parse(text).expect_err("an error");
    assert_eq!(error.to_string(), message, "for {text:?}");
}

/// Checks the error for a statement in a function, which begins at line 1, column 12.
fn check_in_body(statement: &str, message: &str) {
    check(&format!(".func f {{  {statement} }}"), message);
}

#[test]
fn errors_say_what_and_where() {
    check("\n  bogus", "PTX line 2, column 3: expected a directive, at `bogus`");
    check(".global .b8 x", "PTX line 1, column 14: expected `;`, at the end of the text");
    check(".version 8;", "PTX line 1, column 10: not a number that PTX can write, at `8;`");
    check(".bogus 8;", "PTX line 1, column 1: an unknown directive, at `.bogus 8;`");
    check("/* for ever", "PTX line 1, column 1: a comment or string without an end, at `/* for ever`");
    check(".global .b8 \u{fc};", "PTX line 1, column 13: a byte that no PTX token begins with, at `ü;`");
    check(
        ".global .b8 x[2] = {1, 2, 3};",
        "PTX line 1, column 27: an initialiser with more elements than its variable, at `3};`",
    );
    check(
        ".global .u32 x = 1.5;",
        "PTX line 1, column 18: an initialiser that its variable's type cannot hold, at `1.5;`",
    );
    check(
        ".global .u32 x = 1/0;",
        "PTX line 1, column 19: division by zero in a constant expression, at `/0;`",
    );
    check(
        ".global .align 3 .u32 x;",
        "PTX line 1, column 16: a number out of range for an alignment, at `3 .u32 x;`",
    );
    check(
        ".entry f(.param .u64 a) {",
        "PTX line 1, column 26: expected a statement or `}`, at the end of the text",
    );
}

#[test]
fn errors_in_bodies_name_what_is_missing() {
    check_in_body("bra nowhere;", "PTX line 1, column 16: `nowhere` is not declared here, at `nowhere; }`");
    check_in_body("@p ret;", "PTX line 1, column 13: `p` is not declared here, at `p ret; }`");
    check_in_body("mov.u32 %r1, 0;", "PTX line 1, column 20: `%r1` is not declared here, at `%r1, 0; }`");
    check_in_body(
        ".reg .b32 a; .reg .b32 a;",
        "PTX line 1, column 36: `a` is declared twice in one scope, at `; }`",
    );
    check_in_body("add.u32 1, 2", "PTX line 1, column 25: expected `,`, at `}`");
}

#[test]
fn a_number_in_a_text_never_sizes_memory() {
    let huge = [
        ".global .b8 x[2][1000000000000] = {{1}, {2}};",
        ".global .b8 x[1000000000000][1000000000000];",
        ".entry f(.param .b8 a[9223372036854775807], .param .b8 b[4]) { ret; }",
    ];
    for text in huge {
        assert!(parse(text).is_err(), "{text}");
    }
    let module =
        parse(".func f { .reg .b32 %r<4000000000>; mov.b32 %r3999999999, 0; ret; }").expect("a module");
    assert_eq!(module.functions[0].body.as_ref().map(|body| body.registers.len()), Some(1));
    let nested = format!(".func f {}", "{".repeat(100_000));
    assert!(parse(&nested).is_err());
    for open in ["(", "-", "~", "{", "["] {
        assert!(parse(format!(".func f {{ add {}", open.repeat(100_000))).is_err());
        assert!(parse(format!(".global .b8 x[1] = {}", open.repeat(100_000))).is_err());
    }
}

/// Both readers, and every function through the index: errors are welcome, panics are not.
fn read(text: &[u8]) {
    let _ = parse(text);
    if let Ok(index) = ModuleIndex::new(text) {
        for function in index.functions() {
            let _ = index.closure(&function.name);
        }
        for variable in index.variables() {
            let _ = index.parse_variable(&variable.name);
        }
    }
}

const VALID: [&str; 3] =
    [include_str!("ptx/saxpy.ptx"), include_str!("ptx/calls.ptx"), include_str!("ptx/operands.ptx")];

proptest! {
    #[test]
    fn random_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        read(&bytes);
    }

    #[test]
    fn random_words_never_panic(words in proptest::collection::vec(proptest::sample::select(
        vec![".entry", ".func", "f", "(", ")", "{", "}", ".param", ".reg", ".b32", ".u64", "%r", "<", ">", "1", "[", "]", ",", ";",
             "=", ".global", ".align", "@", "!", "%p", "ret", "call", "bra", ":", "x", "+", "-", "0f00000000", "_", "|", ".v4",
             ".branchtargets", ".callprototype", "generic", "0xff", ".alias", ".loc", "\"", "//", "/*", "\n", "%tid", ".x"]), 0..60)) {
        read(words.join(" ").as_bytes());
    }

    #[test]
    fn mutated_modules_never_panic(which in 0..3usize, edits in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>(), 0..4u8), 1..8)) {
        let mut text = VALID[which].as_bytes().to_vec();
        for (at, byte, kind) in edits {
            if text.is_empty() {
                break;
            }
            let at = at.index(text.len());
            match kind {
                0 => text[at] = byte,
                1 => { text.remove(at); }
                2 => text.insert(at, byte),
                _ => text.truncate(at),
            }
        }
        read(&text);
    }
}

#[test]
fn an_entry_has_48_kib_of_static_shared_memory() {
    let checked = |kind: &str, bytes: u32| {
        let text = format!(
            ".version 8.0 .target sm_80 .address_size 64\n.visible {kind} f() {{ .shared .b8 x[{bytes}]; ret; }}"
        );
        ModuleIndex::new(text.into_bytes()).expect("an index").check(1)
    };
    assert_eq!(checked(".entry", 48 << 10), Ok(()));
    let error = checked(".entry", (48 << 10) + 1).expect_err("too much");
    assert_eq!(
        error.to_string(),
        "PTX line 2, column 1: uses too much shared data (0xc001 bytes, 0xc000 max), at `f`"
    );
    // What a function declares is its callers', which may be none.
    assert_eq!(checked(".func", 64 << 10), Ok(()));
}
