//! What kind of command one is: whether it waits, gives the GPU work, may hold a stream, may be
//! refused without harm.
//!
//! Families are known by their names: a function that joins the list joins its family.

use sluice_cuda::Fn;
use sluice_wire::{Command, EventId, Op, Target, commands, for_each_command};

/// A frame that lacks at least this number of bytes is read on its own.
pub(crate) const BULK_MIN: usize = 64 << 10;
/// Bytes before the data of a copy to the device: address, stream, and the number of bytes.
pub(crate) const COPY_FIELDS: usize = 20;

/// Whether a command is answered.
pub(crate) fn waits(op: Op) -> bool {
    WAITS[op.0 as usize]
}

static WAITS: [bool; 1 << 16] = {
    let mut waits = [false; 1 << 16];
    macro_rules! note {
        ($($name:ident)*) => {
            $(waits[<commands::$name as Command>::OP.0 as usize] = <commands::$name as Command>::WAITS;)*
        };
    }
    for_each_command!(note);
    waits
};

/// Whether a waiting command can take longer than a look at a table, and nothing that comes after
/// it builds on it.
pub(crate) fn may_block(op: Op) -> bool {
    waits(op) && !is_quick(op) && ![commands::ModuleLoadAhead::OP, commands::EventWatch::OP].contains(&op)
}

/// Whether a waiting command is a question that every driver answers at once.
pub(crate) fn is_quick(op: Op) -> bool {
    op == commands::Submitted::OP
        || matches!(
            op.target(),
            Some(Target::Driver(
                Fn::cuEventQuery
                    | Fn::cuStreamQuery
                    | Fn::cuEventElapsedTime
                    | Fn::cuEventElapsedTime_v2
                    | Fn::cuOccupancyMaxActiveBlocksPerMultiprocessor
                    | Fn::cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags
                    | Fn::cuOccupancyAvailableDynamicSMemPerBlock
            ))
        )
}

/// Whether a stream of the driver waits for this command: what stands before it may itself wait for
/// that stream.
pub(crate) fn frees_a_stream(op: Op) -> bool {
    [commands::HostCallDone::OP, commands::NodeDataPut::OP, commands::NodeDataGet::OP].contains(&op)
}

/// Whether a command gives the GPU work, which needs the turn.
pub(crate) fn gives_work(op: Op) -> bool {
    GIVES_WORK[op.0 as usize]
}

/// Copies, fills and launches, known by their names: a function that joins the list joins its
/// family.
static GIVES_WORK: [bool; 1 << 16] = {
    let mut gives_work = [false; 1 << 16];
    macro_rules! note {
        ($($name:ident)*) => {
            $(gives_work[<commands::$name as Command>::OP.0 as usize] = is_work(stringify!($name));)*
        };
    }
    for_each_command!(note);
    gives_work
};

const fn is_work(name: &str) -> bool {
    is_of(
        name,
        &[
            "cuMemcpy",
            "cuMemset",
            "cuMemMapArray",
            "cuLaunchKernel",
            "cuLaunchCooperative",
            "cuGraphLaunch",
            "Mirror",
        ],
    )
}

/// Whether a queued command that is no work may keep its stream from continuing. A wait for an
/// event does where that is another process's, which the session knows.
pub(crate) fn may_hold(op: Op) -> bool {
    matches!(
        op.target(),
        Some(Target::Driver(
            Fn::cuStreamWaitValue32
                | Fn::cuStreamWaitValue32_v2
                | Fn::cuStreamWaitValue64
                | Fn::cuStreamWaitValue64_v2
        ))
    )
}

/// Whether a queued command gives the device nothing to do.
pub(crate) fn is_bookkeeping(op: Op) -> bool {
    [commands::MemoryCommitAllowed::OP, commands::PhysicalCreateAllowed::OP, commands::ArrayCreateAllowed::OP]
        .contains(&op)
}

/// Whether a queued command is a large copy to the device.
pub(crate) fn is_large_copy(op: Op, payload: &[u8]) -> bool {
    op == commands::cuMemcpyHtoDAsync_v2::OP && payload.len() >= COPY_FIELDS + BULK_MIN
}

/// Whether a waiting command enters the gate where it is executed, for a part of the time that it
/// takes.
pub(crate) fn enters_itself(op: Op) -> bool {
    op == commands::cuMemcpyDtoH_v2::OP
}

/// Whether a queued command that was refused is as good as never sent: no later one of an honest
/// client takes for granted what it would have made or changed.
pub(crate) fn leaves_nothing(op: Op) -> bool {
    LEAVES_NOTHING[op.0 as usize]
}

static LEAVES_NOTHING: [bool; 1 << 16] = {
    let mut leaves_nothing = [false; 1 << 16];
    macro_rules! note {
        ($($name:ident)*) => {
            $(leaves_nothing[<commands::$name as Command>::OP.0 as usize] =
                !<commands::$name as Command>::WAITS && is_passing(stringify!($name));)*
        };
    }
    for_each_command!(note);
    leaves_nothing
};

