//! Which commands return at once.

use super::*;
use crate::malformed::stage::Stage;
use sluice_cuda::Fn;
use sluice_wire::{Command, FunctionId};

#[test]
fn questions_to_a_loaded_driver_are_for_others_while_host_functions_may_run() {
    let mut stage = Stage::new();
    let session = stage.session();
    let at_once = |session: &Session, op: Op| {
        let header = Header { kind: sluice_wire::Kind::Command, device: 0, op: op.0, lane: 1, sequence: 0 };
        returns_at_once(session, &Job { header, payload: Vec::new() })
    };
    let (query, submitted) = (Op::of(Fn::cuEventQuery), commands::Submitted::OP);
    for is_loaded in [false, true] {
        session.is_loaded = is_loaded;
        assert!(at_once(session, query) && at_once(session, submitted));
        assert!(session.host_calls.expect(7));
        assert_eq!(at_once(session, query), !is_loaded);
        assert!(at_once(session, submitted), "it makes no call");
        session.host_calls.forget(7);
    }
    assert!(at_once(session, query));
}

#[test]
fn what_is_only_queued_is_what_a_driver_of_ours_has_done_before() {
    use sluice_cuda::CUfunction;
    use sluice_wire::{Encode, FunctionInfo, ModuleId};
    let mut stage = Stage::new();
    let session = stage.session();
    let only_queued = |session: &Session, op: Op, first: FunctionId| {
        let header = Header { kind: sluice_wire::Kind::Command, device: 0, op: op.0, lane: 1, sequence: 0 };
        let mut payload = Vec::new();
        first.encode(&mut payload);
        is_only_queued(session, &Job { header, payload })
    };
    let (launch, record) = (commands::cuLaunchKernel::OP, commands::cuEventRecord::OP);
    let (known, unknown) = (FunctionId(7), FunctionId(8));
    let info = FunctionInfo { parameters: Vec::new(), attributes: Vec::new() };
    session.modules.add(ModuleId(6), (known, CUfunction(1)), &info);
    assert!(only_queued(session, record, known));
    assert!(!only_queued(session, launch, known), "it may have to be compiled");
    session.modules.check_parameters(known, 0).unwrap();
    assert!(only_queued(session, launch, known));
    assert!(!only_queued(session, launch, unknown));
    assert!(!only_queued(session, commands::cuMemcpyHtoDAsync_v2::OP, known));
    session.is_loaded = true;
    assert!(!only_queued(session, launch, known) && !only_queued(session, record, known));
}
