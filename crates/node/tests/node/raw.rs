//! A client that speaks the protocol by hand, and therefore also wrongly.

use std::ffi::CStr;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use sluice_cuda::CUresult;
use sluice_transport::opening::Attempts;
use sluice_wire::control::{Control, LeaseGranted, LeaseRequest, SessionOpen, SessionOpened};
use sluice_wire::handshake::{Hello, LeaseToken, Once, Purpose, Resume, SessionSecret, Stripe, Welcome};
use sluice_wire::{
    Command, CommandRefused, Decode, FrameDecoder, FunctionId, Header, ImageHash, Kind, ModuleId, Op,
    ReplyHead, Sticky, commands, decode,
};

/// Nothing in these tests takes longer, unless it hangs.
const PATIENCE: Duration = Duration::from_secs(60);

/// Any connection to a node.
pub(crate) struct Connection {
    pub(crate) stream: TcpStream,
    decoder: FrameDecoder,
    /// Bytes that have come after the welcome.
    received: u64,
}

impl Connection {
    /// Connects and says nothing.
    pub(crate) fn connect(address: &str) -> Connection {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_nodelay(true).unwrap();
        Connection { stream, decoder: FrameDecoder::new(), received: 0 }
    }

    /// Connects and is welcome. What it opens ends with it.
    pub(crate) fn greet(address: &str, purpose: Purpose) -> Connection {
        Connection::say(address, &hello(purpose, 0))
    }

    /// Connects, says so much and is welcome.
    pub(crate) fn say(address: &str, hello: &[u8]) -> Connection {
        let mut connection = Connection::connect(address);
        connection.send(hello);
        let mut welcome = vec![0; Welcome::to_bytes().len()];
        connection.stream.read_exact(&mut welcome).unwrap();
        assert!(Welcome::from_bytes(&welcome).unwrap().is_some());
        connection
    }

    pub(crate) fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).unwrap();
    }

    /// The next frame; `None` at the end of the connection.
    pub(crate) fn next(&mut self) -> Option<(Header, Vec<u8>)> {
        loop {
            if let Some(frame) = self.decoder.next_frame().unwrap() {
                return Some((frame.header, frame.payload.to_vec()));
            }
            // No more than the frame: what follows may be of a session that continues here.
            let missing = self.decoder.missing().unwrap();
            match self.stream.read(&mut self.decoder.space(missing)[..missing]) {
                Ok(0) => return None,
                Ok(got) => {
                    self.decoder.received(got);
                    self.received += got as u64;
                }
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return None,
                Err(error) => panic!("nothing came: {error}"),
            }
        }
    }

    /// The end of the connection, whatever comes before it.
    pub(crate) fn wait_for_end(&mut self) {
        while self.next().is_some() {}
    }

    pub(crate) fn ask(&mut self, question: impl Into<Control>) -> Control {
        let mut bytes = Vec::new();
        question.into().frame(&mut bytes).unwrap();
        self.send(&bytes);
        self.control()
    }

    /// Hears how much the node has of the stream of a session that is asked for again. Both streams
    /// follow.
    pub(crate) fn heard_before(&mut self) -> u64 {
        let Control::SessionResumed(resumed) = self.control() else { panic!("not asked for again") };
        self.received = 0;
        resumed.received
    }

    /// The next message, which is one of control.
    pub(crate) fn control(&mut self) -> Control {
        let (header, payload) = self.next().expect("the node answers");
        assert_eq!(header.kind, Kind::Control);
        Control::decode(header.op, &payload).unwrap()
    }
}

/// Processes that nobody sees, so that after a cut they are waited for.
pub(crate) const ELSEWHERE: u64 = 7;

/// The first words of this process, as if it were in that space.
pub(crate) fn hello(purpose: Purpose, process_space: u64) -> Vec<u8> {
    Hello { purpose, process: std::process::id(), process_space }.to_bytes()
}

/// A lease with the connection that holds it.
pub(crate) struct Lease {
    pub(crate) connection: Connection,
    pub(crate) granted: LeaseGranted,
}

pub(crate) fn request(share_ppm: u32, memory: u64) -> LeaseRequest {
    LeaseRequest {
        once: once(),
        share_ppm,
        memory,
        gpus: 1,
        limit_ppm: 1_000_000,
        kernel_timeout_ms: 0,
        name: "test".into(),
    }
}

/// The first attempt of an opening that nobody has asked for before.
pub(crate) fn once() -> Once {
    Attempts::new().unwrap().once()
}

pub(crate) fn lease(address: &str, request: LeaseRequest) -> Lease {
    let mut connection = Connection::greet(address, Purpose::Control);
    match connection.ask(request) {
        Control::LeaseGranted(granted) => Lease { connection, granted },
        other => panic!("no lease: {other:?}"),
    }
}

/// Why there is no lease.
pub(crate) fn refused(address: &str, request: LeaseRequest) -> String {
    match Connection::greet(address, Purpose::Control).ask(request) {
        Control::LeaseRefused(refused) => refused.reason,
        other => panic!("it is not refused: {other:?}"),
    }
}

/// A client program.
pub(crate) struct Session {
    pub(crate) connection: Connection,
    pub(crate) opened: SessionOpened,
    sequence: u64,
    ids: u64,
}

impl Session {
    pub(crate) fn open(address: &str, token: LeaseToken) -> Session {
        Session::open_on(Connection::greet(address, Purpose::Session { token, once: once() }))
    }

