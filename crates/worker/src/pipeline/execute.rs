//! One command, from its frame to its answer.

use std::io;
use std::sync::atomic::Ordering::Relaxed;

use sluice_cuda::{CUresult, Fn};
use sluice_wire::{Command, FunctionId, Header, Op, Target, commands};

use super::{Job, SUBMITTED_BYTES_MAX};
use crate::copies;
use crate::copies::mirror;
use crate::generated::dispatch::dispatch;
use crate::pipeline::kinds::{
    enters_itself, frees_a_stream, gives_work, is_bookkeeping, is_large_copy, is_quick, leaves_nothing,
    may_hold, recorded_event, ticket_of, waits,
};
use crate::process::ending;
use crate::schedule::gate::Submission;
use crate::schedule::launch_times;
use crate::session::Session;
use crate::session::device::Device;
use crate::session::execute::{Execute, Refusal};

/// Executes one command and answers it, if it waits.
pub(super) fn execute(session: &Session, job: &Job) {
    let header = job.header;
    let op = Op(header.op);
    let mut fields = Vec::new();
    let result = session.failure().map_err(Refusal::from).and_then(|()| {
        if frees_a_stream(op) {
            session.enter_alone(header)?;
        } else {
            session.enter(header)?;
        }
        let (_, device) = session.device()?;
        call(session, device, job, &mut fields)
    });
    if result.is_ok() {
        session.recipes.note(header, &job.payload, |module| session.objects.find(module).is_ok());
    }
    let sent = match result {
        // The answer comes with the event's end.
        Ok(()) if op == commands::EventWatch::OP => Ok(()),
        Ok(()) if waits(op) => session.outbox.reply(header, CUresult::SUCCESS.0, &fields),
        Ok(()) => Ok(()),
        // What the compiler said belongs to a load that failed.
        Err(Refusal::Failed(result))
            if [commands::cuModuleLoadDataEx::OP, commands::ModuleLoadAhead::OP].contains(&op) =>
        {
            session.outbox.reply(header, result.0, &fields)
        }
        Err(Refusal::Failed(result)) if waits(op) => answer_failure(session, header, result),
        Err(Refusal::Failed(result)) => refused_with(session, header, &job.payload, result),
        Err(refusal) => ending::failed(&format!("the client sent nonsense: {}: {refusal}", op.name())),
    };
    if sent.is_err() {
        ending::client_gone();
    }
}

/// Answers a command that has failed. Where the context is lost, the session is as well: from then
/// on every call returns the error, also one that the client answers by itself.
fn answer_failure(session: &Session, header: Header, result: CUresult) -> io::Result<()> {
    // What a driver answers with "unknown" may be one call's mistake.
    let is_lost = result.is_sticky() && result != CUresult::UNKNOWN;
    if is_lost && session.fail(result) {
        session.outbox.sticky(header, result.0, "")?;
    }
    session.outbox.reply(header, result.0, &[])
}

/// Says so where a queued command has failed for which nothing is to come.
pub(crate) fn refused(session: &Session, header: Header, result: CUresult) -> io::Result<()> {
    refused_with(session, header, &[], result)
}

/// Says so where a queued command has failed. If nothing builds on it, and the context lives, the
/// session continues.
fn refused_with(session: &Session, header: Header, payload: &[u8], result: CUresult) -> io::Result<()> {
    // The driver has given up the capture, and will say so at its end.
    if is_of_capture(result) {
        return Ok(());
    }
    let op = Op(header.op);
    if !result.is_sticky() && leaves_nothing(op) && session.failure().is_ok() {
        let captured = session.refuse_captured(result);
        return session.outbox.refused(header, result.0, ticket_of(op, payload), captured);
    }
    if session.fail(result) { session.outbox.sticky(header, result.0, "") } else { Ok(()) }
}

/// Whether a failure is that of a stream capture alone (`CUDA_ERROR_STREAM_CAPTURE_...`).
fn is_of_capture(result: CUresult) -> bool {
    (CUresult::STREAM_CAPTURE_UNSUPPORTED.0..=CUresult::STREAM_CAPTURE_WRONG_THREAD.0).contains(&result.0)
}

