//! What the generated stubs stand on: checking handles and addresses, and sending commands.

use sluice_cuda::*;
use sluice_wire::{Command, DevicePtr, Handle, HandleKind, Id, Op, Target, commands, decode};

use crate::abi::ids::{self, Kind, Table};
use crate::device::{Device, place_of};
use crate::host_memory::mirror;
use crate::lifecycle::green;
use crate::module::{self, texture_reference};
use crate::session::answers::Answers;
use crate::session::issue::{About, Issue};
use crate::session::{Session, other_node};
use crate::stream::{self, capture, event};
use crate::{arrays, context};

/// Graphs and their executable forms have nothing about them that the client must know.
static GRAPHS: Table<()> = Table::new();
static GRAPH_EXECS: Table<()> = Table::new();

/// The graphs of a session that is lost are gone.
pub(crate) fn forget_all() {
    GRAPHS.clear();
    GRAPH_EXECS.clear();
}

fn number<H: Handle>(handle: H) -> u64 {
    H::Id::handle_number(handle) as u64
}

impl Issue for Session {
    fn find<H: Handle>(&self, handle: H) -> Result<H::Id, CUresult> {
        let mut number = number(handle);
        let live = match H::Id::KIND {
            HandleKind::Stream => {
                let exists = stream::check(number)?;
                capture::check_stream(CUstream(number as usize))?;
                exists
            }
            HandleKind::Event => event::exists(number),
            HandleKind::Module => module::exists(number),
            HandleKind::Function => {
                number = module::function(number as usize)?.here()?.id.0;
                true
            }
            HandleKind::Graph => GRAPHS.contains(number),
            HandleKind::GraphExec => GRAPH_EXECS.contains(number),
            // Which of them live is known on the node, where captures make them, too; it checks
            // each.
            HandleKind::GraphNode => ids::is_of(Kind::GraphNode, number),
            HandleKind::UserObject => ids::is_of(Kind::UserObject, number),
            HandleKind::Physical => self.virtual_memory().is_held(number),
            HandleKind::Array => arrays::exists(number),
            HandleKind::MipmappedArray => arrays::mipmapped_exists(number),
            HandleKind::GreenCtx => green::exists(number),
            HandleKind::ResourceDesc => green::descriptor_exists(number),
            HandleKind::TexRef => texture_reference::texture_exists(number),
            HandleKind::SurfRef => texture_reference::surface_exists(number),
        };
        if !live || !self.owns(number) {
            return Err(CUresult::INVALID_HANDLE);
        }
        if H::Id::KIND == HandleKind::GraphNode {
            number = ids::for_worker(number);
        }
        Ok(H::Id::new(number))
    }

    fn mint<H: Handle>(&self) -> Result<H, CUresult> {
        let (kind, table) = match H::Id::KIND {
            HandleKind::Graph => (Kind::Graph, &GRAPHS),
            HandleKind::GraphExec => (Kind::GraphExec, &GRAPH_EXECS),
            HandleKind::GraphNode => return Ok(H::Id::handle_from(context::mint(Kind::GraphNode) as usize)),
            HandleKind::UserObject => {
                return Ok(H::Id::handle_from(context::mint(Kind::UserObject) as usize));
            }
            HandleKind::TexRef => return Ok(H::Id::handle_from(texture_reference::mint()? as usize)),
            // The other kinds are minted by hand, together with what the client knows about them.
            _ => return Err(CUresult::NOT_SUPPORTED),
        };
        let handle = context::mint(kind);
        table.insert(handle, ());
        Ok(H::Id::handle_from(handle as usize))
    }

    fn forget<H: Handle>(&self, handle: H) {
        match H::Id::KIND {
            HandleKind::Graph => drop(GRAPHS.remove(number(handle))),
            HandleKind::GraphExec => drop(GRAPH_EXECS.remove(number(handle))),
            HandleKind::TexRef => texture_reference::forget(number(handle)),
            _ => {}
        }
    }

    fn range(&self, address: CUdeviceptr, bytes: u64) -> Result<DevicePtr, CUresult> {
        if bytes == 0 || self.holds(address, bytes) {
            return Ok(DevicePtr(address));
        }
        other_node::explain(self, address);
        Err(CUresult::INVALID_VALUE)
    }

    fn queue<C: Command>(&self, command: &C) -> Result<(), CUresult> {
        self.queue_by::<C>(|device, op| self.link.queue(device, op, |out| command.encode(out)))
    }

    fn call<C: Command, R>(
        &self,
        command: &C,
        read: impl for<'a> FnOnce(C::Reply<'a>) -> R,
    ) -> Result<R, CUresult> {
        let answer = self.answer_to(command)?;
        self.read_answer::<C, R>(&answer, read)
    }

    fn ask<C: Command, R>(
        &self,
        about: About,
        command: &C,
        read: impl for<'a> FnOnce(C::Reply<'a>) -> R,
    ) -> Result<R, CUresult> {
        match about {
            About::Function(handle) => {
                let function = module::function(handle.0)?.here()?;
                self.call_once(
                    &function.answers,
                    command,
                    || function.answer(command, || self.answer_to(command)),
                    read,
                )
            }
            About::Nothing => self.call_once(&self.answers, command, || self.answer_to(command), read),
        }
    }
}

