//! What keeps a session from moving, by name.

use sluice_wire::HandleKind;

use crate::session::Session;

/// Kinds of objects that cannot be made anew elsewhere yet.
const KINDS: [(HandleKind, &str); 11] = [
    (HandleKind::Graph, "graphs"),
    (HandleKind::GraphNode, "nodes of graphs"),
    (HandleKind::GraphExec, "executable graphs"),
    (HandleKind::Array, "arrays"),
    (HandleKind::MipmappedArray, "mipmapped arrays"),
    (HandleKind::Physical, "memory that the program maps by itself (cuMemCreate)"),
    (HandleKind::UserObject, "user objects"),
    (HandleKind::GreenCtx, "green contexts"),
    (HandleKind::ResourceDesc, "resource descriptors"),
    (HandleKind::TexRef, "texture references"),
    (HandleKind::SurfRef, "surface references"),
];

/// Why the session cannot move now; nothing where it can.
pub(super) fn reasons(session: &Session, resumes: bool) -> Vec<String> {
    let mut reasons = Vec::new();
    if !resumes {
        let text = "its program is on the node's own machine, and such a connection cannot be taken up again (start it with \
                    SLUICE_SHARED_MEMORY=off)";
        reasons.push(text.to_owned());
    }
    if session.is_loaded {
        reasons.push("sessions move between software GPUs only".to_owned());
    }
    let held = KINDS.iter().filter(|(kind, _)| session.objects.count(*kind) > 0);
    reasons.extend(held.map(|(_, name)| format!("it holds {name}")));
    let has = [
        (session.arrays.has_objects(), "texture or surface objects"),
        (session.graphs.is_capturing(), "a stream that is being captured"),
        (session.green.has_resources(), "device resources (cuDeviceGetDevResource)"),
        (session.live.exists(), "memory that the program uses while kernels run"),
        (session.peers.has_any(), "connections to other nodes"),
        (session.shares_events(), "events that are shared with other processes"),
    ];
    reasons.extend(has.iter().filter(|(has, _)| *has).map(|(_, name)| format!("it has {name}")));
    reasons.extend(session.memory.unmovable().iter().map(|name| format!("it has memory that is {name}")));
    let has_heap = |ordinal| !session.is_loaded && sluice_softgpu::has_device_heap(ordinal);
    if session.devices.iter().any(|device| has_heap(device.ordinal)) {
        reasons.push("a kernel of it may allocate memory (device-side malloc)".to_owned());
    }
    reasons
}