/// Makes the driver call, and tells gate and backlog of the device what it means for them.
fn call(session: &Session, device: &Device, job: &Job, reply: &mut Vec<u8>) -> Result<(), Refusal> {
    let op = Op(job.header.op);
    let backlog = device.gate.backlog();
    if is_bookkeeping(op) {
        return dispatch(session, op, &job.payload, reply);
    }
    if op == commands::FillCaptured::OP {
        session.graphs.note_captured(op, &job.payload, session)?;
    }
    if !waits(op) {
        session.graphs.note_captured(op, &job.payload, session)?;
        if is_large_copy(op, &job.payload) {
            // It enters the gate itself, piece by piece.
            return dispatch(session, op, &job.payload, reply);
        }
        if let Some(event) = recorded_event(op, &job.payload) {
            session.watches.forget(event);
        }
        // The gate drains once the submission ends; the call has ended by then.
        let _submission = enter_gate(device, job);
        let _call = backlog.call();
        if !gives_work(op) {
            let done = dispatch(session, op, &job.payload, reply);
            if may_hold(op) {
                device.streams.held()
            } else {
                device.streams.changed()
            }
            return done;
        }
        if let Some(times) = &device.launch_times
            && let Some(stream) = launch_times::stream_of(op, &job.payload)?
        {
            return times.time(session.find(stream)?, || dispatch(session, op, &job.payload, reply));
        }
        return dispatch(session, op, &job.payload, reply);
    }
    let submission = if enters_itself(op) { None } else { enter_gate(device, job) };
    let (mark, given) = (backlog.mark(), device.streams.mark());
    let mut done = dispatch(session, op, &job.payload, reply);
    if op == commands::cuStreamQuery::OP
        && done == Err(Refusal::Failed(CUresult::NOT_READY))
        && device.streams.is_done()
    {
        done = Ok(());
    } else if [commands::cuStreamSynchronize::OP, commands::cuStreamQuery::OP].contains(&op) && done.is_ok() {
        device.streams.waited(given);
    // A green context's wait is over before that of the rest of the device would be.
    } else if op == commands::cuCtxSynchronize::OP && done.is_ok() && session.green()?.is_none() {
        backlog.finished(mark);
        device.streams.waited_for_all(given);
    }
    device.gate.waited();
    session.pass_output_on();
    done?;
    if let Some(submission) = submission {
        submission.finished();
    }
    Ok(())
}

/// Enters the gate for a command that gives the GPU work. One that something which keeps the turn
/// may wait for does not wait for the turn.
fn enter_gate<'a>(device: &'a Device, job: &Job) -> Option<Submission<'a>> {
    match Op(job.header.op) {
        op if !gives_work(op) => None,
        op if mirror::is_beside(op, &job.payload) => device.gate.enter_without_waiting(),
        _ => Some(device.gate.enter()),
    }
}

/// Whether a waiting command, made now, holds up no other.
pub(super) fn returns_at_once(session: &Session, job: &Job) -> bool {
    let op = Op(job.header.op);
    if is_quick(op) {
        // A loaded driver may let a question wait until its callbacks have returned, and only this
        // thread receives that one may.
        let may_wait = session.is_loaded && !session.host_calls.is_empty();
        return op == commands::Submitted::OP || !may_wait;
    }
    match op.target() {
        Some(Target::Driver(Fn::cuCtxSynchronize | Fn::cuStreamSynchronize | Fn::cuEventSynchronize)) => {
            is_idle(session)
        }
        Some(Target::Driver(Fn::cuMemcpyDtoH_v2)) => {
            let device = session.device_at(job.header.device);
            !copies::is_pushed(&job.payload)
                && device.is_some_and(|device| device.gate.has_turn())
                && is_idle(session)
        }
        _ => false,
    }
}

/// Whether the driver does no more for a queued command, given to it now, than to queue it. One
/// that is loaded may wait for room in its queue, and for its turn. Ours compiles a function when
/// it is launched for the first time.
pub(super) fn is_only_queued(session: &Session, job: &Job) -> bool {
    let launched = || {
        let function = job.payload.first_chunk().map(|id| FunctionId(u64::from_le_bytes(*id)));
        function.is_some_and(|function| session.modules.has_launched(function))
    };
    let is_queued = match Op(job.header.op).target() {
        Some(Target::Driver(Fn::cuEventRecord | Fn::cuStreamWaitEvent)) => true,
        // The function is the first field of both.
        Some(Target::Driver(Fn::cuLaunchKernel | Fn::cuLaunchKernelEx)) => launched(),
        _ => false,
    };
    is_queued && !session.is_loaded && sluice_softgpu::has_room(SUBMITTED_BYTES_MAX)
}

/// Whether the devices have finished everything, and nothing waits for the program or another
/// process; an event may be another device's than the command's.
pub(crate) fn is_idle(session: &Session) -> bool {
    let is_idle = |device: &Device| device.gate.backlog().is_empty() && device.streams.hold_nothing();
    !session.imports_events.load(Relaxed)
        && session.host_calls.hold_nothing()
        && session.devices.iter().all(is_idle)
}
