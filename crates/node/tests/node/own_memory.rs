//! Device memory that a session has without a call that names its size.

use sluice_cuda::CUresult;
use sluice_wire::commands;

use crate::raw::{Session, lease, request};
use crate::{MIB, TestNode, commit, synchronize};

const HEADER: &str = ".version 7.0\n.target sm_70\n.address_size 64\n";

/// The size of a module's variable, which has a place from now on.
pub(crate) fn variable(session: &mut Session, mib: u64) -> Result<u64, CUresult> {
    let text = format!("{HEADER}.visible .global .align 16 .b8 x[{}];", mib * MIB);
    let hmod = session.load(&text);
    let reply: commands::cuModuleGetGlobal_v2Reply =
        session.read(&commands::cuModuleGetGlobal_v2 { hmod, name: c"x" })?;
    Ok(reply.bytes)
}

/// Launches a block of 32 threads that have so much local memory each.
fn with_local(session: &mut Session, kib: u64) -> Result<(), CUresult> {
    let text = format!(
        "{HEADER}.visible .entry k(.param .u64 at) {{
            .local .align 8 .b8 frame[{}]; .reg .b64 %a<4>;
            ld.param.u64 %a1, [at]; mov.u64 %a2, frame; cvta.local.u64 %a2, %a2; add.u64 %a2, %a2, %a1;
            st.u64 [%a2], %a1; ret;
        }}",
        kib << 10
    );
    let module = session.load(&text);
    let function = session.function(module, c"k");
    session.launch(function, 1, &[64]);
    synchronize(session)
}

pub(crate) fn what_a_program_loads_and_launches_counts_towards_its_lease(node: &TestNode) {
    let lease = lease(&node.address, request(500_000, 64 * MIB));
    let mut sessions: Vec<Session> =
        (0..2).map(|_| Session::open(&node.address, lease.granted.token)).collect();
    let used = || node.status().gpus[0].memory_used;
    let first = &mut sessions[0];
    assert_eq!(variable(first, 512), Err(CUresult::OUT_OF_MEMORY));
    assert_eq!(used(), 0, "what was refused is not used");
    assert_eq!(variable(first, 24), Ok(24 * MIB));
    assert_eq!(used(), 24 * MIB);
    // 512 KiB of each of 32 threads,
    with_local(first, 512).unwrap();
    assert_eq!(used(), 40 * MIB);
    // which the next kernel uses as well.
    with_local(first, 256).unwrap();
    assert_eq!(used(), 40 * MIB);
    // All sessions of the lease have what is left.
    let second = &mut sessions[1];
    assert_eq!(variable(second, 32), Err(CUresult::OUT_OF_MEMORY));
    assert_eq!(with_local(second, 512).and_then(|()| with_local(second, 512)), Ok(()));
    assert_eq!(used(), 56 * MIB);
    assert_eq!(commit(second, 0, 16 * MIB), Err(CUresult::OUT_OF_MEMORY));
    drop((sessions, lease));
    node.wait_until_idle();
}
