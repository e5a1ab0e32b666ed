//! Sections of pages, found and replaced.

use super::*;

#[test]
fn a_section_is_replaced_and_the_rest_stays() {
    let text = "prose\n<!-- a -->\nold\n<!-- /a -->\nmore\n";
    let replaced = replace_section(text, "a", "new\n").expect("a section");
    assert_eq!(replaced, "prose\n<!-- a -->\nnew\n<!-- /a -->\nmore\n");
    assert!(replace_section(text, "b", "new\n").is_err());
}

#[test]
fn figures_are_lines() {
    assert_eq!(figures("x_", "a 1.5\nb 2\n").expect("figures")["x_a"], 1.5);
    assert!(figures("", "nonsense").is_err());
    assert_eq!(spread(vec![3.0, 1.0, 200.0]).as_deref(), Some("3.00 [1.00, 200]"));
}

#[test]
fn every_section_has_a_place_on_a_page() {
    for name in SECTIONS.iter().map(|section| section.name).chain([
        blas::NAME,
        far::NAME,
        images::NAME,
        iq::NAME,
        iq::ESTIMATES,
        iq::VALUE,
        KUBERNETES,
        links::NAME,
        lupine::NAME,
        packed::NAME,
        remoting::NAME,
        sanitizer::NAME,
        scrapes::NAME,
        steps::NAME,
        stored::NAME,
        tiers::NAME,
        tiers::LOADED,
        web::NAME,
        crate::fuzz::SECTION,
    ]) {
        assert!(page_of(name).is_ok(), "{name}");
    }
}
