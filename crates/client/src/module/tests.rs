//! What is answered here, and what is asked of the node.

use sluice_transport::Stream;
use sluice_wire::{Encode, FrameDecoder, Header, Kind as FrameKind, Op};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

use super::*;
use crate::generated::stubs;
use crate::link::Link;

fn loaded() -> CUfunction {
    let (module, handle) = (context::mint(Kind::Module), context::mint(Kind::Function));
    let facts = Arc::new(facts::tests::none());
    let of = Subject::new(ImageHash([0; 32]), &[]);
    insert(module, Module::new(CUcontext::NULL, (facts, of), None, None));
    let layout = Layout::new(Vec::new()).unwrap();
    let (id, name) = (FunctionId(handle), c"kernel".to_owned());
    FUNCTIONS.insert(handle, Function::new(id, module, name, layout, HashMap::new(), None));
    CUfunction(handle as usize)
}

/// Answers questions with how many commands have come, and returns what these were when the
/// client is gone.
fn play(mut stream: UnixStream) -> Vec<Op> {
    let (mut decoder, mut seen) = (FrameDecoder::new(), Vec::new());
    loop {
        match stream.read(decoder.space(4096)).unwrap() {
            0 => return seen,
            count => decoder.received(count),
        }
        while let Some(frame) = decoder.next_frame().unwrap() {
            seen.push(Op(frame.header.op));
            if Op(frame.header.op) == Op::of(Fn::cuFuncSetAttribute) {
                continue;
            }
            let (mut reply, header) = (Vec::new(), Header { kind: FrameKind::Reply, ..frame.header });
            let answer = (0_i32, seen.len() as i32);
            header.frame(&mut reply, |out| (answer.0.encode(out), answer.1.encode(out)).1).unwrap();
            stream.write_all(&reply).unwrap();
        }
    }
}

#[test]
fn a_question_about_a_function_travels_once_until_the_function_is_changed() {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let worker = std::thread::spawn(|| play(theirs));
    let link = Link::new(Stream::from(ours), FrameDecoder::new(), (0, 0), None, None);
    let session =
        Session::new((0, sluice_wire::address::Endpoint::Tcp(String::new())), link, Vec::new(), 0..0);
    let handle = loaded();
    let blocks = |function, size| {
        let mut blocks = 0;
        // SAFETY: a place for the answer.
        unsafe {
            stubs::cuOccupancyMaxActiveBlocksPerMultiprocessor(&session, &mut blocks, function, size, 0)
        }
        .map(|()| blocks)
    };
    let set = |value| {
        let carveout = CUfunction_attribute::PREFERRED_SHARED_MEMORY_CARVEOUT;
        function(handle.0).unwrap().set_attribute(&session, carveout, value).unwrap();
    };
    let first = [128, 128, 256, 128].map(|size| blocks(handle, size).unwrap());
    assert_eq!(first, [1, 1, 2, 1]);
    set(50);
    // The change is the third command. To set what is set changes nothing.
    assert_eq!(blocks(handle, 128), Ok(4));
    set(50);
    assert_eq!(blocks(handle, 128), Ok(4));
    forget(function(handle.0).unwrap().module);
    assert_eq!(blocks(handle, 128), Err(CUresult::INVALID_HANDLE));
    drop(session);
    let (ask, change) =
        (Op::of(Fn::cuOccupancyMaxActiveBlocksPerMultiprocessor), Op::of(Fn::cuFuncSetAttribute));
    assert_eq!(worker.join().unwrap(), [ask, ask, change, ask]);
}