fn records_event(op: Op) -> bool {
    matches!(
        op.target(),
        Some(Target::Driver(
            Fn::cuEventRecord | Fn::cuEventRecordWithFlags | Fn::cuCtxRecordEvent | Fn::cuGreenCtxRecordEvent
        ))
    )
}

/// Whether success of this command means that work has ended whose results a program may look at.
fn tells_of_an_end(op: Op) -> bool {
    let Some(Target::Driver(function)) = op.target() else { return false };
    matches!(
        function,
        Fn::cuCtxSynchronize
            | Fn::cuStreamSynchronize
            | Fn::cuStreamQuery
            | Fn::cuEventSynchronize
            | Fn::cuEventQuery
            | Fn::cuMemcpyDtoH_v2
    )
}

impl Session {
    /// As `Issue::call`, where `answers` are about what the question is about, and `ask` brings one
    /// that is not among them.
    pub(crate) fn call_once<C: Command, R>(
        &self,
        answers: &Answers,
        command: &C,
        ask: impl FnOnce() -> Result<Vec<u8>, CUresult>,
        read: impl for<'a> FnOnce(C::Reply<'a>) -> R,
    ) -> Result<R, CUresult> {
        self.link.check()?;
        let answer = answers.to(command, ask)?;
        self.read_answer::<C, R>(&answer, read)
    }

    /// As `queue`, where `send` sends the command of this kind.
    pub(crate) fn queue_by<C: Command>(
        &self,
        send: impl FnOnce(u8, Op) -> Result<(), CUresult>,
    ) -> Result<(), CUresult> {
        mirror::push(self)?;
        self.require(C::OP)?;
        let here = self.here();
        send(here.map_or(0, place_of), C::OP)?;
        // Its stream may be another device's than the calling thread's.
        for device in &self.devices {
            device.work.sent();
        }
        self.fetched.sent();
        self.live.work_sent();
        if records_event(C::OP) && event::some_shared() {
            // Another process may learn of the record as soon as this returns.
            self.call(&commands::Submitted {}, |()| ())?;
        }
        Ok(())
    }

    /// As `queue`, and waits for what the driver says to it: for what programs try out, and only
    /// the driver can judge.
    pub(crate) fn try_out<C: Command>(&self, command: &C) -> Result<(), CUresult> {
        self.queue_by::<C>(|device, op| self.link.try_out(device, op, |out| command.encode(out)))
    }

    /// Sends a command and waits for its answer, which is returned as it came.
    pub(crate) fn answer_to<C: Command>(&self, command: &C) -> Result<Vec<u8>, CUresult> {
        self.require(C::OP)?;
        mirror::push(self)?;
        let waits_for_device = const { C::OP.0 == Op::of(Fn::cuCtxSynchronize).0 };
        // A green context's wait says nothing of the rest of the device.
        let whole = |device: &&Device| waits_for_device && context::green_place(device.ordinal).is_none();
        let covered = self.here().filter(whole).map(|device| (device, device.work.so_far()));
        let answer = self.link.call(self.place(), C::OP, |out| command.encode(out))?;
        if !tells_of_an_end(C::OP) {
            self.fetched.sent();
        }
        answer.result.ok()?;
        if tells_of_an_end(C::OP) {
            mirror::fetch(self)?;
        }
        // What was written has to be here before another thread sees the wait as done.
        if let Some((device, sent)) = covered {
            device.work.waited_for(sent);
        }
        Ok(answer.payload)
    }

    /// Gives an answer to `read`.
    pub(crate) fn read_answer<C: Command, R>(
        &self,
        answer: &[u8],
        read: impl for<'a> FnOnce(C::Reply<'a>) -> R,
    ) -> Result<R, CUresult> {
        decode(answer).map(read).map_err(|error| {
            crate::say_once!("the node's answer to {} cannot be read: {error}", C::OP.name());
            CUresult::UNKNOWN
        })
    }

    /// As `queue`, for commands that leave nothing running: a later free need not wait for them.
    pub(crate) fn queue_quietly<C: Command>(&self, command: &C) -> Result<(), CUresult> {
        self.require(C::OP)?;
        self.link.queue(self.place(), C::OP, |out| command.encode(out))
    }

    /// Refuses what the node's driver does not have: once queued, its failure would be another
    /// call's, or the session's.
    fn require(&self, op: Op) -> Result<(), CUresult> {
        match op.target() {
            Some(Target::Driver(function)) if !self.functions.contains(function) => {
                Err(CUresult::NOT_SUPPORTED)
            }
            _ => Ok(()),
        }
    }
}
