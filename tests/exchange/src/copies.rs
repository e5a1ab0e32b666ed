//! Copies of rows of bytes: between host and device in both directions, and on the device.

use std::ffi::c_void;

use sluice_cuda::{CUdeviceptr, CUmemLocation, CUmemcpyAttributes, CUresult};

use crate::memory::Host;
use crate::program::{Program, Sent, ok};

pub(crate) const FUNCTIONS: crate::Calls = &[
    ("cuMemcpy", cuMemcpy),
    ("cuMemcpyAsync", cuMemcpyAsync),
    ("cuMemcpyHtoD_v2", cuMemcpyHtoD_v2),
    ("cuMemcpyHtoDAsync_v2", cuMemcpyHtoDAsync_v2),
    ("cuMemcpyDtoH_v2", cuMemcpyDtoH_v2),
    ("cuMemcpyDtoHAsync_v2", cuMemcpyDtoHAsync_v2),
    ("cuMemcpyDtoD_v2", cuMemcpyDtoD_v2),
    ("cuMemcpyPeer", cuMemcpyPeer),
    ("cuMemcpyPeerAsync", cuMemcpyPeerAsync),
    ("cuMemcpyBatchAsync", cuMemcpyBatchAsync),
    ("cuMemcpyBatchAsync_v2", cuMemcpyBatchAsync_v2),
    ("cuMemcpyWithAttributesAsync", cuMemcpyWithAttributesAsync),
];

/// Of a batch, at most.
const COPIES_MAX: u64 = 6;

/// One side is this program's, or both are the device's.
struct Copy {
    region: usize,
    kind: Kind,
    count: usize,
    dst: u64,
    src: u64,
}

enum Kind {
    Up { to: usize, host: Host },
    Down { from: usize, host: Host },
    Across { to: usize, from: usize },
}

#[derive(Clone, Copy)]
enum Way {
    Up,
    Down,
    Across,
}

impl Way {
    fn any(p: &mut Program) -> Way {
        [Way::Up, Way::Down, Way::Across][p.within(0, 2) as usize]
    }
}

impl Copy {
    fn draw(p: &mut Program, region: usize, way: Way) -> Copy {
        let count = p.size();
        let base = p.region(region).base;
        let (kind, dst, src) = match way {
            Way::Up => {
                let (to, host) = (p.place(count), p.host(region, count));
                let src = host.address() as u64;
                (Kind::Up { to, host }, base + to as u64, src)
            }
            Way::Down => {
                let (from, host) = (p.place(count), p.host(region, count));
                let dst = host.address() as u64;
                (Kind::Down { from, host }, dst, base + from as u64)
            }
            Way::Across => {
                let [to, from] = p.two_places([count; 2]);
                (Kind::Across { to, from }, base + to as u64, base + from as u64)
            }
        };
        Copy { region, kind, count, dst, src }
    }

    /// What the call that was made does.
    fn done(self, p: &mut Program, result: CUresult, asynchronous: bool, name: &str) {
        let Copy { region, kind, count, dst, src } = self;
        match kind {
            Kind::Up { to, host } => {
                ok(result);
                let region = p.region(region);
                region.bytes[to..to + count].copy_from_slice(&host.before);
                region.up(count);
            }
            Kind::Down { from, host } => {
                ok(result);
                let expected = p.region(region).bytes[from..from + count].to_vec();
                p.region(region).down(count);
                p.arrives(region, host, expected, asynchronous, name);
            }
            Kind::Across { to, from } => {
                p.region(region).bytes.copy_within(from..from + count, to);
                let mut sent = Sent::new("cuMemcpyDtoDAsync_v2");
                sent.value(dst);
                sent.value(src);
                sent.value(count);
                sent.number(p.region(region).number);
                p.check(sent, false, result, &[]);
            }
        }
    }
}

/// Calls a function that copies once.
fn copy(
    p: &mut Program,
    name: &'static str,
    way: Option<Way>,
    asynchronous: bool,
    call: impl FnOnce(&Program, &Copy, sluice_cuda::CUstream) -> CUresult,
) {
    let region = p.pick_region(asynchronous);
    p.look_or_fill(region);
    let way = way.unwrap_or_else(|| Way::any(p));
    let copy = Copy::draw(p, region, way);
    let stream = p.stream_of(region);
    let result = call(p, &copy, stream);
    copy.done(p, result, asynchronous, name);
}

fn cuMemcpy(p: &mut Program) {
    // SAFETY: both sides have as many bytes.
    copy(p, "cuMemcpy", None, false, |p, it, _| unsafe {
        p.cuda.cuMemcpy.expect("exported")(it.dst, it.src, it.count)
    });
}

fn cuMemcpyAsync(p: &mut Program) {
    // SAFETY: both sides have as many bytes; pinned memory is the stream's until it is waited for.
    copy(p, "cuMemcpyAsync", None, true, |p, it, stream| unsafe {
        p.cuda.cuMemcpyAsync.expect("exported")(it.dst, it.src, it.count, stream)
    });
}