/// Work, its order, settings, and ends of what no command names any more. Not among them: what is
/// made or mapped under an id or address of the client's, its end where the client uses the address
/// again, the begin of a capture, and data of the session's own.
const fn is_passing(name: &str) -> bool {
    is_of(
        name,
        &[
            "cuMemcpy",
            "cuMemset",
            "cuLaunch",
            "cuGraphLaunch",
            "cuGraphUpload",
            "cuEventRecord",
            "cuCtxRecordEvent",
            "cuGreenCtxRecordEvent",
            "cuStreamWait",
            "cuCtxWaitEvent",
            "cuGreenCtxWaitEvent",
            "cuStreamWriteValue",
            "cuStreamCopyAttributes",
            "cuCtxSetLimit",
            "cuFuncSetAttribute",
            "cuMemFree",
            "cuModuleUnload",
            "FunctionNamed",
            "cuStreamDestroy",
            "cuEventDestroy",
            "cuGraphExecDestroy",
            "cuArrayDestroy",
            "cuMipmappedArrayDestroy",
            "cuTexObjectDestroy",
            "cuSurfObjectDestroy",
        ],
    )
}

/// What the client expects to come for a queued command.
pub(crate) fn ticket_of(op: Op, payload: &[u8]) -> u64 {
    let tickets = [
        commands::cuMemcpyDtoHAsync_v2::OP,
        commands::cuMemcpyAtoHAsync_v2::OP,
        commands::cuLaunchHostFunc::OP,
    ];
    // It is the first field of each.
    let ticket = payload.first_chunk().filter(|_| tickets.contains(&op));
    ticket.map_or(0, |ticket| u64::from_le_bytes(*ticket))
}

/// What a stream's record is of.
pub(crate) fn recorded_event(op: Op, payload: &[u8]) -> Option<EventId> {
    let is_one = [commands::cuEventRecord::OP, commands::cuEventRecordWithFlags::OP].contains(&op);
    // It is the first field of both.
    let event = payload.first_chunk().filter(|_| is_one)?;
    Some(EventId(u64::from_le_bytes(*event)))
}

const fn is_of(name: &str, families: &[&str]) -> bool {
    let mut i = 0;
    while i < families.len() {
        if starts_with(name.as_bytes(), families[i].as_bytes()) {
            return true;
        }
        i += 1;
    }
    false
}

const fn starts_with(text: &[u8], start: &[u8]) -> bool {
    let mut i = 0;
    while i < start.len() {
        if i == text.len() || text[i] != start[i] {
            return false;
        }
        i += 1;
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_is_classified_as_declared() {
        assert!(waits(Op::of(Fn::cuStreamSynchronize)) && may_block(Op::of(Fn::cuStreamSynchronize)));
        assert!(waits(Op::of(Fn::cuEventQuery)) && !may_block(Op::of(Fn::cuEventQuery)));
        assert!(!waits(Op::of(Fn::cuLaunchKernel)) && gives_work(Op::of(Fn::cuLaunchKernel)));
        assert!(gives_work(Op::of(Fn::cuMemcpyDtoH_v2)) && gives_work(Op::of(Fn::cuMemsetD8Async)));
        assert!(!gives_work(Op::of(Fn::cuLaunchHostFunc)) && !gives_work(Op::of(Fn::cuEventRecord)));
        assert!(frees_a_stream(commands::HostCallDone::OP) && !frees_a_stream(Op::of(Fn::cuLaunchHostFunc)));
        assert!(!waits(Op(u16::MAX)));
        for (leaves, ops) in [
            (
                true,
                [
                    Op::of(Fn::cuLaunchKernelEx),
                    commands::cuMemcpyDtoHAsync_v2::OP,
                    Op::of(Fn::cuStreamWaitEvent),
                ],
            ),
            (false, [Op::of(Fn::cuStreamCreateWithPriority), commands::MirrorPush::OP, Op::of(Fn::cuMemMap)]),
            (
                false,
                [
                    commands::MemoryDecommit::OP,
                    Op::of(Fn::cuStreamBeginCapture_v2),
                    Op::of(Fn::cuMemcpyDtoH_v2),
                ],
            ),
        ] {
            ops.into_iter().for_each(|op| assert_eq!(leaves_nothing(op), leaves, "{}", op.name()));
        }
    }

    #[test]
    fn the_ticket_of_a_command_is_its_first_field() {
        use sluice_wire::{Encode, StreamId};
        let mut payload = Vec::new();
        commands::cuLaunchHostFunc { ticket: 0x0123_4567_89ab, hStream: StreamId(16), is_callback: false }
            .encode(&mut payload);
        assert_eq!(ticket_of(commands::cuLaunchHostFunc::OP, &payload), 0x0123_4567_89ab);
        assert_eq!(ticket_of(commands::cuLaunchKernel::OP, &payload), 0);
        assert_eq!(ticket_of(commands::cuLaunchHostFunc::OP, &[]), 0);
    }
}
