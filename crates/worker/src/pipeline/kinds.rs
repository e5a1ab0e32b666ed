//! What kind of command one is: whether it waits, gives the GPU work, may hold a stream, may be
//! refused without harm.
//!
//! `driver.api` declares the kind of each command. What a command's data say is read here.

use sluice_wire::{Command, EventId, Op, commands};

use crate::generated::kinds::KINDS as DECLARED;

/// A frame that lacks at least this number of bytes is read on its own.
pub(crate) const BULK_MIN: usize = 64 << 10;
/// Bytes before the data of a copy to the device: address, stream, and the number of bytes.
pub(crate) const COPY_FIELDS: usize = 20;

/// What is declared of a command.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Kind {
    pub(crate) effect: Effect,
    /// Whether it is answered.
    pub(crate) waits: bool,
    /// Whether the session continues when it is refused; of queued commands only.
    pub(crate) is_transient: bool,
}

/// What a command does to the device and to the commands around it. The head of `driver.api`
/// explains each.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Effect {
    Work,
    Holds,
    Releases,
    Bookkeeping,
    Quick,
    Ordered,
    Call,
}

/// The declared kind of each operation; one that is none has the kind of a queued call, and is
/// refused when it is executed.
static KINDS: [Kind; 1 << 16] = {
    let mut kinds = [Kind { effect: Effect::Call, waits: false, is_transient: false }; 1 << 16];
    let mut i = 0;
    while i < DECLARED.len() {
        kinds[DECLARED[i].0.0 as usize] = DECLARED[i].1;
        i += 1;
    }
    kinds
};

fn kind(op: Op) -> Kind {
    KINDS[usize::from(op.0)]
}

/// Whether a command is answered.
pub(crate) fn waits(op: Op) -> bool {
    kind(op).waits
}

/// Whether a waiting command can take longer than a look at a table, and nothing that comes after
/// it builds on it.
pub(crate) fn may_block(op: Op) -> bool {
    let kind = kind(op);
    kind.waits && !matches!(kind.effect, Effect::Quick | Effect::Ordered | Effect::Bookkeeping)
}

/// Whether a waiting command is a question that every driver answers at once.
pub(crate) fn is_quick(op: Op) -> bool {
    kind(op).effect == Effect::Quick
}

/// Whether a stream of the driver waits for this command: what stands before it may itself wait for
/// that stream.
pub(crate) fn frees_a_stream(op: Op) -> bool {
    kind(op).effect == Effect::Releases
}

/// Whether a command gives the GPU work, which needs the turn.
pub(crate) fn gives_work(op: Op) -> bool {
    kind(op).effect == Effect::Work
}

/// Whether a queued command that is no work may keep its stream from continuing. A wait for an
/// event does where that is another process's, which the session knows.
pub(crate) fn may_hold(op: Op) -> bool {
    kind(op).effect == Effect::Holds
}

/// Whether a command gives the device nothing to do.
pub(crate) fn is_bookkeeping(op: Op) -> bool {
    kind(op).effect == Effect::Bookkeeping
}

/// Whether a queued command that was refused is as good as never sent: no later one of an honest
/// client takes for granted what it would have made or changed.
pub(crate) fn leaves_nothing(op: Op) -> bool {
    kind(op).is_transient
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

#[cfg(test)]
mod tests {
    use sluice_cuda::Fn;

    use super::*;

    #[test]
    fn every_command_is_classified_as_declared() {
        assert!(waits(Op::of(Fn::cuStreamSynchronize)) && may_block(Op::of(Fn::cuStreamSynchronize)));
        assert!(waits(Op::of(Fn::cuEventQuery)) && !may_block(Op::of(Fn::cuEventQuery)));
        assert!(!waits(Op::of(Fn::cuLaunchKernel)) && gives_work(Op::of(Fn::cuLaunchKernel)));
        assert!(gives_work(Op::of(Fn::cuMemcpyDtoH_v2)) && gives_work(Op::of(Fn::cuMemsetD8Async)));
        assert!(!gives_work(Op::of(Fn::cuLaunchHostFunc)) && !gives_work(Op::of(Fn::cuEventRecord)));
        assert!(frees_a_stream(commands::HostCallDone::OP) && !frees_a_stream(Op::of(Fn::cuLaunchHostFunc)));
        assert!(is_bookkeeping(commands::EventWatch::OP) && !may_block(commands::EventWatch::OP));
        assert!(!may_block(commands::ModuleLoadAhead::OP) && may_block(commands::cuModuleLoadDataEx::OP));
        assert!(may_hold(Op::of(Fn::cuStreamWaitValue32)) && !may_hold(Op::of(Fn::cuStreamWaitEvent)));
        assert!(is_quick(commands::Submitted::OP) && !is_quick(Op::of(Fn::cuStreamSynchronize)));
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
    fn every_command_has_a_kind_that_agrees_with_its_message() {
        macro_rules! check {
            ($($name:ident)*) => {
                [$((commands::$name::OP, <commands::$name as Command>::WAITS)),*]
            };
        }
        let messages = sluice_wire::for_each_command!(check);
        assert_eq!(DECLARED.iter().map(|(op, kind)| (*op, kind.waits)).collect::<Vec<_>>(), messages);
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