fn cuMemcpyHtoD_v2(p: &mut Program) {
    // SAFETY: as above.
    copy(p, "cuMemcpyHtoD_v2", Some(Way::Up), false, |p, it, _| unsafe {
        p.cuda.cuMemcpyHtoD_v2.expect("exported")(it.dst, it.src as *const c_void, it.count)
    });
}

fn cuMemcpyHtoDAsync_v2(p: &mut Program) {
    // SAFETY: as above.
    copy(p, "cuMemcpyHtoDAsync_v2", Some(Way::Up), true, |p, it, stream| unsafe {
        p.cuda.cuMemcpyHtoDAsync_v2.expect("exported")(it.dst, it.src as *const c_void, it.count, stream)
    });
}

fn cuMemcpyDtoH_v2(p: &mut Program) {
    // SAFETY: as above.
    copy(p, "cuMemcpyDtoH_v2", Some(Way::Down), false, |p, it, _| unsafe {
        p.cuda.cuMemcpyDtoH_v2.expect("exported")(it.dst as *mut c_void, it.src, it.count)
    });
}

fn cuMemcpyDtoHAsync_v2(p: &mut Program) {
    // SAFETY: as above.
    copy(p, "cuMemcpyDtoHAsync_v2", Some(Way::Down), true, |p, it, stream| unsafe {
        p.cuda.cuMemcpyDtoHAsync_v2.expect("exported")(it.dst as *mut c_void, it.src, it.count, stream)
    });
}

fn cuMemcpyDtoD_v2(p: &mut Program) {
    // SAFETY: as above.
    copy(p, "cuMemcpyDtoD_v2", Some(Way::Across), false, |p, it, _| unsafe {
        p.cuda.cuMemcpyDtoD_v2.expect("exported")(it.dst, it.src, it.count)
    });
}

fn cuMemcpyPeer(p: &mut Program) {
    // SAFETY: as above; the context is the current one.
    copy(p, "cuMemcpyPeer", Some(Way::Across), false, |p, it, _| unsafe {
        p.cuda.cuMemcpyPeer.expect("exported")(it.dst, p.context, it.src, p.context, it.count)
    });
}

fn cuMemcpyPeerAsync(p: &mut Program) {
    // SAFETY: as above.
    copy(p, "cuMemcpyPeerAsync", Some(Way::Across), true, |p, it, stream| unsafe {
        p.cuda.cuMemcpyPeerAsync.expect("exported")(it.dst, p.context, it.src, p.context, it.count, stream)
    });
}

fn cuMemcpyWithAttributesAsync(p: &mut Program) {
    let mut attributes = attributes(p);
    // SAFETY: as above; the attributes outlive the call.
    copy(p, "cuMemcpyWithAttributesAsync", None, true, |p, it, stream| unsafe {
        p.cuda.cuMemcpyWithAttributesAsync.expect("exported")(
            it.dst,
            it.src,
            it.count,
            &mut attributes,
            stream,
        )
    });
}

fn cuMemcpyBatchAsync(p: &mut Program) {
    batch(p, true);
}

fn cuMemcpyBatchAsync_v2(p: &mut Program) {
    batch(p, false);
}

/// Any order of reading the source, and no hints.
fn attributes(p: &mut Program) -> CUmemcpyAttributes {
    let none = CUmemLocation::default();
    CUmemcpyAttributes {
        srcAccessOrder: p.within(1, 3) as u32,
        srcLocHint: none,
        dstLocHint: none,
        flags: p.within(0, 1) as u32,
    }
}

fn batch(p: &mut Program, tells_which_failed: bool) {
    let region = p.pick_region(true);
    p.look_or_fill(region);
    let count = p.within(1, COPIES_MAX) as usize;
    // CUDA may make them in any order. These are compared in theirs, in which the node gets them.
    let copies: Vec<Copy> = (0..count)
        .map(|_| {
            let way = Way::any(p);
            Copy::draw(p, region, way)
        })
        .collect();
    let list = |of: fn(&Copy) -> CUdeviceptr| copies.iter().map(of).collect::<Vec<_>>();
    let (mut dsts, mut srcs) = (list(|copy| copy.dst), list(|copy| copy.src));
    let mut sizes: Vec<usize> = copies.iter().map(|copy| copy.count).collect();
    let (mut attributes, mut first) = (attributes(p), 0_usize);
    let stream = p.stream_of(region);
    let (dsts, srcs, sizes) = (dsts.as_mut_ptr(), srcs.as_mut_ptr(), sizes.as_mut_ptr());
    // SAFETY: lists of `count`, and one attribute from the first copy on; sides as for single
    // copies.
    let result = unsafe {
        if tells_which_failed {
            let call = p.cuda.cuMemcpyBatchAsync.expect("exported");
            call(dsts, srcs, sizes, count, &mut attributes, &mut first, 1, &mut 0, stream)
        } else {
            let call = p.cuda.cuMemcpyBatchAsync_v2.expect("exported");
            call(dsts, srcs, sizes, count, &mut attributes, &mut first, 1, stream)
        }
    };
    for copy in copies {
        copy.done(p, result, true, "a batch of copies");
    }
}