    /// One that outlives its connection.
    pub(crate) fn open_resumable(address: &str, token: LeaseToken) -> Session {
        Session::open_on(Connection::say(
            address,
            &hello(Purpose::Session { token, once: once() }, ELSEWHERE),
        ))
    }

    /// One that was opened on this connection.
    pub(crate) fn of(connection: Connection, opened: SessionOpened) -> Session {
        Session { connection, opened, sequence: 0, ids: 100 }
    }

    fn open_on(mut connection: Connection) -> Session {
        let ranges = (0..4).map(|i| (0x2000_0000_0000 + (i << 42), 1 << 40)).collect();
        match connection.ask(SessionOpen { ranges, recognises: true, unpacks: false, forks: false }) {
            Control::SessionOpened(opened) => Session::of(connection, opened),
            other => panic!("no session: {other:?}"),
        }
    }

    pub(crate) fn secret(&self) -> SessionSecret {
        self.opened.resume.as_ref().expect("it outlives its connection").secret
    }

    /// What its client says to continue on another connection.
    pub(crate) fn resumption(&self, attempt: u32) -> Resume {
        let (session, secret, received) = (self.opened.session, self.secret(), self.connection.received);
        Resume { session, secret, attempt, received, stripe: Stripe::ONLY }
    }

    /// Goes on on another connection; every command has been answered. Returns the first words that
    /// were said there.
    pub(crate) fn resume(&mut self, address: &str, attempt: u32) -> Vec<u8> {
        let hello = hello(Purpose::Resume(self.resumption(attempt)), ELSEWHERE);
        let mut next = Connection::say(address, &hello);
        match next.control() {
            Control::SessionResumed(_) => self.connection.stream = next.stream,
            other => panic!("the session does not go on: {other:?}"),
        }
        hello
    }

    pub(crate) fn id(&mut self) -> u64 {
        self.ids += 1;
        self.ids
    }

    /// Where the session mints addresses.
    pub(crate) fn base(&self) -> u64 {
        self.opened.range.expect("the software GPU takes the first offer").0
    }

    pub(crate) fn frame(&mut self, op: Op, payload: &[u8]) -> Vec<u8> {
        self.sequence += 1;
        let header = Header { kind: Kind::Command, device: 0, op: op.0, lane: 0, sequence: self.sequence };
        let mut bytes = Vec::new();
        header.frame(&mut bytes, |out| out.extend_from_slice(payload)).unwrap();
        bytes
    }

    pub(crate) fn queue<C: Command>(&mut self, command: &C) {
        let mut payload = Vec::new();
        command.encode(&mut payload);
        let frame = self.frame(C::OP, &payload);
        self.connection.send(&frame);
    }

    /// Sends a command and waits for its reply; pushes in between are dropped.
    pub(crate) fn call<C: Command>(&mut self, command: &C) -> Result<Vec<u8>, CUresult> {
        self.queue(command);
        loop {
            let (header, payload) = self.connection.next().expect("the worker answers");
            match header.kind {
                // Others answer waiting commands that were only queued.
                Kind::Reply if header.sequence == self.sequence => {
                    let (head, fields) = payload.split_at(4);
                    let head: ReplyHead = decode(head).unwrap();
                    return CUresult(head.result).ok().map(|()| fields.to_vec());
                }
                Kind::CommandRefused => {
                    return Err(CUresult(decode::<CommandRefused>(&payload).unwrap().result));
                }
                Kind::Sticky => return Err(CUresult(decode::<Sticky>(&payload).unwrap().result)),
                _ => {}
            }
        }
    }

    /// The next text that the program's user is told; what comes before is dropped.
    pub(crate) fn notice(&mut self) -> String {
        loop {
            let (header, payload) = self.connection.next().expect("the worker says something");
            if header.kind == Kind::Notice {
                return String::from_utf8(payload).unwrap();
            }
        }
    }

    pub(crate) fn read<C: Command, T: for<'a> Decode<'a>>(&mut self, command: &C) -> Result<T, CUresult> {
        self.call(command).map(|fields| decode(&fields).unwrap())
    }

    pub(crate) fn load(&mut self, ptx: &str) -> ModuleId {
        let image = ImageHash(*blake3::hash(ptx.as_bytes()).as_bytes());
        let (total, bytes) = (ptx.len() as u64, ptx.as_bytes());
        self.queue(&commands::ImageData { image, offset: 0, total, bytes });
        let module = ModuleId(self.id());
        self.call(&commands::cuModuleLoadDataEx { module, image, options: Vec::new() }).unwrap();
        module
    }

    pub(crate) fn function(&mut self, module: ModuleId, name: &CStr) -> FunctionId {
        let hfunc = FunctionId(self.id());
        self.call(&commands::cuModuleGetFunction { hfunc, hmod: module, name }).unwrap();
        hfunc
    }

    pub(crate) fn launch(&mut self, f: FunctionId, blocks: u32, params: &[u64]) {
        let params: Vec<u8> = params.iter().flat_map(|p| p.to_le_bytes()).collect();
        let hStream = sluice_wire::StreamId(0);
        let (grid, block) = ([blocks, 1, 1], [32, 1, 1]);
        self.queue(&commands::cuLaunchKernel { f, grid, block, sharedMemBytes: 0, hStream, params: &params });
    }
}
