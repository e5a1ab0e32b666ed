//! Several texts become one: which definition is taken, what is kept apart, what is refused.

use sluice_ptx::ast::Linkage;
use sluice_ptx::link::{Input, LinkError, link};
use sluice_ptx::{ModuleIndex, parse};

const HEADER: &str = ".version 8.0\n.target sm_80\n.address_size 64\n";

fn linked(texts: &[&str]) -> Result<String, LinkError> {
    let texts: Vec<String> = texts.iter().map(|text| format!("{HEADER}{text}\0")).collect();
    let names: Vec<String> = (1..=texts.len()).map(|number| format!("file {number}")).collect();
    let inputs: Vec<_> =
        names.iter().zip(&texts).map(|(name, text)| Input { name, text: text.as_bytes() }).collect();
    link(&inputs).map(|text| String::from_utf8(text).expect("text"))
}

/// What the texts are joined to, without the header and with blanks as they are.
fn check(texts: &[&str], expected: &str) {
    let text = linked(texts).expect("they fit");
    let body = text.strip_prefix(HEADER).expect("the header, once").trim_start();
    assert_eq!(body, expected.trim_start());
    parse(&text).expect("PTX again");
}

fn check_refused(texts: &[&str], message: &str) {
    assert_eq!(linked(texts).expect_err("an error").to_string(), message);
}

#[test]
fn a_declaration_gives_way_to_the_definition() {
    check(
        &[
            ".extern .func g(.param .b32 a);\n.visible .entry f() { ret; } // the end",
            ".visible .func g(.param .b32 a) { ret; }",
        ],
        "
.visible .func g(.param .b32 a);
.visible .entry f() { ret; } // the end
.visible .func g(.param .b32 a) { ret; }
",
    );
    check(
        &[
            ".extern .global .u32 x[];",
            ".visible .global .align 4 .u32 x[2] = {1, 2};",
            ".extern .global .u32 x[];",
        ],
        ".visible .global .align 4 .u32 x[2] = {1, 2};\n",
    );
}

#[test]
fn texts_without_a_target_stay_without_one() {
    let inputs = ["//", "// nothing"].map(|text| Input { name: "a file", text: text.as_bytes() });
    parse(link(&inputs).expect("they fit")).expect("PTX again");
}

#[test]
fn what_nobody_defines_stays_declared_once() {
    let printf = ".extern .func (.param .b32 r) vprintf(.param .b64 a, .param .b64 b);";
    check(&[printf, printf], &format!("{printf}\n"));
    // Dynamic shared memory is aligned as the one who asks for most wants it.
    check(
        &[
            ".extern .shared .align 4 .b8 s[];",
            ".extern .shared .align 16 .b8 s[];",
            ".extern .shared .b8 s[];",
        ],
        ".extern .shared .align 16 .b8 s[];\n",
    );
}

#[test]
fn strong_is_taken_before_weak_and_the_first_weak_before_others() {
    let (weak1, weak2) = (".weak .func g() { exit; }", ".weak .func g() { ret; }");
    check(&[weak1, weak2], &format!("{weak1}\n"));
    let strong = ".visible .func g() { trap; }";
    check(&[weak1, strong, weak2], &format!("{strong}\n"));
    check(&[strong, weak1], &format!("{strong}\n"));
    check(
        &[".common .global .u32 x;", ".common .global .u32 x[4];", ".common .global .u32 x[2];"],
        ".common .global .u32 x[4];\n",
    );
    check(&[".common .global .u32 x[4];", ".weak .global .u32 x;"], ".weak .global .u32 x;\n");
}

#[test]
fn two_strong_definitions_are_refused_with_their_places() {
    let message = |name: &str, first: u32, second: u32| {
        format!(
            "`{name}` is defined in file {first} and in file {second}: make one of them .weak, or leave out .visible \
             where it is meant for its own file"
        )
    };
    let g = ".visible .func g() { ret; }";
    check_refused(&[g, "", g], &message("g", 1, 3));
    check_refused(&[".entry k() { ret; }", ".entry k() { ret; }"], &message("k", 1, 2));
    let x = ".visible .global .u32 x;";
    check_refused(&[x, x], &message("x", 1, 2));
}

#[test]
fn what_texts_do_not_share_is_kept_apart() {
    check(
        &[
            ".global .u32 x = 1;\n.func g() { prefetch.global.L1 [x+0]; ret; }",
            ".global .u32 x = 2;\n.global .u64 p = generic(x);\n.func g() { ret; }\n.entry k() { call g, (); }",
            ".visible .global .u32 other;",
        ],
        "
.global .u32 x = 1;
.global .u32 x$1 = 2;
.global .u64 p = generic(x$1);
.visible .global .u32 other;
.func g() { prefetch.global.L1 [x+0]; ret; }
.func g$1() { ret; }
.entry k() { call g$1, (); }
",
    );
    // One's own also gives way to what others share.
    check(
        &[".global .u32 x;", ".visible .global .u32 x;", ".extern .global .u32 x;"],
        ".global .u32 x$0;\n.visible .global .u32 x;\n",
    );
}

#[test]
fn an_alias_defines_its_name() {
    check(
        &[
            ".extern .func f();\n.entry k() { call f, (); }",
            ".visible .func f();\n.func g() { ret; }\n.alias f, g;",
            ".weak .func f() { ret; }",
        ],
        "
.visible .func f();
.entry k() { call f, (); }
.func g() { ret; }
.alias f, g;
",
    );
}

#[test]
fn kinds_and_mistakes_are_refused() {
    check_refused(
        &[".visible .func g() { ret; }", ".extern .global .u32 g;"],
        "`g` is a function in file 1 and a variable in file 2",
    );
    check_refused(&["", ".bogus"], "file 2: PTX line 4, column 1: an unknown directive, at `.bogus`");
    check_refused(
        &[".visible .global .u32 x, y;", ".weak .global .u32 z, y;"],
        "file 2: `y` shares its declaration with variables of another fate: declare it by itself",
    );
    assert_eq!(link(&[]), Err(LinkError::NoInput));
}

#[test]
fn the_header_is_that_of_the_newest() {
    let old = ".version 7.0\n.target sm_70\n.address_size 64\n.visible .func a() { ret; }\n";
    let new =
        "// made today\n.version 8.1\n.target sm_90a, debug\n.address_size 64\n.weak .func b() { ret; }\n";
    let inputs = [old, new].map(|text| Input { name: "text", text: text.as_bytes() });
    let index = ModuleIndex::new(link(&inputs).expect("they fit")).expect("PTX");
    assert_eq!((index.version(), index.target()), ((8, 1), &["sm_90a".into(), "debug".into()][..]));
    assert_eq!(index.function("b").map(|function| function.linkage), Some(Linkage::Weak));
    let narrow = Input { name: "narrow", text: b".version 7.0\n.target sm_70\n.address_size 32\n" };
    let error = link(&[inputs[0], narrow]).expect_err("an error").to_string();
    assert_eq!(error, "text has 64-bit addresses and narrow 32-bit ones");
}
