//! What drivers do that are loaded, and ours do not.

use sluice_wire::{commands, decode};

use crate::host_memory_tests::say;
use crate::malformed::stage::Stage;

#[test]
fn no_more_memory_is_free_than_the_card_has() {
    let mut stage = Stage::new();
    let free = |stage: &Stage| {
        let reply = say(stage, &commands::cuMemGetInfo_v2 {}).unwrap();
        decode::<commands::cuMemGetInfo_v2Reply>(&reply).unwrap().free
    };
    let (mut on_card, mut total) = (0, 0);
    stage.driver();
    // SAFETY: a context is current, and the driver writes two sizes to locals.
    let asked = unsafe { hostile_driver::inner().cuMemGetInfo_v2.unwrap()(&mut on_card, &mut total) };
    assert!(asked.is_success());
    let held = stage.session().budget.held(0);
    assert!(held > 0, "what the client may use unasked is taken from the card, and still free to it");

    let of_lease = free(&stage);
    stage.session().is_loaded = true;
    assert_eq!(free(&stage), of_lease, "the card has more than the lease");
    stage.session().devices[0].memory = u64::MAX / 2;
    assert_eq!(free(&stage), on_card as u64 + held);
    stage.session().is_loaded = false;
    assert_eq!(free(&stage), u64::MAX / 2, "our own drivers have what they lend");
}
