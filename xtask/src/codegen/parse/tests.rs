use super::*;

fn one(line: &str) -> Function {
    declarations(line).unwrap().functions.remove(0)
}

#[test]
fn a_declaration_has_kinds_class_and_versions() {
    let f = one(
        "cuX_v2(a: dptr[N * 4], N: usize, s: Stream, e: new Event, p: out? i32) waiting, call @3020 ptsz@7000",
    );
    let kinds: Vec<&Kind> = f.parameters.as_ref().unwrap().iter().map(|p| &p.kind).collect();
    assert_eq!(kinds[0], &Kind::Address(Length::Product(vec!["N".into(), "4".into()])));
    assert_eq!(kinds[1], &Kind::Value("usize".into()));
    assert_eq!(kinds[2], &Kind::Use("Stream".into()));
    assert_eq!(kinds[3], &Kind::New("Event".into()));
    assert_eq!(kinds[4], &Kind::Out { of: "i32".into(), optional: true });
    assert_eq!((f.symbol(), f.version, f.variant.as_ref().unwrap().version), ("cuX", Some(3020), Some(7000)));
}

#[test]
fn rows_have_a_count_a_length_and_a_pitch() {
    let f = one("cuX(d: dptr[H of W * 4 by P], P: usize, W: usize, H: usize) queued, call, lasting @3020");
    let rows = Length::Rows {
        count: vec!["H".into()],
        length: vec!["W".into(), "4".into()],
        pitch: vec!["P".into()],
    };
    assert_eq!(f.parameters.unwrap()[0].kind, Kind::Address(rows));
}

#[test]
fn lengths_may_be_less_than_a_parameter() {
    let f = one("cuX(m: inout Map, s: in u64[rank - 1], rank: u32) waiting, call @3020");
    let parameters = f.parameters.as_ref().unwrap();
    assert_eq!(parameters[0].kind, Kind::InOut("Map".into()));
    assert_eq!(parameters[1].kind, Kind::InArray("u64".into(), Length::Less("rank".into(), 1)));
    assert_eq!((f.fields().sends.len(), f.fields().replies.len()), (3, 1));
}

#[test]
fn numbers_may_be_limited() {
    let f = one("cuX(a: u32 & 0x3, b: u32 in 1..5, c: u32) queued, call, lasting @3020");
    let limits: Vec<_> = f.parameters.iter().flatten().map(|p| (&p.kind, p.limit)).collect();
    let number = Kind::Value("u32".into());
    let expected = [Some(Limit::Bits(3)), Some(Limit::Range(1, 5)), None];
    assert_eq!(limits, expected.map(|limit| (&number, limit)));
}

#[test]
fn an_indented_line_continues_the_one_before() {
    let f = one(
        "cuX(p: *const c_void) custom waiting, call @2000\n    sends (a: u64) replies (b: bytes)\n    by hand",
    );
    let fields = f.fields();
    assert_eq!(fields.sends, [("a".to_string(), "u64".to_string())]);
    assert_eq!(fields.replies, [("b".to_string(), "bytes".to_string())]);
}

#[test]
fn what_is_constant_waits_and_may_be_guarded() {
    let f = one("cuX(n: out i32, f: Function) waiting constant guarded, call @6050");
    assert_eq!((&f.class, f.is_constant, f.is_guarded), (&Class::Waiting, true, true));
    assert!(!one("cuX(n: out i32, f: Function) waiting, call @6050").is_constant);
}

#[test]
fn what_travels_has_a_kind() {
    let kind = |text: &str| one(text).kind.map(|kind| (kind.effect, kind.is_transient));
    assert_eq!(kind("cuX() custom queued, work, transient @1 by hand"), Some((Effect::Work, Some(true))));
    assert_eq!(kind("cuX() waiting guarded, quick @1"), Some((Effect::Quick, None)));
    assert_eq!(kind("cuX() absent \"a reason, and more\" @1"), None);
}

#[test]
fn a_delegate_is_a_call_of_the_worker() {
    let f = one("cuX(n: u32) queued kept, call, lasting @1\n    by arrays::make(&n, Claim::Asked, command)");
    let delegate = f.delegate.unwrap();
    assert_eq!((delegate.path.as_str(), delegate.arguments.len()), ("arrays::make", 3));
    assert_eq!(delegate.fields().collect::<Vec<_>>(), ["n"]);
    assert!(one("cuX() queued kept, call, lasting @1 by hand").delegate.is_none());
}

#[test]
fn mistakes_are_found() {
    for (text, why) in [
        ("cuX(p: *mut u8) queued, call, lasting @1", "plain pointer"),
        ("cuX() local @1\ncuX() local @1", "twice"),
        ("cuX() custom via cuY @1", "travels"),
        ("cuX(n: out i32) queued, call, lasting @1", "wait"),
        ("cuX() queued constant, call, lasting @1", "only `waiting`"),
        ("cuX(f: Function, g: Function) waiting constant, call @1", "one function"),
        ("cuX() soon @1", "no class"),
        ("cuX() local", "version"),
        ("cuX() queued @1", "cuX needs its kind"),
        ("cuX() queued, call @1", "cuX is queued: after `, call` it needs"),
        ("cuX() queued, fast, lasting @1", "not `fast, lasting`"),
        ("cuX() waiting, call, lasting @1", "cuX waits"),
        ("cuX() queued, quick, lasting @1", "commands that wait"),
        ("cuX() local, call @1", "does not travel"),
        ("message X queued sends ()", "X needs its kind"),
        ("cuX() custom queued, call, lasting @1", "cuX is executed by the worker's own code"),
        ("message X queued, call, lasting sends ()", "X is executed by the worker's own code"),
        ("cuX() queued, call, lasting @1 by hand", "only a custom or kept command"),
        ("cuX() queued kept, call, lasting @1 by foot", "neither `by hand`"),
        ("cuX() queued kept, call, lasting @1 by foot()", "no path"),
        ("cuX() queued kept, call, lasting @1 by a::b(c)", "no field `c`"),
        ("cuX() queued kept, call, lasting @1 by a::b(reply)", "no answer"),
    ] {
        let error = format!("{:#}", declarations(text).expect_err(text));
        assert!(error.contains(why), "{text}: {error}");
    }
}
