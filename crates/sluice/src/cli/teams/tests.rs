//! What is said to a server.

use super::bill::Micro;

#[test]
fn amounts_are_read_exactly() {
    for (text, micro) in [("1", 1_000_000), ("-12.50", -12_500_000), ("0.000001", 1), ("-0.5", -500_000)] {
        assert_eq!(text.parse(), Ok(Micro(micro)), "{text}");
    }
    for text in ["", "-", ".5", "1.", "1.0000001", "1e3", "--1", "99999999999999"] {
        assert!(text.parse::<Micro>().is_err(), "{text}");
    }
}
